"""Mixins for abilities that only some methods have, as in `class Mine(StartsRounds, Method)`.

Two more: :class:`~orchestra_flwr.methods.contributing.Contributes` and
:class:`~orchestra_flwr.methods.labels.LearnsLabels`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.methods.batch import Step


@dataclass(frozen=True)
class Received:
    """The input of a client's round.

    Attributes:
        client: its name.
        index: its number among all clients of the run, which never changes; None: not known.
        population: how many clients of the run have numbers so far; None: not known.
        round: the round, from 0.
        images: (n, C, H, W) uint8, all of the client's.
        labels: (n,) their classes, as in :class:`Batch`; None for methods that learn from none.
        state: shared and server tensors by name as the server sent them, before any merging; None
            where no term asks for them (`needs_received`).
    """

    client: str
    index: int | None
    round: int
    images: Tensor
    state: Mapping[str, Tensor] | None = None
    population: int | None = None
    labels: Tensor | None = None


class StartsRounds(ABC):
    """Prepares something on the client for each round."""

    @abstractmethod
    def start_round(self, received: Received) -> None:
        """Called on the client before its first step of a round, after merging."""


class ChecksClients(ABC):
    """Needs something of each client's own, which no server can send."""

    @classmethod
    @abstractmethod
    def check_client(cls, config: Config, client: str) -> None:
        """Called where the client runs, before it takes part.

        Args:
            config: of the run; on a real client with the options of its own command.

        Raises:
            ConfigError: what is missing, in one line.
        """


class KeepsState(ABC):
    """Has tensors that are local where clients keep state (`merging`)."""

    @abstractmethod
    def keep_locally(self) -> None:
        """Makes these tensors local; called once, before any role is read."""

    @abstractmethod
    def start_local_state(self) -> None:
        """Initialises them from the received state, before a client's first training."""


class BoundsInformation(ABC):
    """Has a loss that bounds the information that two views share given the client."""

    @abstractmethod
    def information(self, step: Step) -> Tensor:
        """The lower bound in nats, a scalar without gradient."""


class KnowsChance(ABC):
    """Has losses whose value is known for a network that has learned nothing.

    A run whose loss stays at that value reports it.
    """

    @abstractmethod
    def chance_losses(self, batch_size: int) -> dict[str, float]:
        """The value of each such loss, by name."""


class ClipsGradients:
    """Clips the gradients of every step.

    Attributes:
        gradient_norm: maximal L2 norm of all gradients of a step together; None: not clipped.
    """

    gradient_norm: float | None
