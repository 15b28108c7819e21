"""The ways to spread images over clients that `partition.name` can choose: one file each."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from orchestra_flwr.config import ConfigError, Plugin
from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data.images import UNLABELLED, ImageSet
from orchestra_flwr.seeding import numpy_generator

Indices = NDArray[np.int64]


class Partition(Plugin, ABC):
    """Which client holds which training images.

    Class attributes:
        needs_labels: whether images without labels are refused before `split` is called.
        without_pixels: whether a partition's own `groups` looks at no pixels, so that a split can
            be tried before images are decoded.
    """

    needs_labels: ClassVar[bool] = True
    without_pixels: ClassVar[bool] = False

    def check_files(self, channels: int, size: int) -> None:
        """Refuses a file that the options name, before images of this kind are read.

        Raises:
            ConfigError: it cannot be read, or does not fit.
        """

    def groups(self, images: ImageSet) -> tuple[Tensor | None, tuple[str, ...]]:
        """The groups that are spread over the clients: by default the classes.

        Args:
            images: all training images.

        Returns:
            `labels` for `split` and `classes` for `names`, as in :class:`ImageSet`.

        Raises:
            ConfigError: the images have no such groups.
        """
        return images.labels, images.classes

    @abstractmethod
    def split(self, labels: Tensor | None, count: int, clients: int, seed: int) -> list[Indices]:
        """Gives every client at least one image and no image to two clients.

        Args:
            labels: of `groups`, int64, (count,), or None.
            count: number of images, at least `clients`.
            seed: the run's seed, the only source of randomness (:mod:`orchestra_flwr.seeding`).

        Returns:
            For each client its images' indices, int64, ascending.

        Raises:
            ConfigError: the images or the number of clients do not allow it.
        """

    def cut_order(
        self, parts: Sequence[Indices], labels: Tensor | None, seed: int
    ) -> Sequence[Indices]:
        """The parts of `split`, each in an order whose end `partition.cut=by_class` leaves out.

        By default class by class, as in the released code of Dec-SSL.
        """
        if labels is None:
            return parts
        of_images = labels.cpu().numpy()
        return [part[np.argsort(of_images[part], kind="stable")] for part in parts]

    @classmethod
    def unread(cls, config: Any) -> dict[str, str]:
        """Without a share nothing is cut."""
        return {"partition.cut": "with partition.share=1"} if config.partition.share == 1 else {}

    def names(self, classes: tuple[str, ...], labels: Tensor | None, clients: int) -> list[str]:
        """The clients' names in the order of `split`, by default "0", "1", ...

        `classes` and `labels` are those of `groups`: empty, and None, without labels.
        """
        return [str(client) for client in range(clients)]


def partition(
    config: PartitionConfig, labels: Tensor | None, count: int, clients: int, seed: int
) -> list[Indices]:
    """Spreads images over clients by the partition that the configuration names.

    Args:
        labels: the images' classes or other groups: int64, (count,), or None.
        seed: the run's seed; 0 gives the published split of the Dirichlet partition.

    Returns:
        For each client the indices of its images, int64, ascending. With `partition.share` below 1
        a random share of them or, with `partition.cut=by_class`, the first in `cut_order`.

    Raises:
        ConfigError: more clients than images, no labels for a partition by labels, an error of the
            partition itself, or a partition that breaks its contract.
    """
    if clients > count:
        raise ConfigError(
            f"federation.clients={clients}: at most one client for each of the {count} images"
        )
    chosen: Partition = config.build()
    if chosen.needs_labels and labels is None:
        raise ConfigError(
            f"partition={config.name}: needs labels, and these images have none, or several "
            "each; use partition=iid"
        )
    if chosen.needs_labels:
        check_all_labelled(f"partition={config.name}", labels)
    parts = chosen.split(labels, count, clients, seed)
    problem = _broken_contract(parts, count, clients)
    if problem:
        raise ConfigError(f"partition={config.name}: {type(chosen).__name__}.split {problem}")
    if config.cut == "by_class":
        ordered = chosen.cut_order(parts, labels, seed)
        return [np.sort(part[: _size(part, config.share)]) for part in ordered]
    return [_subsample(part, config.share, seed, client) for client, part in enumerate(parts)]


def check_all_labelled(asked: str, labels: Tensor | None) -> None:
    """Refuses images of which some have no label, for a split by labels.

    Args:
        asked: the key and the value that need labels.

    Raises:
        ConfigError: says how many have none.
    """
    missing = 0 if labels is None else int((labels == UNLABELLED).sum())
    if missing:
        raise ConfigError(
            f"{asked}: needs labels, and {missing} of the images have none; put them into class "
            "folders, or use partition=iid"
        )


def try_partition(config: PartitionConfig, images: ImageSet, clients: int, seed: int) -> None:
    """Refuses what :func:`partition_by_name` would refuse, given images without their pixels.

    A split by class is tried on the labelled images alone: the others may turn out to be
    unreadable.

    Raises:
        ConfigError: as in :func:`partition_by_name`.
    """
    chosen: Partition = config.build()
    by_class = type(chosen).groups is Partition.groups
    if by_class or chosen.without_pixels:
        tried = images.labelled if by_class and chosen.needs_labels else images
        partition_by_name(config, tried, clients, seed)


def partition_by_name(
    config: PartitionConfig, images: ImageSet, clients: int, seed: int
) -> dict[str, Indices]:
    """:func:`partition` of a set of images, by the clients' names.

    Raises:
        ConfigError: as in :func:`partition` and :meth:`Partition.groups`, or names are not unique.
    """
    chosen: Partition = config.build()
    labels, classes = chosen.groups(images)
    parts = partition(config, labels, len(images), clients, seed)
    names = chosen.names(classes, labels, clients)
    if len(set(names)) != clients:
        raise ConfigError(
            f"partition={config.name}: {type(chosen).__name__}.names must give {clients} "
            "different names"
        )
    return dict(zip(names, parts, strict=True))


def class_counts(parts: Sequence[Indices], labels: Tensor, classes: int) -> Indices:
    """How many images of each class each client holds: int64, (clients, classes).

    If images are UNLABELLED, a last column counts them: (clients, classes + 1).
    """
    all_labels = labels.cpu().numpy()
    unlabelled = all_labels == UNLABELLED
    if unlabelled.any():
        all_labels, classes = np.where(unlabelled, classes, all_labels), classes + 1
    return np.stack([np.bincount(all_labels[part], minlength=classes) for part in parts])


def earth_movers_distance(counts: Indices) -> float:
    """The earth mover's distance (EMD) of clients' class shares from those of all images.

    The mean over the clients of sum_c |p_k(c) - p(c)|, not halved: 0 to 2. From Zhao et al.,
    "Federated Learning with Non-IID Data" (https://arxiv.org/abs/1806.00582).

    Args:
        counts: images by client and class, (clients, classes), at least one image a client.
    """
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1).mean())


def _subsample(part: Indices, share: float, seed: int, client: int) -> Indices:
    """A random share of a client's images, at least one; a larger share contains a smaller one."""
    if share == 1:
        return part
    shuffled = numpy_generator(seed, "share", client).permutation(part)
    return np.sort(shuffled[: _size(part, share)])


def _size(part: Indices, share: float) -> int:
    return max(1, round(share * len(part)))


def _broken_contract(parts: Sequence[Indices], count: int, clients: int) -> str:
    """What is wrong with a split, or ""."""
    count_of_parts = len(parts) if hasattr(parts, "__len__") else parts
    if count_of_parts != clients:
        return f"must give the images of {clients} clients, not of {count_of_parts}"
    other = next((part for part in parts if not isinstance(part, np.ndarray)), None)
    if other is not None:
        return f"must give an array of indices for each client, not a {type(other).__name__}"
    if any(len(part) == 0 for part in parts):
        return "must give every client an image"
    indices = np.concatenate(parts)
    if indices.dtype != np.int64 or indices.min() < 0 or indices.max() >= count:
        return f"must give indices from 0 to {count - 1}, int64"
    if len(np.unique(indices)) != len(indices):
        return "must not give an image twice"
    return ""
