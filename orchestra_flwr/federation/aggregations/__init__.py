"""Aggregations: how the clients' states of a stage become a model's new state, one class a file.

The weighted mean adds each state to a sum and drops it. The robust rules bound what a minority of
clients can do to the model, whatever they send; they look at all states of a stage together, so
memory grows with the cohort, and they cannot work on sums of masked states. They guard the model
alone: what clients contribute beside it (Orchestra's centroids) is bounded by its own rules.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from orchestra_flwr.config import Config, ConfigError, Plugin
from orchestra_flwr.config.choice import shown
from orchestra_flwr.console import text
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.vector_blocks import blocks_of
from orchestra_flwr.machine_limits import usable_memory


class TooFewResultsError(ValueError):
    """A rule cannot be applied to so few results."""


class Aggregation(Plugin, ABC):
    """Combines the states of a stage, which it takes one by one, into one state.

    Args:
        settings: the plug-in's options.
        size: number of values in a state.
        sent: makes the state that the clients were sent; None: nobody asks for it.

    Class attributes:
        holds_results: whether all states of a stage are held until the last has come.
    """

    holds_results: ClassVar[bool] = False

    def __init__(
        self, settings: Any, size: int, sent: Callable[[], np.ndarray] | None = None
    ) -> None:
        self.settings = settings
        self.size = size
        self._sent = sent

    @property
    def sent(self) -> np.ndarray:
        """(size,) float32 state that the clients were sent; a state minus this is an update.

        It cannot be changed.
        """
        assert self._sent is not None
        sent = self._sent().view()
        sent.flags.writeable = False
        return sent

    @abstractmethod
    def add(self, values: np.ndarray, weight: float) -> None:
        """Takes a client's state.

        Args:
            values: (size,) float32; not kept, and not changed.
            weight: how much the state counts, above 0.
        """

    @abstractmethod
    def result(self) -> np.ndarray:
        """(size,) float32 new state of the model; called once, after the last state.

        Raises:
            TooFewResultsError: the rule needs more results.
        """


class RobustAggregation(Aggregation):
    """An aggregation that looks at all states of a stage together."""

    holds_results: ClassVar[bool] = True

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses clipping, which bounds shares of a sum, and exchanges with several averages."""
        chosen = f"aggregation={config.aggregation.name}"
        if config.privacy.clip is not None:
            raise ValueError(
                f"{chosen}: must be mean with privacy.clip={config.privacy.clip:g}, which bounds "
                "what a client adds to a sum"
            )
        if not config.exchange.plugin.one_average:
            raise ValueError(
                f"{chosen}: must be mean with exchange={config.exchange.name}, which averages "
                "other clients for each model"
            )

    def __init__(
        self, settings: Any, size: int, sent: Callable[[], np.ndarray] | None = None
    ) -> None:
        super().__init__(settings, size, sent)
        self._states: list[np.ndarray] = []
        self._weights: list[float] = []

    def add(self, values: np.ndarray, weight: float) -> None:
        """Keeps a copy."""
        self._states.append(np.array(values, np.float32))
        self._weights.append(weight)

    def result(self) -> np.ndarray:
        """What :meth:`combine` makes of the states.

        Raises:
            ConfigError: it is no state.
        """
        made = self.combine(self._states, np.array(self._weights))
        if np.shape(made) != (self.size,):
            raise ConfigError(
                f"aggregation: {type(self).__name__}.combine must return an array of {self.size} "
                f"values, and returned {shown(made)}"
            )
        return np.asarray(made, np.float32)  # it may be float64, the type of the weights

    @abstractmethod
    def combine(self, states: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
        """Combines n states into one, (size,) of any float type.

        Args:
            states: n times (size,) float32, in the order of the clients.
            weights: (n,) float64, above 0.

        Raises:
            TooFewResultsError: the rule needs more of them.
        """


def by_blocks(
    states: Sequence[np.ndarray], combine: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Combines states block by block; (size,) float32.

    Args:
        states: n times (size,) float32.
        combine: makes (m,) from (n, m) float64.
    """
    result = np.empty(states[0].shape, np.float32)
    for block, values in stacked_blocks(states):
        result[block] = combine(values)
    return result


def stacked_blocks(states: Sequence[np.ndarray]) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields each block's place, and the (n, m) float64 values of the n states there."""
    for block in blocks_of([slice(0, len(states[0]))]):
        yield block, np.stack([state[block] for state in states]).astype(np.float64)


def try_aggregation(config: Config) -> None:
    """Refuses an aggregation that of similar states makes something else than such a state.

    Raises:
        ConfigError: it makes their update, their sum, an array of another shape, or values that are
            not finite; or it raises an error.
    """
    sent = np.linspace(1, 2, 64, dtype=np.float32)
    rule: Aggregation = config.aggregation.build(len(sent), lambda: sent)
    generator = np.random.default_rng(0)
    with config.aggregation.tried():
        for _ in range(min(100, config.federation.cohort_size(config.federation.clients))):
            rule.add(sent + generator.uniform(-0.01, 0.01, len(sent)).astype(np.float32), 2.0)
        try:
            state = rule.result()
        except TooFewResultsError:  # said in the round, in which results may be missing as well
            return
    fits = isinstance(state, np.ndarray) and state.shape == sent.shape
    config.aggregation.check_returned("result", state, fits, f"a ndarray, float32 {sent.shape}")
    made = float(state.mean(dtype=np.float64))
    if not 1 < made < 2:
        raise ConfigError(
            f"aggregation={config.aggregation.name}: {type(rule).__name__} must return a state, as "
            "clients send it (self.sent + update): of states with a mean of 1.5 it made "
            f"{made:.3g}"
        )


def held_memory(config: Config, size: int, clients: int) -> str | None:
    """A line about the memory that the aggregation needs; None: no more than a model's.

    Args:
        size: number of values in a state.
        clients: how many there are.

    Raises:
        FederationError: this machine has less; the text names the keys.
    """
    if not config.aggregation.plugin.holds_results:
        return None
    cohort = config.federation.cohort_size(clients)
    needed = 4 * size * cohort
    memory = usable_memory()
    line = (
        f"aggregation={config.aggregation.name} holds the models of {cohort} clients at once, "
        f"{text.size(needed)}"
    )
    if needed > memory:
        raise FederationError(
            f"{line}, and this machine has {memory / 1e9:,.1f} GB: lower "
            "federation.participation, or use aggregation=mean"
        )
    return line
