"""What can be added to any method's loss beside its own: one file a term, found by its name."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from orchestra_flwr.config import Config, Plugin
from orchestra_flwr.methods import Batch, Method, Received, Role, Step


class Term(nn.Module, Plugin, ABC):
    """A part of the loss; its weight is `terms.<name>.weight`, and at 0 nothing is built.

    Class attributes:
        Settings: its own options under `terms.<name>.`, without the weight.
        needs_received: whether :meth:`start_round` needs the state as received.

    Args:
        settings: its own options, checked.
        config: of the run.
        method: the one that is trained; its modules are not the term's.

    Attributes:
        settings: as above.
        capacity: maximum number of clients of a run; None: any number.
    """

    needs_received: ClassVar[bool] = False

    capacity: int | None = None

    def __init__(self, settings: object, config: Config, method: Method) -> None:
        super().__init__()
        self.settings = settings

    def role(self, name: str) -> Role:
        """The role of a tensor of this term's own modules, by its full name within them.

        Raises:
            ValueError: the name is not known; a term without tensors has none.
        """
        raise ValueError(f"{type(self).__name__} has no tensor {name}")

    def start_round(self, method: Method, received: Received) -> None:
        """Called on the client before its first step of a round, after merging."""

    @abstractmethod
    def loss(self, method: Method, batch: Batch, step: Step) -> Tensor:
        """This term's scalar, before it is weighted.

        Args:
            method: the one that is being trained.
            batch: of the step.
            step: the method's own losses and features of this batch.
        """

    def measures(self, method: Method, step: Step, loss: Tensor) -> Mapping[str, Tensor]:
        """Named scalars to be recorded, of a client's first step in a round.

        Args:
            method: the one that is being trained.
            step: as for :meth:`loss`.
            loss: what :meth:`loss` returned for it.
        """
        return {}

    def end_round(self) -> None:
        """Called on the client after its last step of a round."""
