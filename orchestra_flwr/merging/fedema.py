"""FedEMA's divergence-aware moving average.

Zhuang et al., "Divergence-aware Federated Self-Supervised Learning", ICLR 2022 (arXiv 2204.04385),
equations 2 to 4.
"""

from typing import Any

from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Section
from orchestra_flwr.merging import ClientState, Merging, compared_weights, divergence
from orchestra_flwr.training import Learner
from orchestra_flwr.training.learner import TERMS


class FedEMA(Merging):
    """W = mu W_client + (1 - mu) W_server for everything that is trained, predictor included.

    mu = min(1, lambda * divergence between the two encoders).
    """

    class Settings(Section):
        # lambda; None: chosen at the client's first merge such that mu is `first_mu` (the paper's
        # autoscaler).
        scale: float | None = Field(None, ge=0)
        first_mu: float = Field(0.7, gt=0, le=1)  # the paper's tau

    settings: Settings

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._scale = settings.scale
        self._mu = 0.0

    @classmethod
    def unread(cls, config: Any) -> dict[str, str]:
        """The autoscaler is not used where lambda is given."""
        scale = config.merging.settings.scale
        return {} if scale is None else {"merging.first_mu": "with merging.scale"}

    def merge(self, learner: Learner, state: ClientState | None) -> None:
        """Mixes the client's weights with the received ones, by mu."""
        if state is None:
            return
        distance = divergence(compared_weights(learner), state.tensors)
        if self._scale is None:
            self._scale = state.values.get("lambda")
        if self._scale is None and distance > 0:
            self._scale = self.settings.first_mu / distance
        self._mu = min(1.0, (self._scale or 0.0) * distance)
        for name, tensor in _mixed(learner).items():
            tensor.lerp_(state.tensors[name].to(tensor.device), self._mu)

    def keep(self, learner: Learner) -> ClientState:
        """All that is mixed, as it was trained, and lambda once it is known."""
        values = {} if self._scale is None else {"lambda": self._scale}
        return ClientState(_mixed(learner), values)

    def metrics(self) -> dict[str, float]:
        """The share of the client's own weights."""
        return {"mu": self._mu}


def _mixed(learner: Learner) -> dict[str, Tensor]:
    """The method's trained tensors; terms stay as received, for they hold rows of other clients."""
    return {n: tensor for n, tensor in learner.trained().items() if not n.startswith(TERMS)}
