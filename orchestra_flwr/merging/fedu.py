"""FedU's divergence-aware predictor update.

Zhuang et al., "Collaborative Unsupervised Visual Representation Learning from Decentralized Data",
ICCV 2021 (arXiv 2108.06492).
"""

from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Section
from orchestra_flwr.merging import ClientState, Merging, compared_weights, divergence
from orchestra_flwr.methods import Role
from orchestra_flwr.training import Learner


class FedU(Merging):
    """A client whose encoder moved far in its last training keeps its predictor.

    Others predict with the average. Methods without a predictor just take the average.
    """

    class Settings(Section):
        threshold: float = Field(0.4, ge=0)  # divergence from which the predictor is kept

    settings: Settings

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._start: dict[str, Tensor] = {}
        self._keeps_predictor = False

    def merge(self, learner: Learner, state: ClientState | None) -> None:
        """Restores the client's predictor if its encoder moved far in its last training."""
        moved_far = state is not None and state.values["divergence"] >= self.settings.threshold
        self._keeps_predictor = moved_far
        if state is not None and moved_far:
            for name, tensor in _predictor(learner).items():
                tensor.copy_(state.tensors[name])
        self._start = {name: t.clone() for name, t in compared_weights(learner).items()}

    def keep(self, learner: Learner) -> ClientState:
        """The predictor, and how far the encoder moved since :meth:`merge`."""
        moved = divergence(self._start, compared_weights(learner))
        return ClientState(_predictor(learner), {"divergence": moved})

    def metrics(self) -> dict[str, float]:
        """1 if the client kept its predictor."""
        return {"own_predictor": float(self._keeps_predictor)}


def _predictor(learner: Learner) -> dict[str, Tensor]:
    state = learner.state(Role.SHARED)
    return {name: tensor for name, tensor in state.items() if name.startswith("predictor.")}
