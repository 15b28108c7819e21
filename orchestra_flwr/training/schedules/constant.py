"""The same learning rate in every step of a run."""

from typing import ClassVar

from orchestra_flwr.training.schedules import LocalProgress, Schedule


class Constant(Schedule):
    """`training.lr` throughout."""

    changes: ClassVar[bool] = False

    def factor(self, progress: LocalProgress) -> float:
        return 1.0
