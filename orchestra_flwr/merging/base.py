"""What a client that keeps state of its own makes of it and of what the server sends.

The server's state has been received when :meth:`Merging.merge` is called. BatchNorm's buffers are
never mixed, and they and its counters say nothing about how far two encoders are apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from orchestra_flwr.config import Config, FederationConfig
from orchestra_flwr.methods import Method, Role


@dataclass(frozen=True)
class OwnState:
    """What a client keeps between rounds; it never travels.

    Attributes:
        tensors: by their names in the method.
        figures: numbers of the merging policy.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)


class Merging(ABC):
    """How a client merges; one object for one round of one client."""

    @abstractmethod
    def merge(self, method: Method, own: OwnState | None) -> None:
        """Changes the received state of a method by the client's own; None: it has none yet."""

    @abstractmethod
    def keep(self, method: Method) -> OwnState:
        """What the client keeps of a method that it has trained after merging."""

    def told(self) -> dict[str, float]:
        """Figures of this round's merging, for the metrics."""
        return {}


class Replace(Merging):
    """The server's state replaces the client's: FedAvg."""

    def merge(self, method: Method, own: OwnState | None) -> None:
        """Leaves the received state as it is."""

    def keep(self, method: Method) -> OwnState:
        """Nothing."""
        return OwnState()


class FedU(Merging):
    """Divergence-aware predictor update (Zhuang et al., ICCV 2021).

    A client whose encoder moved far in its own last training predicts with its own last predictor,
    others with the average. Methods without a predictor just take the average.

    Args:
        threshold: the own predictor is taken from this divergence on; see :func:`divergence`.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._start: dict[str, Tensor] = {}
        self._own_predictor = False

    def merge(self, method: Method, own: OwnState | None) -> None:
        """As :meth:`Merging.merge`."""
        self._own_predictor = own is not None and own.figures["divergence"] >= self._threshold
        if own is not None and self._own_predictor:
            for name, tensor in _predictor(method).items():
                tensor.copy_(own.tensors[name])
        self._start = {name: t.clone() for name, t in _convolutions(method).items()}

    def keep(self, method: Method) -> OwnState:
        """The predictor, and how far the encoder moved since :meth:`merge`."""
        moved = divergence(self._start, _convolutions(method))
        return OwnState(_predictor(method), {"divergence": moved})

    def told(self) -> dict[str, float]:
        """1 if the own predictor was taken."""
        return {"own_predictor": float(self._own_predictor)}


class FedEMA(Merging):
    """Divergence-aware moving average (Zhuang et al., ICLR 2022, equations 2 to 4).

    W = mu W_own + (1 - mu) W_server for everything that is trained, predictor included, with
    mu = min(1, lambda * divergence between the two encoders).

    Args:
        scale: lambda; None: the one that makes mu equal to `first_mu` when the client merges for
            the first time, and stays (the paper's autoscaler).
        first_mu: the paper's tau.
    """

    def __init__(self, scale: float | None, first_mu: float) -> None:
        self._scale = scale
        self._first_mu = first_mu
        self._mu = 0.0

    def merge(self, method: Method, own: OwnState | None) -> None:
        """As :meth:`Merging.merge`."""
        if own is None:
            return
        apart = divergence(_convolutions(method), own.tensors)
        if self._scale is None:
            self._scale = own.figures.get("lambda")
        if self._scale is None and apart > 0:
            self._scale = self._first_mu / apart
        self._mu = min(1.0, (self._scale or 0.0) * apart)
        for name, tensor in _trained(method).items():
            tensor.lerp_(own.tensors[name].to(tensor.device), self._mu)

    def keep(self, method: Method) -> OwnState:
        """All that was trained, and lambda once it is known."""
        return OwnState(_trained(method), {} if self._scale is None else {"lambda": self._scale})

    def told(self) -> dict[str, float]:
        """The share of the client's own weights."""
        return {"mu": self._mu}


def build_merging(federation: FederationConfig) -> Merging:
    """The policy that `federation.merge` names."""
    if federation.merge == "fedu":
        return FedU(federation.fedu_threshold)
    if federation.merge == "fedema":
        return FedEMA(federation.fedema_lambda, federation.fedema_mu)
    return Replace()


def keeps_state(config: Config, method: Method) -> bool:
    """Whether clients keep anything between the rounds of a run."""
    return config.federation.merge != "replace" or bool(method.state(Role.LOCAL))


def divergence(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Mean over the encoder's convolutions of the L2 distance of their weights.

    Args:
        one: the convolutions' weights by name.
        other: holds at least the same names.
    """
    distances = [(t - other[name].to(t.device)).double().norm() for name, t in one.items()]
    return float(torch.stack(distances).mean()) if distances else 0.0


def _convolutions(method: Method) -> dict[str, Tensor]:
    """Weights of the backbone's convolutions; those of one pixel, on shortcuts, are not counted."""
    return {
        name: tensor
        for name, tensor in _trained(method).items()
        if name.startswith("backbone.") and tensor.ndim == 4 and tensor.shape[-1] > 1
    }


def _predictor(method: Method) -> dict[str, Tensor]:
    state = method.state(Role.SHARED)
    return {name: tensor for name, tensor in state.items() if name.startswith("predictor.")}


def _trained(method: Method) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in method.named_parameters() if p.requires_grad}
