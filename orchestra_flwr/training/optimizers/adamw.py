"""AdamW: Adam with weight decay that is not part of the gradient.

Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019 (arXiv 1711.05101),
Algorithm 2, with the learning rate in both terms, as in torch.optim.AdamW.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Section
from orchestra_flwr.training.optimizers import Optimizer

Decay = Annotated[float, Field(ge=0, lt=1)]


class AdamWSettings(Section):
    """Options under `optimizer.` for optimizer=adamw."""

    betas: tuple[Decay, Decay] = (0.9, 0.999)  # of the running means of gradients and squares
    epsilon: float = Field(1e-8, gt=0)  # added to the root of the mean square
    weight_decay: float = Field(0.01, ge=0)  # a step takes lr times it of each weight


class AdamW(Optimizer):
    """Each weight moves by about `lr` a step, by its mean gradient over its root mean square."""

    Settings = AdamWSettings

    settings: AdamWSettings

    def __init__(self, settings: AdamWSettings, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(settings, parameters, lr)
        self._means = [torch.zeros_like(p) for p in self.parameters]
        self._squares = [torch.zeros_like(p) for p in self.parameters]
        device = self.parameters[0].device if self.parameters else None
        self._steps = torch.zeros((), dtype=torch.float64, device=device)

    def update(self, gradients: list[Tensor]) -> None:
        """As :meth:`Optimizer.update`."""
        first, second = self.settings.betas
        self._steps.add_(1)
        torch._foreach_mul_(self.parameters, 1 - self.lr * self.settings.weight_decay)
        torch._foreach_lerp_(self._means, gradients, 1 - first)
        torch._foreach_mul_(self._squares, second)
        torch._foreach_addcmul_(self._squares, gradients, gradients, 1 - second)
        # The means start at 0: divided by what they have taken in so far, they are unbiased.
        rate = (self.lr / (1 - first**self._steps)).float()
        spread = (1 - second**self._steps).sqrt().float()
        roots = torch._foreach_sqrt(self._squares)
        torch._foreach_div_(roots, spread)
        torch._foreach_add_(roots, self.settings.epsilon)
        updates = torch._foreach_div(self._means, roots)
        torch._foreach_mul_(updates, rate)
        torch._foreach_sub_(self.parameters, updates)
