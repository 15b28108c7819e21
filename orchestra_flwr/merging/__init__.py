"""What a client keeps between rounds and how it merges it with what it receives: a file a policy.

When :meth:`Merging.merge` is called, the server's state and the client's local state (roles) are in
place. Policies that mix weights leave BatchNorm's buffers alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from orchestra_flwr.config import Config, Plugin
from orchestra_flwr.methods import Role
from orchestra_flwr.training import Learner
from orchestra_flwr.training.learner import TERMS, RoleOverride


@dataclass(frozen=True)
class ClientState:
    """What a client keeps between rounds; it never travels.

    Attributes:
        tensors: by their full names.
        values: numbers of the merging policy.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)


class Merging(Plugin, ABC):
    """How a client merges; one object for one round of one client.

    Class attributes:
        Settings: the policy's own options under `merging.`.
        remembers: whether clients keep what :meth:`keep` returns. Methods may then have local state
            of their own as well (:class:`~orchestra_flwr.methods.KeepsState`).
        local_norms: whether BatchNorm stays with the clients, as with `model.batch_norm=local`.
    """

    remembers: ClassVar[bool] = True
    local_norms: ClassVar[bool] = False

    @classmethod
    def override_roles(cls, learner: Learner) -> RoleOverride | None:
        """A function from a tensor's full name and role to its new role; None: roles stay.

        Raises:
            ConfigError: the policy makes no sense for what is learned.
        """
        return None

    @abstractmethod
    def merge(self, learner: Learner, state: ClientState | None) -> None:
        """Merges the client's kept state into the received one; None: it has kept nothing yet."""

    @abstractmethod
    def keep(self, learner: Learner) -> ClientState:
        """What the client keeps, beside local state, once it has trained after merging."""

    def metrics(self) -> dict[str, float]:
        """Numbers of this round's merging, for the metrics."""
        return {}


def kept_state(config: Config, merging: Merging, learner: Learner) -> ClientState:
    """:meth:`Merging.keep` of the configuration's policy.

    Raises:
        ConfigError: it returns something else than tensors and numbers by name.
    """
    state = merging.keep(learner)
    fits = isinstance(state, ClientState) and _is_of(Tensor, state.tensors)
    fits = fits and _is_of(Real, state.values)
    wanted = "a ClientState(tensors, values) of dictionaries"
    config.merging.check_returned("keep", state, fits, wanted)
    return state


def measured(config: Config, merging: Merging) -> dict[str, float]:
    """:meth:`Merging.metrics` of the configuration's policy.

    Raises:
        ConfigError: it returns something else than numbers by name.
    """
    numbers = merging.metrics()
    wanted = "a dictionary of numbers"
    config.merging.check_returned("metrics", numbers, _is_of(Real, numbers), wanted)
    return {name: float(number) for name, number in numbers.items()}


def _is_of(kind: type, values: Any) -> bool:
    """Whether these are objects of one kind by name."""
    if not isinstance(values, Mapping):
        return False
    return all(isinstance(n, str) and isinstance(value, kind) for n, value in values.items())


def keeps_state(config: Config, learner: Learner) -> bool:
    """Whether clients keep anything between the rounds of a run."""
    return config.training.optimizer_state == "keep" or has_local_state(config, learner)


def has_local_state(config: Config, learner: Learner) -> bool:
    """Whether clients have tensors of their own, by the merging policy or by roles."""
    return config.merging.plugin.remembers or bool(learner.state(Role.LOCAL))


def divergence(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Mean over layers of the L2 distance of their weights.

    Args:
        one: :func:`compared_weights` by name.
        other: holds at least the same names.
    """
    distances = [(t - other[name].to(t.device)).double().norm() for name, t in one.items()]
    return float(torch.stack(distances).mean()) if distances else 0.0


def compared_weights(learner: Learner) -> dict[str, Tensor]:
    """Weights of the backbone's convolutions above 1 x 1, or else of its linear layers.

    Where neither are trained (`adaptation=norms`), those of its norms; where nothing of it is
    (`adaptation=head`), those of the method's heads.
    """
    trained = {
        name: tensor
        for name, tensor in learner.trained().items()
        if name.endswith("weight") and not name.startswith(TERMS)
    }
    weights = {n: t for n, t in trained.items() if n.startswith("backbone.")} or trained
    convolutions = {n: t for n, t in weights.items() if t.ndim == 4 and t.shape[-1] > 1}
    return convolutions or {n: t for n, t in weights.items() if t.ndim == 2} or weights
