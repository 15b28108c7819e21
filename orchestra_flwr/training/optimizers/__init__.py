"""The clients' optimizers: one file an optimizer, found by its name.

None of them uses torch.optim: its first optimizer in a process imports torch's compiler. That takes
4 seconds in every worker, and in a deployment in every client in every round.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from orchestra_flwr.config import Plugin


class Optimizer(Plugin, ABC):
    """Updates parameters from their gradients, all tensors at once.

    A client's optimizer is new in every round, unless the client keeps its state
    (`training.optimizer_state=keep`). The state is never averaged.

    A step may be captured as a CUDA graph: :meth:`update` must not depend on values, and changes
    its state, counters included, in place. A learning rate that changes (`schedule`) is a tensor.

    Class attributes:
        moments: state elements per trained element.

    Args:
        parameters: trained; each must get a gradient in every step.
        lr: learning rate, a number or a () float64 tensor on the parameters' device.

    Attributes:
        settings, parameters: as above.
        lr: the learning rate of the next step.
    """

    moments: ClassVar[int] = 1

    def __init__(self, settings: object, parameters: Iterable[Tensor], lr: float | Tensor) -> None:
        self.settings = settings
        self.parameters = list(parameters)
        self.lr = lr

    @torch.no_grad()
    def step(self) -> None:
        """One update from the parameters' gradients, which are dropped.

        Raises:
            ValueError: a parameter has no gradient.
        """
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if len(gradients) != len(self.parameters):
            raise ValueError("every parameter that is trained needs a gradient")
        self.update(gradients)
        for parameter in self.parameters:
            parameter.grad = None

    @abstractmethod
    def update(self, gradients: list[Tensor]) -> None:
        """Changes the parameters in place.

        Args:
            gradients: one for each parameter, which this may change and keep.
        """

    def state(self) -> dict[str, Tensor]:
        """The optimizer's state after the steps so far, under names of its choice."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Loads what :meth:`state` returned, on any device; called before the first step."""


def named_list(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Tensors, one for each parameter, by names for :meth:`Optimizer.state`."""
    return {f"{name}.{index}": tensor for index, tensor in enumerate(tensors)}


def take_list(name: str, state: Mapping[str, Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Copies of what :func:`named_list` named, on the parameters' device and in their layout."""
    return [
        torch.empty_like(p, requires_grad=False).copy_(state[f"{name}.{index}"])
        for index, p in enumerate(parameters)
    ]
