"""The learning rate falls to 0 along half a cosine.

Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017 (arXiv
1608.03983), equation 5, without restarts.
"""

import math

from orchestra_flwr.config import Section
from orchestra_flwr.training.schedules import LocalProgress, Schedule, Unit


class Cosine(Schedule):
    """(1 + cos(pi p)) / 2, where p of the run's epochs, or of its rounds, are over."""

    class Settings(Section):
        by: Unit = "epochs"  # local epochs, or whole rounds

    settings: Settings

    def factor(self, progress: LocalProgress) -> float:
        return (1 + math.cos(math.pi * progress.share(self.settings.by))) / 2
