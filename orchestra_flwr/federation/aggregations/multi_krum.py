"""Multi-Krum: the mean of the states that lie closest to others."""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from orchestra_flwr.config import Config, Section
from orchestra_flwr.federation.aggregations import (
    RobustAggregation,
    TooFewResultsError,
    by_blocks,
    stacked_blocks,
)


class MultiKrum(RobustAggregation):
    """The mean of the states with the smallest scores; all clients weigh the same.

    A state's score is the sum of its squared distances to the n - attackers - 2 closest others.
    Section 4 of Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS 2017, https://arxiv.org/abs/1703.02757.
    """

    class Settings(Section):
        attackers: int = Field(1, ge=1)  # at most (f)
        chosen: int | None = Field(None, ge=1)  # states in the mean (m); None: all but f

    settings: Settings

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses cohorts that are too small to withstand so many attackers."""
        super().check(config)
        attackers = config.aggregation.settings.attackers
        needed = needed_results(attackers)
        cohort = config.federation.cohort_size(config.federation.clients)
        if cohort < needed:
            raise ValueError(
                f"aggregation.attackers={attackers}: needs {needed} clients in a round, "
                f"{config.federation.clients_key}={config.federation.clients} and "
                f"federation.participation={config.federation.participation:g} make {cohort}"
            )

    def combine(self, states: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
        """The mean of the chosen states; ties go to the first client."""
        count, attackers = len(states), self.settings.attackers
        if count < needed_results(attackers):
            raise TooFewResultsError(
                f"aggregation.attackers={attackers} needs {needed_results(attackers)} good "
                f"results, and {count} came"
            )
        distances = squared_distances(states)
        np.fill_diagonal(distances, np.inf)
        distances.sort(axis=1)
        scores = distances[:, : count - attackers - 2].sum(axis=1)
        chosen = min(self.settings.chosen or count, count - attackers)
        best = np.sort(np.argsort(scores, kind="stable")[:chosen])
        return by_blocks([states[i] for i in best], lambda block: block.mean(axis=0))


def needed_results(attackers: int) -> int:
    """The fewest results with which Krum withstands so many attackers: 2 f + 3 (Proposition 2)."""
    return 2 * attackers + 3


def squared_distances(states: Sequence[np.ndarray]) -> np.ndarray:
    """(n, n) squared Euclidean distances of states to each other.

    One of the states is subtracted from all, so that what they share costs no digits. It is that of
    median norm: one that is far from all others would leave no digits for these.
    """
    norms = sum(np.square(values).sum(axis=1) for _, values in stacked_blocks(states))
    middle = np.argsort(norms, kind="stable")[len(states) // 2]
    products = np.zeros((len(states), len(states)))
    for _, values in stacked_blocks(states):
        relative = values - values[middle]
        products += relative @ relative.T
    squares = np.diag(products)
    distances: np.ndarray = np.maximum(squares[:, None] + squares - 2 * products, 0)
    return distances
