"""Adam, with an L2 penalty that is part of the gradient.

Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015 (arXiv 1412.6980),
Algorithm 1, with weight decay as in torch.optim.Adam.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Section
from orchestra_flwr.training.optimizers import Optimizer, named_list, take_list

Decay = Annotated[float, Field(ge=0, lt=1)]


class Adam(Optimizer):
    """A step moves a weight by `lr` times its mean gradient over its root mean square gradient."""

    class Settings(Section):
        betas: tuple[Decay, Decay] = (0.9, 0.999)  # of the running means of gradients and squares
        epsilon: float = Field(1e-8, gt=0)  # added to the root of the mean square
        weight_decay: float = Field(0.0, ge=0)  # L2 penalty, added to the gradient

    moments: ClassVar[int] = 2

    settings: Settings

    def __init__(
        self, settings: Settings, parameters: Iterable[Tensor], lr: float | Tensor
    ) -> None:
        super().__init__(settings, parameters, lr)
        self._means = [torch.zeros_like(p) for p in self.parameters]
        self._squares = [torch.zeros_like(p) for p in self.parameters]
        device = self.parameters[0].device if self.parameters else None
        self._steps = torch.zeros((), dtype=torch.float64, device=device)

    def update(self, gradients: list[Tensor]) -> None:
        """Updates both running means, and moves the parameters by their bias-corrected ratio."""
        self.decay(gradients)
        first, second = self.settings.betas
        self._steps.add_(1)
        torch._foreach_lerp_(self._means, gradients, 1 - first)
        torch._foreach_mul_(self._squares, second)
        torch._foreach_addcmul_(self._squares, gradients, gradients, 1 - second)
        # The means start at 0: divided by the weights they have summed so far, they are unbiased.
        rate = (self.lr / (1 - first**self._steps)).float()
        spread = (1 - second**self._steps).sqrt().float()
        roots = torch._foreach_sqrt(self._squares)
        torch._foreach_div_(roots, spread)
        torch._foreach_add_(roots, self.settings.epsilon)
        updates = torch._foreach_div(self._means, roots)
        torch._foreach_mul_(updates, rate)
        torch._foreach_sub_(self.parameters, updates)

    def decay(self, gradients: list[Tensor]) -> None:
        """Applies weight decay before the means are updated; changes gradients or parameters."""
        if self.settings.weight_decay:
            torch._foreach_add_(gradients, self.parameters, alpha=self.settings.weight_decay)

    def state(self) -> dict[str, Tensor]:
        lists = named_list("means", self._means) | named_list("squares", self._squares)
        return {**lists, "steps": self._steps}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._means = take_list("means", state, self.parameters)
        self._squares = take_list("squares", state, self.parameters)
        self._steps.copy_(state["steps"])
