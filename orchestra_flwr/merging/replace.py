"""The server's state replaces the client's: FedAvg.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017 (arXiv 1602.05629).
"""

from orchestra_flwr.merging import ClientState, Merging
from orchestra_flwr.training import Learner


class Replace(Merging):
    """Nothing is kept beside local state."""

    remembers = False

    def merge(self, learner: Learner, state: ClientState | None) -> None:
        """Leaves the received state as it is."""

    def keep(self, learner: Learner) -> ClientState:
        return ClientState()
