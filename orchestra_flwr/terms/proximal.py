"""FedProx: local training stays near what the server sent.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv 1812.06127),
equation 2: mu / 2 times the squared distance of the parameters to those received. mu is the weight.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from orchestra_flwr.config import Config
from orchestra_flwr.methods import Batch, Method, Received, Role, Step
from orchestra_flwr.terms.base import Term


class Proximal(Term):
    """Half the squared distance to the received parameters that are trained and shared."""

    needs_received: ClassVar[bool] = True

    def __init__(self, settings: object, config: Config, method: Method) -> None:
        super().__init__(settings, config, method)
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def start_round(self, method: Method, received: Received) -> None:
        """Keeps the received parameters of this round: before merging, as the server sent them."""
        assert received.state is not None
        self._pairs = [
            (parameter, received.state[name].to(parameter.device))
            for name, parameter in method.named_parameters()
            if parameter.requires_grad and method.role(name) is Role.SHARED
        ]

    def loss(self, method: Method, batch: Batch, step: Step) -> Tensor:
        """||w - w_received||^2 / 2, a scalar."""
        distances = [(w - received).square().sum() for w, received in self._pairs]
        return torch.stack(distances).sum() / 2
