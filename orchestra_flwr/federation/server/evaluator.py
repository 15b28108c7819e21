"""The server's evaluation of the encoders on its own labelled images."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any

import torch

from orchestra_flwr.config import Config
from orchestra_flwr.data import Dataset
from orchestra_flwr.evaluation import evaluate, recalibrated
from orchestra_flwr.federation.server.round_report import FederationError
from orchestra_flwr.methods import Method, kept_first
from orchestra_flwr.models import Backbone, Encoder, EncoderSpec
from orchestra_flwr.training import resolve_device, torch_threads

Scores = dict[str, dict[str, Any]]  # backbone -> score -> value

AS_INITIALISED = "initial_statistics"  # an untrained backbone's scores with BatchNorm as it begins


class Evaluator:
    """Evaluates a method's backbones with frozen weights.

    Args:
        config: the run's configuration.
        dataset: its training images are the bank of the kNN and train the linear probe; None:
            there is nothing to evaluate with.
    """

    def __init__(self, config: Config, dataset: Dataset | None) -> None:
        self.config = config
        self.dataset = dataset
        self.spec = EncoderSpec(
            model=config.model,
            channels=config.data.channels,
            image_size=config.data.image_size,
            normalise=config.data.normalise,
        )

    @property
    def why_not(self) -> str | None:
        """What is missing for an evaluation; None if nothing is."""
        if self.dataset is None:
            return "the server has no images of its own (data.root)"
        if self.dataset.train.labels is None:
            return "the training images have no labels"
        if self.dataset.test is None or self.dataset.test.labels is None:
            return "there are no labelled test images"
        return None

    def scores(self, method: Method, *, untrained: bool = False) -> Scores | None:
        """kNN, linear probe and feature spread of every backbone; None without labels.

        Backbones of equal weights, as before training, are evaluated once.

        Args:
            method: whose backbones are evaluated.
            untrained: whether nothing was trained yet. BatchNorm's initial statistics are those of
                no images and would make any training look good, so the scores are those with
                statistics of the server's images. Those with the initial ones stand beside them,
                as "initial_statistics".

        Raises:
            FederationError: features that are not finite.
        """
        if self.why_not is not None:
            return None
        backbones = kept_first(method, self.config.evaluation.backbone)
        found: Scores = {}
        with torch_threads():
            for name, backbone in backbones.items():
                equal = next((n for n in found if _equal(backbones[n], backbone)), None)
                found[name] = found[equal] if equal else self._scores(backbone, untrained)
        return found

    @property
    def batch_norm(self) -> str:
        """Which BatchNorm the scores and the saved encoder have, for the summary."""
        if not self.config.model.has_batch_norm:
            return "none"
        if self._averages:
            return "averaged"
        return "recalibrated" if self.dataset is not None else "initial"

    @property
    def _averages(self) -> bool:
        # Otherwise the server's statistics are those that the model began with.
        return not self.config.merging.plugin.local_norms and self.config.privacy.clip is None

    def encoder(self, backbone: Backbone) -> Encoder:
        """A frozen copy of a backbone, with statistics of the server's images where it has none."""
        if self.batch_norm == "recalibrated":
            return self._recalibrated(backbone)
        return Encoder(self.spec, copy.deepcopy(backbone))

    def _recalibrated(self, backbone: Backbone) -> Encoder:
        assert self.dataset is not None
        images, size = self.dataset.train.images, self.config.evaluation.batch_size
        with torch_threads(self.config.training.threads):  # the same bits on every machine
            return Encoder(
                self.spec, recalibrated(backbone, images, size, self.config.data.normalise)
            )

    def _scores(self, backbone: Backbone, untrained: bool) -> dict[str, Any]:
        if not untrained or not self.config.model.has_batch_norm:
            return self._score(self.encoder(backbone))
        initial = self._score(Encoder(self.spec, copy.deepcopy(backbone)))
        return {**self._score(self._recalibrated(backbone)), AS_INITIALISED: initial}

    def _score(self, encoder: Encoder) -> dict[str, float]:
        assert self.dataset is not None
        train, test = self.dataset.train, self.dataset.test
        assert test is not None and train.labels is not None and test.labels is not None
        # The machine that joined a cluster need not have what the cluster's machines have.
        engine = self.config.engine
        device = "auto" if engine.plugin.is_remote(engine.settings) else self.config.device
        encoder = encoder.to(resolve_device(device))
        try:
            return asdict(
                evaluate(
                    encoder,
                    (train.images, train.labels),
                    (test.images, test.labels),
                    config=self.config.evaluation,
                    augmentation=self.config.data.augmentation,
                )
            )
        except ValueError as error:
            raise FederationError(f"the encoder cannot be evaluated: {error}") from error


def _equal(first: Backbone, second: Backbone) -> bool:
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
