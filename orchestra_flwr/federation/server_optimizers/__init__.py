"""Server optimizers: what the server makes of the clients' mean, one class a file.

To a server the change that a round of training made to the shared state is what a gradient is to an
optimizer. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295,
write Delta for that change, m and v for its first and second moment, tau for `epsilon`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from orchestra_flwr.config import Plugin, Section
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.vector_blocks import blocks_of


class ServerOptimizer(Plugin, ABC):
    """Makes the next shared state of one model from the last one and the clients' mean.

    Args:
        settings: the plug-in's options.
        size: number of values in the shared state.

    Class attributes:
        needs_before: whether :meth:`step` reads `before`. Where it does not, the caller may spare
            the copy of the model and pass any array.
    """

    needs_before: ClassVar[bool] = True

    def __init__(self, settings: Section, size: int) -> None:
        self.settings = settings
        self.size = size

    @abstractmethod
    def step(self, before: np.ndarray, mean: np.ndarray, trained: Sequence[slice]) -> np.ndarray:
        """The shared state after a round.

        Args:
            before: (size,) float32 shared state that the round began with; it is not changed.
            mean: (size,) float32 mean of the clients' states; the result may be made in its memory.
            trained: where the values lie that gradients train, in slices that do not overlap. All
                others (BatchNorm statistics, moving averages) just take the mean.

        Returns:
            (size,) float32.
        """

    def moments(self) -> dict[str, np.ndarray]:
        """All that a checkpoint must hold, by name; {} where nothing is remembered.

        These are the optimizer's own arrays, which :meth:`step` changes in place.
        """
        return {}

    def load_moments(self, moments: Mapping[str, np.ndarray]) -> None:
        """Copies what :meth:`moments` returned into an optimizer of the same kind and size."""
        for name, array in self.moments().items():
            array[...] = moments[name]


class ElementwiseOptimizer(ServerOptimizer):
    """A server optimizer that moves each value by that value's own history.

    Works in blocks: beside the moments, which are float32, it needs memory for a few blocks of
    float64. Moments are rounded to float32 after each round, whether a run is resumed or not, so a
    resumed run ends in the same bits.
    """

    def __init__(self, settings: Section, size: int) -> None:
        super().__init__(settings, size)
        initial: Any = self.initial_moments()
        starts = initial.values() if isinstance(initial, Mapping) else (initial,)
        if not all(isinstance(start, Real) for start in starts):
            raise FederationError(
                f"{type(self).__name__}.initial_moments must return a dictionary of numbers, and "
                f"returned {initial!r:.80}"
            )
        self._moments = {
            name: np.full(size, start, np.float32) if start else np.zeros(size, np.float32)
            for name, start in initial.items()
        }
        self._steps = np.zeros(1, np.int64)

    @property
    def steps(self) -> int:
        """Steps so far, with the one that is being made."""
        return int(self._steps[0])

    @abstractmethod
    def initial_moments(self) -> dict[str, float]:
        """The names of the moments, and the value of each before the first step."""

    @abstractmethod
    def change(self, update: np.ndarray, moments: dict[str, np.ndarray]) -> np.ndarray:
        """What is added to a block of the state.

        Args:
            update: (n,) float64 difference of mean and state before.
            moments: (n,) float64 moments of these values by name, to be changed in place.

        Returns:
            (n,) float64.
        """

    def step(self, before: np.ndarray, mean: np.ndarray, trained: Sequence[slice]) -> np.ndarray:
        """As :meth:`ServerOptimizer.step`; the result is `mean` itself."""
        self._steps += 1
        for block in blocks_of(trained):
            update = np.subtract(mean[block], before[block], dtype=np.float64)
            moments = {name: m[block].astype(np.float64) for name, m in self._moments.items()}
            change = self.change(update, moments)
            if np.shape(change) != update.shape:
                raise FederationError(
                    f"{type(self).__name__}.change must return {update.shape} values, those of the "
                    f"update, and returned {np.shape(change) if np.ndim(change) else change!r:.80}"
                )
            mean[block] = before[block] + change
            for name, values in moments.items():
                self._moments[name][block] = values
        return mean

    def moments(self) -> dict[str, np.ndarray]:
        """(size,) float32 moments by name, and "steps": (1,) int64."""
        return {**self._moments, "steps": self._steps}


class AdaptiveOptimizer(ElementwiseOptimizer):
    """Algorithm 2 of Reddi et al. (2021): x + lr * m / (sqrt(v) + epsilon).

    m = beta1 * m + (1 - beta1) * Delta, from 0; v is up to the subclass, from epsilon squared, the
    least that the algorithm allows. There is no bias correction.
    """

    class Settings(Section):
        lr: float = Field(0.01, gt=0)
        beta1: float = Field(0.9, ge=0, lt=1)
        # The paper's tau: the larger, the less adaptive. The square of a far larger one overflows.
        epsilon: float = Field(1e-3, gt=0, le=1e6)

    settings: Settings

    def initial_moments(self) -> dict[str, float]:
        """The paper's m and v."""
        return {"first": 0.0, "second": self.settings.epsilon**2}

    @abstractmethod
    def accumulate(self, second: np.ndarray, square: np.ndarray) -> None:
        """Takes the squared update into the second moment, in place.

        Args:
            second: (n,) float64 second moment.
            square: (n,) float64 squared update.
        """

    def corrections(self) -> tuple[float, float]:
        """What first and second moment are divided by."""
        return 1.0, 1.0

    def change(self, update: np.ndarray, moments: dict[str, np.ndarray]) -> np.ndarray:
        """lr * m / (sqrt(v) + epsilon), with the corrections."""
        first, second = moments["first"], moments["second"]
        first *= self.settings.beta1
        first += (1 - self.settings.beta1) * update
        self.accumulate(second, np.square(update))
        first_correction, second_correction = self.corrections()
        scale = np.sqrt(second / second_correction)
        scale += self.settings.epsilon
        change: np.ndarray = self.settings.lr * (first / first_correction) / scale
        return change
