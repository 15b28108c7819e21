"""What clients send beside their state: what it is, and how much of an image may be in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from orchestra_flwr.config import ConfigError
from orchestra_flwr.privacy.accounting import ClusteringMechanism, calibrate


@dataclass(frozen=True)
class Release:
    """What a method's clients contribute at the end of a round, known before anything is built.

    Attributes:
        rows: for every array that clients contribute the most rows, and the exact width.
        label: what the rows are, in the plural, for messages.
        least_images: different images that each row stands for, at least; None: rows do not stand
            for images.
        longest: L2 norm of a row at most; None: any.
        longest_by_images: whether `longest` is that for each image of the client.
        may_be_empty: whether a client may send arrays of no rows, as one must that has fewer than
            `least_images` images.
        first_round: in which clients contribute for the first time; 0: before anything is trained.
        epsilon: of one differentially private release, at `delta`; None: it is not private so.
        delta: see `epsilon`.
        made_private_by: what would make it private, such as "clustering=private"; "": nothing.
        exposes: what of single images leaves a client, and the key that says so, such as "the
            features of single images (clustering=features)"; "": nothing does. Only simulations
            take part in such a run.
    """

    rows: Mapping[str, tuple[int, int]]
    label: str
    least_images: int | None = None
    longest: float | None = None
    longest_by_images: bool = False
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

    def empty(self) -> Contribution:
        """Arrays without rows: what a client sends that may not contribute."""
        return Contribution({name: torch.zeros(0, width) for name, (_, width) in self.rows.items()})

    def check_images(self, count: int) -> None:
        """Refuses what differential privacy does not mean anything for, with so many images.

        Raises:
            ConfigError: a delta at which a mechanism may publish a whole image and keep its word.
        """
        if self.epsilon is not None and self.delta is not None and self.delta >= 1 / count:
            raise ConfigError(
                f"privacy.delta={self.delta:g}: must be below 1 / {count} = {1 / count:.3g}, "
                "one by the images of a client"
            )


@dataclass(frozen=True)
class Contribution:
    """What one client sends at the end of a round, as its method's :class:`Release` says.

    Attributes:
        arrays: name to (rows, width) tensor; rows may differ between clients.
        smallest_group: different images behind the row with the fewest of them; 0 where no row
            was made; None where the rows do not stand for images.
    """

    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    smallest_group: int | None = None
