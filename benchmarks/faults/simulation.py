"""A simulation on Ray, and undisturbed runs to compare with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from faults.federation import MAX_RESUMES, MODEL, PATIENCE, ending
from faults.invariants import exit_problems
from faults.processes import ROOT, Command, left_over, wait_for

DIGITS = ("data=digits", "data.train_limit=120", "data.test_limit=60", "federation.clients=4")
LONG = "training.local_epochs=40"  # so that a round takes seconds, and is hit


class Simulation:
    """`run_sim.py` with two workers of Ray.

    Args:
        folder: an empty one with a short path.

    Attributes: as :class:`Federation`'s.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run, self.tmp, self.logs = folder / "run", folder / "tmp", folder / "logs"
        for path in (self.run, self.tmp, self.logs):
            path.mkdir()
        self.events: list[str] = []
        self.problems: list[str] = []
        self.forgiven: set[int] = set()
        self.sessions: list[Command] = []

    @property
    def server(self) -> Command:
        """The latest session."""
        return self.sessions[-1]

    def start(self, *overrides: str) -> None:
        """Begins, or goes on by `resume=`."""
        self.sessions.append(
            Command(
                ["run_sim.py", *(overrides or self._new_run())],
                self.logs / "simulation.log",
                environment(self.folder),
            )
        )

    def finish(self) -> None:
        """Waits for the run's end, and resumes it as often as it asks for that."""
        for _ in range(MAX_RESUMES + 1):
            if not wait_for(lambda: self.server.code is not None, PATIENCE, pause=0.2):
                self.problems.append(f"the run did not end within {PATIENCE} s after the fault")
                self.server.end(5)
                break
            code = self.server.code
            self.problems += exit_problems(self.server, code, self.forgiven)
            self.problems += [f"outlives the run: {line}" for line in left_over([])]
            if code == 0:
                break
            self.events.append(ending(self.server))
            self.start(f"resume={self.run / 'r'}")
        else:
            self.problems.append(f"not finished after {MAX_RESUMES} resumes")
        left_over([], 20)

    def _new_run(self) -> Sequence[str]:
        ray = ("engine=ray", "engine.workers=2", f"run_dir={self.run / 'r'}")
        return [*MODEL, *DIGITS, LONG, *ray]


def environment(folder: Path) -> dict[str, str]:
    """Everything that a run writes beside its folder goes below this one."""
    return {
        "TMPDIR": str(folder / "tmp"),
        "RAY_TMPDIR": str(folder / "ray"),
        "FLWR_HOME": str(folder / "flwr"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def undisturbed(folder: Path, *overrides: str) -> Path:
    """The same run with engine=inline, which has the same bits; its folder."""
    (folder / "tmp").mkdir(parents=True)
    run = folder / "run"
    done = Command(
        ["run_sim.py", *MODEL, "engine=inline", f"run_dir={run}", *overrides],
        folder / "log",
        environment(folder),
    )
    if done.process.wait() != 0:
        raise SystemExit(f"the undisturbed run failed:\n{os.linesep.join(done.lines)}")
    return run
