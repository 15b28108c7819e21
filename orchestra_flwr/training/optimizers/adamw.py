"""AdamW: Adam with weight decay that is not part of the gradient.

Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019 (arXiv 1711.05101),
Algorithm 2, with the learning rate in both terms, as in torch.optim.AdamW.
"""

import torch
from pydantic import Field
from torch import Tensor

from orchestra_flwr.training.optimizers.adam import Adam


class AdamW(Adam):
    """Adam's steps, each of which also shrinks every weight by the same share."""

    class Settings(Adam.Settings):
        weight_decay: float = Field(0.01, ge=0)  # each step shrinks a weight by lr times this share

    def decay(self, gradients: list[Tensor]) -> None:
        """Shrinks the parameters; the gradients stay as they are."""
        factor = 1 - self.lr * self.settings.weight_decay
        torch._foreach_mul_(
            self.parameters, factor.float() if isinstance(factor, Tensor) else factor
        )
