"""SGD with momentum: the same bits as torch.optim.SGD, without its start-up.

Making the first optimizer of torch.optim in a process imports the whole compiler, 4 seconds that
every worker, and in a deployment every client in every round, would spend.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class SGD:
    """Stochastic gradient descent with momentum and weight decay on lists of tensors at once.

    Args:
        parameters: what is trained; each must get a gradient in every step.
        lr: learning rate.
        momentum: of the running gradient, 0 to 1.
        weight_decay: L2 penalty, added to the gradient.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, momentum: float, weight_decay: float
    ) -> None:
        self.parameters = list(parameters)
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._running: list[Tensor] = []

    @torch.no_grad()
    def step(self) -> None:
        """One update from the parameters' gradients, which are dropped.

        Raises:
            ValueError: a parameter has no gradient.
        """
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if len(gradients) != len(self.parameters):
            raise ValueError("every parameter that is trained needs a gradient")
        torch._foreach_add_(gradients, self.parameters, alpha=self.weight_decay)
        if not self._running:
            self._running = gradients  # their owner from here on
        else:
            torch._foreach_mul_(self._running, self.momentum)
            torch._foreach_add_(self._running, gradients)
        torch._foreach_add_(self.parameters, self._running, alpha=-self.lr)
        for parameter in self.parameters:
            parameter.grad = None
