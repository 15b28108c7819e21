"""Stochastic gradient descent with momentum: the same bits as torch.optim.SGD."""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Section
from orchestra_flwr.training.optimizers import Optimizer, named_list, take_list


class SGD(Optimizer):
    """The running gradient is momentum times the previous one plus the step's gradient."""

    class Settings(Section):
        momentum: float = Field(0.9, ge=0, lt=1)  # of the running gradient
        weight_decay: float = Field(1e-4, ge=0)  # L2 penalty, added to the gradient

    settings: Settings

    _running: list[Tensor] | tuple[()] = ()  # nothing before the first step

    def update(self, gradients: list[Tensor]) -> None:
        """Adds the gradients to the running one, and moves the parameters by it."""
        torch._foreach_add_(gradients, self.parameters, alpha=self.settings.weight_decay)
        if not self._running:
            self._running = gradients  # which this optimizer owns from here on
        else:
            torch._foreach_mul_(self._running, self.settings.momentum)
            torch._foreach_add_(self._running, gradients)
        if isinstance(self.lr, Tensor):
            changes = torch._foreach_mul(self._running, -self.lr.float())
            torch._foreach_add_(self.parameters, changes)
        else:
            torch._foreach_add_(self.parameters, self._running, alpha=-self.lr)

    def state(self) -> dict[str, Tensor]:
        return named_list("running", self._running)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._running = take_list("running", state, self.parameters)
