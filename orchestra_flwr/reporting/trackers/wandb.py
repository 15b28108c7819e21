"""Weights & Biases, over the network or, with WANDB_MODE=offline, in the run folder alone."""

import os
from collections.abc import Mapping
from pathlib import Path

from orchestra_flwr.reporting.trackers import TrackedRun, Tracker

PROJECT = "orchestra_flwr"  # unless WANDB_PROJECT names another


class WeightsAndBiases(Tracker):
    """A run of a project. Its files are in `<run folder>/wandb`.

    Account, project and mode are those of wandb itself: `wandb login`, WANDB_PROJECT, WANDB_MODE.
    """

    library = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._image = wandb.Image
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=run.id,
            resume="allow",
            config=dict(run.configuration),
            dir=str(run.folder),
            settings=wandb.Settings(silent=True, x_disable_stats=True, disable_git=True),
        )
        # wandb's own steps only grow, and it drops the rounds that a run repeats.
        self._run.define_metric("*", step_metric="round")

    def numbers(self, round: int, numbers: Mapping[str, float]) -> None:
        """All beside the round, which is the axis of their charts."""
        self._run.log({**numbers, "round": round})

    def picture(self, file: Path, round: int) -> None:
        """As an image of that name."""
        self._run.log({file.stem: self._image(str(file)), "round": round})

    def close(self, completed: bool) -> None:
        """Sends what is left; a run that was stopped or has failed is marked as failed."""
        self._run.finish(exit_code=0 if completed else 1)
