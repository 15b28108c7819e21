"""The federated client: shared and server state in, trained state and contributions out."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.federation.own_state import OwnStateFolder
from orchestra_flwr.federation.wire import SMALLEST_CLUSTER, Schemas, unpack_state
from orchestra_flwr.merging import Merging, OwnState, build_merging, keeps_state
from orchestra_flwr.methods import Role, build_method
from orchestra_flwr.privacy.updates import clipped_state
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import (
    LocalResult,
    observe_round,
    return_freed_memory,
    torch_threads,
    train_round,
)


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
        self.schemas = Schemas.of(self.method)
        # The names of `fit`'s arrays, in order: down, up after training, up after the first round.
        roles = ((Role.SHARED, self.schemas.shared), (Role.SERVER, self.schemas.server))
        self.receives = [role.value for role, schema in roles if schema.size]
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
            The shared state (only after training; moved by at most `privacy.clip`) followed by the
            arrays named by `contributes`; the number of images; figures: mean loss parts, steps,
            seconds and the method's own.

        Raises:
            ValueError: arrays that do not fit the model, or own state that is missing its place.
            TrainingError: a loss that is not finite.
        """
        started = time.perf_counter()
        with torch_threads(self.config.training.threads):
            clip = self.config.privacy.clip
            received = dict(zip(self.receives, parameters, strict=True))
            unpack_state(received, self.method, self.schemas)
            clips = clip is not None and config["train"]
            before = received[Role.SHARED.value] if clips else None
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
            shared = self.schemas.shared.pack(self.method.state(Role.SHARED))
            if clip is not None and before is not None:
                shared = clipped_state(before, shared, clip)
            arrays.insert(0, shared)
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
