"""What the server makes of all clients' local centroids: one file a solver."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from orchestra_flwr.config import Config, Plugin


class Solver(Plugin, ABC):
    """Moves the global centroids towards clusters of all clients' local ones.

    Class attributes:
        Settings: its own options, `clustering.solver.<option>` beside `clustering.solver.name`.
    """

    def __init__(self, settings: Any, config: Config) -> None:
        self.settings = settings
        self.damping = config.clustering.damping

    @abstractmethod
    def solve(self, points: Tensor, previous: Tensor, generator: torch.Generator) -> Tensor:
        """The centroids after the round.

        Args:
            points: (N, D) local centroids of all clients of the cohort, N >= 1.
            previous: (G, D) the last round's centroids, unit vectors; zeros in the first.
            generator: CPU generator, the only source of randomness.

        Returns:
            (G, D) unit vectors, which must not depend on the order of the points.
        """
