"""Evaluates an encoder that was saved, on any labelled images of its size."""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor

from orchestra_flwr.config import ConfigError, DataConfig, EvaluateConfig
from orchestra_flwr.data import Dataset, ImageSet, load_dataset
from orchestra_flwr.evaluation.knn import fewer_voters
from orchestra_flwr.evaluation.scores import evaluate_by
from orchestra_flwr.models import Encoder, EncoderSpec, encoder_of
from orchestra_flwr.models.encoder import read_description
from orchestra_flwr.training import resolve_device, torch_threads

logger = logging.getLogger("orchestra_flwr.evaluation")


class EvaluationError(RuntimeError):
    """An encoder that cannot be evaluated; the text says why."""


def evaluate_saved(config: EvaluateConfig) -> dict[str, Any]:
    """Evaluates the encoder that a configuration names.

    Returns:
        `dataset` (what to call it) and `backbone` by name, `weights_sha256` (of the encoder's
        file, by which other weights in the same place are told apart; None of an encoder of version
        0.1), `data` (the configuration of the images), `images` (how many for training and
        testing), and what :func:`evaluate_by` returns.

    Raises:
        ConfigError: no encoder, or images that are missing, unlabelled or do not fit it.
        EvaluationError: features that are not finite.
    """
    encoder, description = _load(config)
    data = config.images()
    _check_size(data, encoder.spec)
    dataset = load_dataset(data)
    train, test = _labelled(dataset)
    if dataset.channels != encoder.spec.channels:
        raise ConfigError(
            f"data.name={data.name}: its images have {dataset.channels} channels, "
            f"the encoder expects {encoder.spec.channels}"
        )
    try:
        with torch_threads():
            scores = evaluate_by(
                encoder,
                train,
                test,
                protocols=config.protocols,
                config=config.evaluation,
                augmentation=data.augmentation,
                seeds=range(config.seeds),
            )
    except ValueError as error:
        raise EvaluationError(f"the encoder cannot be evaluated: {error}") from error
    if "knn" in config.protocols and (said := fewer_voters(config.evaluation.knn_k, len(train[1]))):
        logger.warning("%s", said)
    return {
        "dataset": data.label,
        "backbone": description.get("about", {}).get("backbone"),
        "weights_sha256": description.get("weights_sha256"),
        **scores,
        "images": {"train": len(train[1]), "test": len(test[1])},
        "data": {**data.model_dump(), "normalise": encoder.spec.normalise},
    }


def _load(config: EvaluateConfig) -> tuple[Encoder, dict[str, Any]]:
    encoder = encoder_of(config, resolve_device(config.device))
    return encoder, read_description(config.encoder.with_suffix(".json"))


def _check_size(data: DataConfig, spec: EncoderSpec) -> None:
    """Before images are loaded, which may take minutes."""
    if data.image_size != spec.image_size:
        raise ConfigError(
            f"data.image_size={data.image_size}: the encoder expects images of "
            f"{spec.image_size} x {spec.image_size} pixels: data.image_size={spec.image_size}"
        )


def _labelled(dataset: Dataset) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def pair(part: ImageSet | None, name: str) -> tuple[Tensor, Tensor]:
        part = None if part is None else part.labelled
        if part is None or part.labels is None:
            hint = " (data.test_share=0.2 holds back a fifth of them)" if name == "test" else ""
            raise ConfigError(
                f"data.name={dataset.name}: there are no labelled {name} images{hint}"
            )
        return part.images, part.labels

    return pair(dataset.train, "training"), pair(dataset.test, "test")
