"""Images in memory: a set of them, a data set with training and test images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from logging import getLogger

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestra_flwr.config import ConfigError
from orchestra_flwr.machine_limits import usable_memory

MAX_SIZE = 512  # pixels that `data.image_size` can be
UNLABELLED = -1  # the label of an image without one

logger = getLogger("orchestra_flwr.data")


@dataclass(frozen=True)
class ImageSet:
    """Square images of one size, with their labels where there are any.

    Attributes:
        images: uint8, (N, C, S, S).
        labels: int64, (N,), indices into `classes`, UNLABELLED for images without a label; None if
            no image has one.
        classes: the names of the classes, sorted; empty without labels.
        files: the path of each training image below `data.root`, with slashes; empty if images are
            not files.
        tags: bool, (N, K), which of the K classes each image shows, where an image may show
            several: `labels` is None then.

    Raises:
        ValueError: shapes, types or labels do not fit together.
    """

    images: Tensor
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    tags: Tensor | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.images.shape)
        if self.images.dtype != torch.uint8 or len(shape) != 4 or shape[2] != shape[3]:
            raise ValueError(f"images must be uint8 (N, C, S, S), not {self.images.dtype} {shape}")
        if len(self.files) not in (0, shape[0]):
            raise ValueError(f"there are {len(self.files)} names of files for {shape[0]} images")
        if self.tags is not None:
            wanted = (shape[0], len(self.classes))
            if self.tags.dtype != torch.bool or self.tags.shape != wanted:
                raise ValueError(
                    f"tags must be bool {wanted}, not {self.tags.dtype} {tuple(self.tags.shape)}"
                )
            if self.labels is not None:
                raise ValueError("images have either labels or tags")
        if self.labels is None:
            return
        if self.labels.dtype != torch.int64 or self.labels.shape != shape[:1]:
            raise ValueError(
                f"labels must be int64 ({shape[0]},), not {self.labels.dtype} "
                f"{tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def targets(self) -> Tensor | None:
        """What encoders are evaluated by: `labels`, else `tags`; None without either."""
        return self.tags if self.labels is None else self.labels

    @property
    def labelled(self) -> ImageSet:
        """The images that have a label; this set itself if all have one, or none has."""
        if self.labels is None or bool((self.labels != UNLABELLED).all()):
            return self
        return self.select((self.labels != UNLABELLED).nonzero().squeeze(1))

    def select(self, indices: Tensor) -> ImageSet:
        """The images at `indices` (int64, (n,), on this set's device), in that order."""
        labels = None if self.labels is None else self.labels[indices]
        tags = None if self.tags is None else self.tags[indices]
        files = tuple(self.files[index] for index in indices.tolist()) if self.files else ()
        return ImageSet(self.images[indices], labels, self.classes, files, tags)

    def to(self, device: torch.device | str) -> ImageSet:
        """The images on `device`, not copied if they are already there."""
        labels = None if self.labels is None else self.labels.to(device)
        tags = None if self.tags is None else self.tags.to(device)
        return ImageSet(self.images.to(device), labels, self.classes, self.files, tags)


@dataclass(frozen=True)
class Dataset:
    """The images of a run.

    Attributes:
        name: the data set's name in the configuration.
        train: the images that are spread over the clients.
        test: held-out labelled images, or None.
        skipped: (path, reason) of each file that could not be read.
        unread: paths of skipped files that may be readable later, because permissions, a disk or a
            missing library were the reason.
        shown: (N,) bool, the training images whose labels clients use (`labels.fraction`); None if
            that is not known.
        shorter_side: the lesser of height and width of a typical image before it was resized, in
            pixels; None if that is not known.
    """

    name: str
    train: ImageSet
    test: ImageSet | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()
    shown: Tensor | None = None
    shorter_side: int | None = None

    @property
    def channels(self) -> int:
        """Colour channels of an image: 1 or 3."""
        return self.train.images.shape[1]

    @property
    def image_size(self) -> int:
        """Height and width of an image in pixels."""
        return self.train.images.shape[2]


def check_memory_for(count: int, size: int) -> None:
    """Refuses colour images of `size` x `size` pixels that this machine's memory cannot hold.

    Raises:
        ConfigError: names the keys that decide it, and both sizes.
    """
    needed = 3 * count * size**2
    memory = usable_memory()
    if needed > memory:
        raise ConfigError(
            f"data.image_size={size}: {count:,} images take {needed / 1e9:,.0f} GB, and this "
            f"machine has {memory / 1e9:,.1f} GB; data.train_limit takes fewer"
        )


def shrink_warning(dataset: Dataset) -> str | None:
    """A warning about images that lose more than half of their resolution; None for others."""
    side, size = dataset.shorter_side, dataset.image_size
    if side is None or size >= side / 2 or size == MAX_SIZE:
        return None
    larger, full = min(2 * size, MAX_SIZE), min(side, MAX_SIZE)
    return (
        f"images whose shorter side is {side} pixels are shrunk to {size}: "
        f"data.image_size={larger} keeps more of what they show, but takes "
        f"{(larger / size) ** 2:.0f} times as long and as much memory "
        f"({full} pixels: {(full / size) ** 2:.0f} times)"
    )


def first_occurrences(images: Tensor) -> Tensor:
    """For each image the position of the first image with the same pixels.

    Args:
        images: uint8, (n, C, H, W), on any device.

    Returns:
        int64, (n,), on the CPU; 0, 1, ..., n - 1 if all images differ.
    """
    first: dict[bytes, int] = {}
    digests = map(_digest, images.cpu().numpy())
    return torch.tensor([first.setdefault(d, i) for i, d in enumerate(digests)], dtype=torch.int64)


def count_distinct(images: Iterable[Tensor], enough: int) -> int:
    """How many different images, uint8 (C, H, W), there are, counted up to `enough`.

    The rest is not looked at.
    """
    seen: set[bytes] = set()
    for image in images:
        if len(seen) >= enough:
            break
        seen.add(_digest(image.cpu().numpy()))
    return len(seen)


def _digest(image: NDArray[np.uint8]) -> bytes:
    return blake2b(image.tobytes(), digest_size=16).digest()


def warn_of_unlabelled(where: str, part: str, missing: int, count: int) -> None:
    """Logs how many of the `count` images of a part, "training" or "test", have no label."""
    if missing:
        then = "they are left out" if part == "test" else "they train without"
        text = "%s: %d of %d %s images have no label; %s"
        logger.warning(text, where, missing, count, part, then)
