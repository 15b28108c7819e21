"""The ways in which clients' images can differ in looks, for `shift.name`: one file each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from orchestra_flwr.config import ConfigError, Plugin
from orchestra_flwr.config.sections import ShiftConfig


class Shift(Plugin, ABC):
    """How a client's training images differ in looks, beside their classes.

    A simulation applies it once, where a client's images are selected; test images and the images
    of real clients stay as they are.

    Args:
        settings: the shift's own options, an object of its `Settings`.
    """

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def apply(self, images: Tensor, indices: Tensor, client: str, seed: int) -> Tensor:
        """Changes a client's images; the arguments alone decide every bit.

        What becomes of an image must not depend on the images beside it: draw from
        `torch_generator(seed, "shift", client, index)` of :mod:`orchestra_flwr.seeding`, or without
        the index what all of a client's images share.

        Args:
            images: uint8, (n, C, S, S); must not be changed in place.
            indices: their positions among the data set's training images, int64, (n,).
            client: the client's name.
            seed: the run's seed.

        Returns:
            uint8, (n, C, S, S), on the images' device.
        """


def shift_images(
    config: ShiftConfig, images: Tensor, indices: Tensor, client: str, seed: int
) -> Tensor:
    """:meth:`Shift.apply` of the shift that the configuration names.

    Raises:
        ConfigError: the result has another shape, type or device than the images.
    """
    shift: Shift = config.build()
    shifted = shift.apply(images, indices, client, seed)
    actual = (tuple(shifted.shape), shifted.dtype, shifted.device)
    expected = (tuple(images.shape), images.dtype, images.device)
    if actual != expected:
        raise ConfigError(
            f"shift={config.name}: {type(shift).__name__}.apply must return {_text(expected)}, "
            f"not {_text(actual)}"
        )
    return shifted


def _text(values: tuple[object, ...]) -> str:
    shape, dtype, device = values
    return f"{str(dtype).removeprefix('torch.')} {shape} on {device}"
