"""FedBN: BatchNorm stays with the client.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021
(arXiv 2102.07623): clients whose images differ in looks share everything but their norms.
"""

from __future__ import annotations

from torch.nn.modules.batchnorm import _BatchNorm

from orchestra_flwr.config import ConfigError
from orchestra_flwr.merging.base import ClientState, Merging
from orchestra_flwr.methods import Role
from orchestra_flwr.training import Learner
from orchestra_flwr.training.learner import Reassign, full_name


class FedBN(Merging):
    """The parameters and statistics of every BatchNorm are local; all else is shared.

    Norms are found by their type, in encoders, targets, heads and terms. In its first round a
    client's norms are as every model of the run begins; from then on they are its own.

    The server's model keeps norms that were never trained: before it is evaluated or saved, their
    statistics are taken anew from the server's own images (`evaluation.recalibrated`).
    """

    remembers = False  # the norms are local state, which clients keep anyway
    local_norms = True

    @classmethod
    def reassign(cls, learner: Learner) -> Reassign:
        """Shared tensors of a BatchNorm become local.

        Raises:
            ConfigError: there is no BatchNorm.
        """
        norms = {
            full_name(f"{path}.{name}")
            for path, module in learner.named_modules()
            if isinstance(module, _BatchNorm)
            for name in module.state_dict()
        }
        if not norms:
            raise ConfigError("merging=fedbn: there is no BatchNorm to keep, model.norm=batch has")

        def local(name: str, role: Role) -> Role:
            return Role.LOCAL if role is Role.SHARED and name in norms else role

        return local

    def merge(self, learner: Learner, state: ClientState | None) -> None:
        """Nothing: what was received holds no norms, and the client's own are in their place."""

    def keep(self, learner: Learner) -> ClientState:
        """Nothing beside the norms, which are local state."""
        return ClientState()
