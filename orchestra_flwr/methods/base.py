"""What a method is: modules, a role for every tensor, views, a loss, and what the server makes.

Training, strategy and client know only this class. A new method is one file in this folder that
defines a subclass, and one file in `conf/method/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor, nn

from orchestra_flwr.config import Config, Section, parse
from orchestra_flwr.data import Recipe
from orchestra_flwr.models import Backbone
from orchestra_flwr.seeding import ClientSeed


class Role(Enum):
    """Who owns a tensor of a method's state."""

    SHARED = "shared"  # trained by the clients, averaged by the server, sent both ways
    SERVER = "server"  # made by the server, sent down only
    LOCAL = "local"  # the client's own: kept from round to round, never leaves it
    PRIVATE = "private"  # never leaves the client, gone after a round


@dataclass(frozen=True)
class Batch:
    """One local step's input.

    Attributes:
        images: (B,) which of the client's images these are.
        views: one normalised (B, C, H, W) tensor for each of the method's recipes.
        rotations: for each view the (B,) quarter turns, 0 to 3; None if its recipe has none.
        labels: (B,) classes of the images; None for methods that need no labels.
    """

    images: Tensor
    views: tuple[Tensor, ...]
    rotations: tuple[Tensor | None, ...]
    labels: Tensor | None = None


@dataclass(frozen=True)
class Contribution:
    """What a client gives the server beside its shared state at the end of a round.

    Attributes:
        arrays: name to (rows, width) tensor; rows may differ between clients.
        smallest_cluster: different images behind the row with the fewest of them; 0 where no row
            was made; None where the rows do not stand for images.
    """

    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    smallest_cluster: int | None = None


class Method(nn.Module, ABC):
    """A self-supervised (or supervised) method that clients train together.

    Class attributes:
        Settings: the method's own options under `method.` in the configuration.
        roles: role of every child module and buffer, by its name. Clients that keep state know two
            children by their names: the trained `backbone`, and the `predictor` of methods that
            have one.
        needs_first_round: whether the server's state is made in a first round without training.
        may_contribute_nothing: whether a client may send arrays of no rows, as one must that has
            fewer than `privacy.k_min` images.

    Attributes:
        settings: the options, checked.
        classes: of the labels that it learns from; 0: it needs none, and gets none to see.
        class_names: the classes in the order of their labels; (): as the data set numbers them.
    """

    Settings: ClassVar[type[Section]]
    roles: ClassVar[Mapping[str, Role]]
    needs_first_round: ClassVar[bool] = False
    may_contribute_nothing: ClassVar[bool] = False

    settings: Section
    classes: int = 0
    class_names: tuple[str, ...] = ()

    @abstractmethod
    def __init__(self, config: Config, channels: int) -> None:
        super().__init__()
        self.settings = parse(self.Settings, config.method.options, "method")

    @property
    def needs_labels(self) -> bool:
        """Whether it learns from labels."""
        return self.classes > 0

    @abstractmethod
    def recipes(self) -> Sequence[Recipe]:
        """The augmentation of each view of a batch."""

    @abstractmethod
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Named scalar parts of the loss; their sum is minimised."""

    @abstractmethod
    def backbones(self) -> dict[str, Backbone]:
        """The backbones worth evaluating, the one to keep first."""

    def role(self, name: str) -> Role:
        """The role of a child module or buffer, where the configuration has a say in it."""
        return self.roles[name]

    def start_own_state(self) -> None:
        """Makes local state from what was received; called before a client's first training."""

    def start_round(self) -> None:
        """Called on the client before its first step of a round."""

    def observe(self, batch: Batch) -> None:
        """Takes in a batch of the first round, in which nothing is trained."""

    def end_round(self, images: Tensor, seed: ClientSeed) -> Contribution:
        """What the client contributes after its last step.

        Args:
            images: (n, C, H, W) uint8, all of the client's.
            seed: the client's randomness in this round.
        """
        return Contribution()

    def no_contribution(self) -> Contribution:
        """Arrays without rows: what a client sends that may not contribute."""
        return Contribution(
            {name: torch.zeros(0, width) for name, (_, width) in self.contribution_limits().items()}
        )

    def contribution_limits(self) -> dict[str, tuple[int, int]]:
        """For every array that clients contribute: the most rows, and the exact width."""
        return {}

    def update_server_state(
        self, contributions: Mapping[str, Tensor], generator: torch.Generator
    ) -> None:
        """Makes the server's state from the contributions of all clients, stacked by rows.

        Not called in a round in which clients could contribute and none did.
        """

    def state(self, role: Role) -> dict[str, Tensor]:
        """The floating-point tensors of a role by name, in a fixed order, sharing memory.

        BatchNorm's batch counters are integers that nothing reads; they stay where they are.
        """
        return {name: tensor for name, tensor in self._tensors(role) if tensor.is_floating_point()}

    def _tensors(self, role: Role) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.state_dict(keep_vars=True).items():
            if self.role(name.partition(".")[0]) is role:
                yield name, tensor.detach()
