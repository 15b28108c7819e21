"""Releases: what clients send beside their state, and the privacy of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from orchestra_flwr.config import ConfigError
from orchestra_flwr.privacy.accounting import ClusteringMechanism, calibrate


@dataclass(frozen=True)
class Release:
    """What a method's clients contribute at the end of a round, by the configuration alone.

    Attributes:
        rows: for every array its maximum number of rows, and its width.
        label: what the rows are, in the plural, for messages.
        min_images: different images that each row stands for, at least; None: rows do not stand
            for images.
        max_norm: of a row (L2); None: any.
        norm_per_image: whether `max_norm` is multiplied by the client's number of images.
        may_be_empty: whether a client may send no rows, as with fewer than `min_images` images.
        first_round: in which clients contribute for the first time; 0: before anything is trained.
        epsilon: of one release, at `delta`; None: releases are not differentially private.
        delta: see `epsilon`.
        made_private_by: an option that would make it private, such as "clustering=private".
        exposes: data of single images that leaves a client, with the option's key, such as "the
            features of single images (clustering=features)". Only simulations may run it.
    """

    rows: Mapping[str, tuple[int, int]]
    label: str
    min_images: int | None = None
    max_norm: float | None = None
    norm_per_image: bool = False
    may_be_empty: bool = False
    first_round: int = 1
    epsilon: float | None = None
    delta: float | None = None
    made_private_by: str = ""
    exposes: str = ""

    @property
    def is_private(self) -> bool:
        """Whether it is differentially private."""
        return self.epsilon is not None

    @property
    def mechanism(self) -> ClusteringMechanism | None:
        """The noise of one release; None: there is none. The first call takes seconds."""
        if self.epsilon is None or self.delta is None:
            return None
        return calibrate(self.epsilon, self.delta)

    def empty(self) -> "Contribution":
        """Arrays without rows, for a client that may not contribute."""
        return Contribution({name: torch.zeros(0, width) for name, (_, width) in self.rows.items()})

    def check(self, contribution: Any) -> None:
        """Refuses, before it leaves the client, what `end_round` returned and is not as announced.

        Raises:
            ValueError: no :class:`Contribution`, missing arrays, arrays of another shape, or rows
                without noise of fewer than `min_images` images or of an unknown number.
        """
        if not isinstance(contribution, Contribution):
            kind = type(contribution).__name__
            raise ValueError(f"end_round must return a Contribution, and returned a {kind}")
        arrays: Mapping[str, Any] = contribution.arrays
        smallest = contribution.smallest_group
        if missing := [name for name in self.rows if name not in arrays]:
            raise ValueError(
                f"end_round contributed {', '.join(arrays) or 'nothing'}, and release(config) "
                f"announces {', '.join(missing)}"
            )
        for name, (rows, width) in self.rows.items():
            array = arrays[name]
            if not isinstance(array, Tensor):
                kind = type(array).__name__
                raise ValueError(f"end_round: {name} must be a tensor, and is a {kind}")
            if array.dim() != 2 or len(array) > rows or array.shape[1] != width:
                raise ValueError(
                    f"end_round: {name} of shape {tuple(array.shape)}, and release(config) "
                    f"announces (up to {rows}, {width})"
                )
        if self.min_images is None or self.is_private or not any(len(arrays[n]) for n in self.rows):
            return
        if smallest is None:
            raise ValueError(
                f"end_round must say smallest_group, since release(config) has "
                f"min_images={self.min_images}"
            )
        if smallest < self.min_images:
            raise ValueError(
                f"end_round made rows of {smallest} images, and release(config) has "
                f"min_images={self.min_images}"
            )

    def check_images(self, count: int) -> None:
        """Refuses a delta that allows a mechanism to publish one of `count` images.

        Raises:
            ConfigError: delta is at least 1 / count.
        """
        if self.epsilon is not None and self.delta is not None and self.delta >= 1 / count:
            raise ConfigError(
                f"privacy.delta={self.delta:g}: must be below 1 / {count} = {1 / count:.3g}, "
                f"since a client has {count} images"
            )


@dataclass(frozen=True)
class Contribution:
    """What one client sends at the end of a round, as its method's :class:`Release` says."""

    # Name to (rows, width); rows may differ between clients.
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    # Different images behind the row with the fewest of them; 0 where no row was made; None where
    # the rows do not stand for images.
    smallest_group: int | None = None
