"""FedProx: local training stays near the received parameters.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv 1812.06127),
equation 2: mu / 2 times the squared distance of the parameters to those received. mu is the weight.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from orchestra_flwr.methods import Batch, Method, Received, Step
from orchestra_flwr.terms import Term


class Proximal(Term):
    """Half the squared distance of the method's trained parameters to those received.

    The received parameters are this round's, before merging. Local parameters have no such term.
    """

    needs_received: ClassVar[bool] = True

    _trained: Sequence[Tensor] = ()
    _received: Sequence[Tensor] = ()  # in the order of those trained

    def start_round(self, method: Method, received: Received) -> None:
        """Stores this round's received parameters."""
        assert received.state is not None
        pairs = [
            (parameter, received.state[name].to(parameter.device))
            for name, parameter in method.named_parameters()
            if parameter.requires_grad and name in received.state
        ]
        self._trained, self._received = [w for w, _ in pairs], [w for _, w in pairs]

    def loss(self, method: Method, batch: Batch, step: Step) -> Tensor:
        """||w - w_received||^2 / 2, a scalar."""
        pairs = zip(self._trained, self._received, strict=True)
        return torch.stack([(w - sent).square().sum() for w, sent in pairs]).sum() / 2
