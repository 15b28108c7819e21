"""The learning rate falls by a factor at each milestone (Dec-SSL's schedule, arXiv 2210.10947)."""

import math
from itertools import pairwise

from pydantic import Field, field_validator

from orchestra_flwr.config import Section
from orchestra_flwr.training.schedules import LocalProgress, Schedule, Unit


class Steps(Schedule):
    """gamma to the power of the milestones that are over.

    By epochs, the rates do not depend on how often clients communicate. By rounds, a milestone
    comes after floor(milestone * rounds) rounds: the fewer rounds a run has, the earlier its rates
    fall, and a run of one round has the last rate throughout.
    """

    class Settings(Section):
        milestones: tuple[float, ...] = (0.3, 0.6, 0.9)  # shares of the run's training
        gamma: float = Field(0.3, gt=0, le=1)  # multiplies the rate at each milestone
        by: Unit = "epochs"  # local epochs, or whole rounds, rounded down as published

        @field_validator("milestones")
        @classmethod
        def _milestones_ascend(cls, value: tuple[float, ...]) -> tuple[float, ...]:
            inside = all(0 < milestone < 1 for milestone in value)
            if not inside or any(one >= other for one, other in pairwise(value)):
                written = ",".join(f"{milestone:g}" for milestone in value)
                raise ValueError(
                    f"schedule.milestones=[{written}]: must be ascending shares between 0 and 1"
                )
            return value

    settings: Settings

    def factor(self, progress: LocalProgress) -> float:
        passed = sum(self._is_over(milestone, progress) for milestone in self.settings.milestones)
        return float(self.settings.gamma**passed)

    def _is_over(self, milestone: float, progress: LocalProgress) -> bool:
        if self.settings.by == "epochs":
            return progress.share("epochs") >= milestone
        # Rounded first: in floats .29 * 100 is a little less than 29.
        return progress.rounds_before >= math.floor(round(milestone * progress.rounds, 6))
