"""Evaluates an encoder that was saved, on any labelled images of its size."""

import logging
from typing import Any

from torch import Tensor

from orchestra_flwr.config import ConfigError, DataConfig, EvaluateConfig
from orchestra_flwr.console.text import counted
from orchestra_flwr.data import Dataset, ImageSet, load_dataset
from orchestra_flwr.evaluation.knn import fewer_voters
from orchestra_flwr.evaluation.scores import PRECISION_ALONE, evaluate_by
from orchestra_flwr.models import encoder_of
from orchestra_flwr.models.encoder_description import read_description
from orchestra_flwr.training import resolve_device, torch_threads

logger = logging.getLogger("orchestra_flwr.evaluation")


class EvaluationError(RuntimeError):
    """An encoder that cannot be evaluated; the text says why."""


def evaluate_saved(config: EvaluateConfig) -> dict[str, Any]:
    """Evaluates the encoder that a configuration names.

    Returns:
        `dataset` and `backbone` by name, `weights_sha256` (of the encoder's file, whose weights may
        be replaced later; None for an encoder of version 0.1), `data` (the configuration of the
        images), `images` (how many for training and testing), and what :func:`evaluate_by` returns.

    Raises:
        ConfigError: no encoder, or images that are missing, unlabelled or do not fit it.
        EvaluationError: features that are not finite.
    """
    encoder = encoder_of(config, resolve_device(config.device))
    description = read_description(config.encoder.with_suffix(".json"))
    spec = encoder.spec
    data = config.images(spec.image_size)
    train, test = labelled_images(data, channels=spec.channels, image_size=spec.image_size)
    if train[1].ndim > 1:
        logger.warning("%s", PRECISION_ALONE)
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
    if "knn" in scores and (line := fewer_voters(config.evaluation.knn_k, len(train[1]))):
        logger.warning("%s", line)
    return {
        "dataset": data.label,
        "backbone": description["about"].get("backbone"),
        "weights_sha256": description.get("weights_sha256"),
        **scores,
        "images": {"train": len(train[1]), "test": len(test[1])},
        "data": {**data.model_dump(), "normalise": encoder.spec.normalise},
    }


def labelled_images(
    data: DataConfig, *, channels: int, image_size: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images and labels for training and testing, as an encoder expects them.

    Raises:
        ConfigError: they are missing, unlabelled, or of another size or number of channels.
    """
    check_images(data, channels=channels, image_size=image_size)
    return _labelled(load_dataset(data))


def check_images(data: DataConfig, *, channels: int, image_size: int) -> None:
    """Refuses images that an encoder does not take, before they are loaded, which takes minutes.

    Raises:
        ConfigError: they are of another size or number of channels.
    """
    if data.image_size != image_size:
        raise ConfigError(
            f"data.image_size={data.image_size}: the encoder expects images of "
            f"{image_size} x {image_size} pixels: data.image_size={image_size}"
        )
    if data.channels != channels:
        raise ConfigError(
            f"data.name={data.name}: its images have {counted(data.channels, 'channel')}, "
            f"the encoder expects {channels}"
        )


def _labelled(dataset: Dataset) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def pair(part: ImageSet | None, name: str) -> tuple[Tensor, Tensor]:
        part = None if part is None else part.labelled
        if part is None or part.targets is None:
            hint = " (data.test_share=0.2 holds back a fifth of them)" if name == "test" else ""
            raise ConfigError(
                f"data.name={dataset.name}: there are no labelled {name} images{hint}"
            )
        return part.images, part.targets

    return pair(dataset.train, "training"), pair(dataset.test, "test")
