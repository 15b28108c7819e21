"""The federated client: shared and server state in, trained state and contributions out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.evaluation import similarities
from orchestra_flwr.federation.own_state import OwnStateFolder
from orchestra_flwr.federation.wire import SMALLEST_CLUSTER, Schemas, unpack_state
from orchestra_flwr.heap import keep_freed_memory, return_freed_memory
from orchestra_flwr.merging import Merging, OwnState, build_merging, keeps_state
from orchestra_flwr.methods import Role, build_method, kept_first
from orchestra_flwr.privacy.updates import clipped_state
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import LocalResult, observe_round, torch_threads, train_round


class OrchestraClient(NumPyClient):
    """One client's local work on its own images; works with and without Flower's runtime.

    Args:
        config: the run's configuration.
        name: which client this is; its randomness follows from it.
        images: (n, C, H, W) uint8 on the device to train on.
        labels: (n,) int64 beside them, for methods that learn from labels.
        keeps: where state of its own is kept from round to round, for runs in which clients do.
        hides: whether the noise of private centroids is drawn afresh from the system, as it must
            be wherever somebody else knows the run's seed; without it follows from the seed.

    Raises:
        ValueError: there are fewer images than `federation.min_images`.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        keeps: OwnStateFolder | None = None,
        hides: bool = False,
    ) -> None:
        least = config.federation.min_images
        if len(images) < least:
            raise ValueError(
                f"client {name} has {len(images)} images, federation.min_images={least}"
            )
        self.config = config
        self.name = name
        self.images = images
        self.labels = labels
        self.keeps = keeps
        self.hides = hides
        self.method = build_method(config, images.shape[1]).to(images.device)
        self.schemas = Schemas.of(self.method, config.federation.wire)
        # The names of `fit`'s arrays, in order: down, up after training only, up after any round.
        self.receives = self.schemas.down
        self.returns = list(self.schemas.codec.form(self.schemas.reply))
        self.contributes = list(self.method.contribution_limits())

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Any]
    ) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Trains for one round, or only observes in the first.

        Args:
            parameters: the flat arrays named by `receives`.
            config: `round` (int), `train` (bool; false in the first, clustering-only round) and,
                if the client may not contribute, `contribute` (false: arrays without rows).

        Returns:
            The arrays named by `returns` (only after training: the shared state, moved by at most
            `privacy.clip`, or what changed of it), followed by those named by `contributes`; the
            number of images; figures: mean loss parts, steps, seconds and the method's own.

        Raises:
            ValueError: arrays that do not fit the model, own state that is missing its place, or an
                update that is not finite.
            TrainingError: a loss that is not finite.
        """
        started = time.perf_counter()
        keep_freed_memory()
        with torch_threads(self.config.training.threads):
            received = dict(zip(self.receives, parameters, strict=True))
            unpack_state(received, self.method, self.schemas)
            kept = {}
            if config["train"] and self._needs_received:  # as it came: an int8 model is small
                kept = {name: received[name] for name in self.receives}
            del parameters, received  # frees them where the caller has not kept them
            seed = ClientSeed(self.config.seed, int(config["round"]), self.name, self.hides)
            contribute = bool(config.get("contribute", True))
            work = self._train if config["train"] else self._observe
            result, told = work(seed, contribute)
        return_freed_memory()  # before the reply is packed, which takes two models' memory
        arrays = [
            result.contribution.arrays[name].float().cpu().numpy() for name in self.contributes
        ]
        if config["train"]:
            arrays = [*self._trained(kept, seed), *arrays]
        metrics: dict[str, Any] = {f"loss/{name}": value for name, value in result.losses.items()}
        metrics |= {f"merge/{name}": value for name, value in told.items()}
        metrics["steps"] = result.steps
        if result.contribution.smallest_cluster is not None:
            metrics[SMALLEST_CLUSTER] = result.contribution.smallest_cluster
        metrics["seconds"] = time.perf_counter() - started
        return arrays, len(self.images), metrics

    def _observe(self, seed: ClientSeed, contribute: bool) -> tuple[LocalResult, dict[str, float]]:
        given = (self.images, self.config.training, self.config.data.augmentation)
        return observe_round(self.method, *given, seed, contribute=contribute), {}

    def _train(self, seed: ClientSeed, contribute: bool) -> tuple[LocalResult, dict[str, float]]:
        """The round's training, and figures of the merging before it."""
        merging, keeps = build_merging(self.config.federation), None
        if keeps_state(self.config, self.method):
            keeps = self._place()
            self._recall(keeps.before(seed.round), merging)
        given = (self.images, self.config.training, self.config.data.augmentation)
        result = train_round(self.method, *given, seed, labels=self.labels, contribute=contribute)
        if keeps is not None:
            kept, local = merging.keep(self.method), self.method.state(Role.LOCAL)
            keeps.save(seed.round, OwnState({**local, **kept.tensors}, kept.figures))
        return result, merging.told()

    def _recall(self, own: OwnState | None, merging: Merging) -> None:
        if own is None:
            self.method.start_own_state()
        else:
            for name, tensor in self.method.state(Role.LOCAL).items():
                tensor.copy_(own.tensors[name])
        merging.merge(self.method, own)

    def _place(self) -> OwnStateFolder:
        if self.keeps is None:
            raise ValueError(
                f"federation.merge={self.config.federation.merge}: client {self.name} was given "
                "no place to keep its state"
            )
        return self.keeps

    def evaluate(
        self, parameters: list[np.ndarray], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Scores the kept backbone on the client's own images, without labels (section 5).

        Args:
            parameters: the flat arrays named by `receives`.
            config: `round` (int), from which the augmentations follow.

        Returns:
            The negated score, the number of images, and `alignment` and `uniformity`.

        Raises:
            ValueError: arrays that do not fit the model.
        """
        evaluation = self.config.evaluation
        seed = ClientSeed(self.config.seed, int(config["round"]), self.name)
        with torch_threads(self.config.training.threads):
            received = dict(zip(self.receives, parameters, strict=True))
            unpack_state(received, self.method, self.schemas)
            backbone = next(iter(kept_first(self.method, evaluation.backbone).values()))
            told = similarities(
                backbone,
                self.images,
                self.config.data.augmentation,
                seed.generator("similarity", self.images.device),
                evaluation.batch_size,
            )
        return -told.score, len(self.images), asdict(told)

    @property
    def _needs_received(self) -> bool:
        """Whether what is sent depends on what was received."""
        return self.schemas.sends_updates or self.config.privacy.clip is not None

    def _trained(self, kept: Mapping[str, np.ndarray], seed: ClientSeed) -> list[np.ndarray]:
        """The arrays named by `returns`, of the trained state and the arrays received before."""
        state = self.schemas.shared.pack(self.method.state(Role.SHARED))
        before = None
        if self._needs_received:
            before = self.schemas.codec.decode(Role.SHARED.value, kept)
            if self.config.privacy.clip is not None:
                state = clipped_state(before, state, self.config.privacy.clip)
        arrays = self.schemas.pack_trained(state, before, seed.generator("wire"))
        return [arrays[name] for name in self.returns]
