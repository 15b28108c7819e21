"""The ways in which clients' images can differ in looks, for `shift.name`: one file each."""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.config import Plugin
from orchestra_flwr.config.choices import ShiftConfig
from orchestra_flwr.data.images import ImageSet
from orchestra_flwr.seeding import derive, numpy_generator

EVEN_ALPHA = 1e9  # shares are even from here on
FLOAT_BITS = 53  # of a float64's fraction
UNUSED_BITS = 63 - FLOAT_BITS  # of a derived seed


class Shift(Plugin, ABC):
    """How a client's training images differ in looks, apart from their classes.

    A simulation applies it when it selects a client's images, in every round alike; test images and
    the images of real clients stay as they are.
    """

    @abstractmethod
    def apply(self, images: Tensor, indices: Tensor, client: str, seed: int) -> Tensor:
        """Changes a client's images; the arguments alone decide every bit.

        The result for an image must not depend on the images beside it, nor on the round: use
        :func:`drawn_variants` and :func:`uniform`, or draw from `torch_generator(seed, "shift",
        client, index)` of :mod:`orchestra_flwr.seeding`, without `index` for a client's common
        values.

        Args:
            images: uint8, (n, C, S, S); must not be changed in place.
            indices: their positions among the data set's training images, int64, (n,).

        Returns:
            uint8, (n, C, S, S), on the images' device.
        """

    def check_images(self, images: ImageSet) -> None:
        """Refuses training images that it cannot change, before a run starts.

        Raises:
            ConfigError: one line says what is missing.
        """


def drawn_variants(count: int, alpha: float, indices: Tensor, client: str, seed: int) -> Tensor:
    """Which of `count` variants each image gets; most of a client's images get one of a few.

    A client's shares of the variants are drawn from Dirichlet(alpha / count), and each image's
    variant by these shares, with a random number that depends on the image alone.

    Args:
        alpha: the smaller, the fewer variants a client has.
        indices: the images' positions among the training images, int64, (n,).

    Returns:
        int64, (n,), on the CPU.
    """
    concentration = np.full(count, min(alpha, EVEN_ALPHA) / count)
    shares = numpy_generator(seed, "shift", "variants", client).dirichlet(concentration)
    ends = shares.cumsum()
    ends /= ends[-1]
    # A draw equal to an end belongs to the next variant: a variant without a share gets none.
    draws = uniform(indices, seed, "variant").numpy()
    return torch.as_tensor(np.searchsorted(ends[:-1], draws, side="right"), dtype=torch.int64)


def uniform(indices: Tensor, seed: int, purpose: str) -> Tensor:
    """A number in [0, 1) for each image, always the same one: float64, (n,), on the CPU."""
    draws = [derive(seed, "shift", index, purpose) >> UNUSED_BITS for index in indices.tolist()]
    return torch.tensor(draws, dtype=torch.float64).div_(2**FLOAT_BITS)


def shift_images(
    config: ShiftConfig, images: Tensor, indices: Tensor, client: str, seed: int
) -> Tensor:
    """:meth:`Shift.apply` of the shift that the configuration names.

    Raises:
        ConfigError: the result has another shape, type or device than the images.
    """
    shift: Shift = config.build()
    shifted = shift.apply(images, indices, client, seed)
    fits = isinstance(shifted, Tensor) and _kind(shifted) == _kind(images)
    wanted = f"a Tensor, uint8 {tuple(images.shape)}, on {images.device}"
    config.check_returned("apply", shifted, fits, wanted)
    return shifted


def _kind(images: Tensor) -> tuple[object, ...]:
    return images.shape, images.dtype, images.device
