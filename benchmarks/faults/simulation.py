"""A simulation on Ray, and undisturbed runs to compare with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from common import free_port

from faults.federation import MAX_RESUMES, MODEL, PATIENCE, ending
from faults.invariants import exit_problems
from faults.processes import ROOT, Command, left_over, wait_for

DIGITS = ("data=digits", "data.train_limit=120", "data.test_limit=60", "federation.clients=4")
LONG = "training.local_epochs=40"  # so that a round takes seconds, and is hit


class Simulation:
    """`run_sim.py` with two workers of Ray, on this machine or on two nodes of a cluster.

    Args:
        folder: an empty one with a short path.
        cluster: whether each worker has a node of its own, beside a head without cores.

    Attributes: as :class:`Federation`'s, and
        nodes: of the cluster, the head first.
    """

    def __init__(self, folder: Path, *, cluster: bool = False) -> None:
        self.folder = folder
        self.cluster = f"127.0.0.1:{free_port()}" if cluster else None
        self.nodes: list[Command] = []
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
        """Begins, or goes on by `resume=`; the cluster has its two nodes then."""
        while self.cluster and len([node for node in self.nodes if node.code is None]) < 3:
            self.add_node()
        self.sessions.append(
            Command(
                ["run_sim.py", *(overrides or self._new_run())],
                self.logs / "simulation.log",
                environment(self.folder),
            )
        )

    def add_node(self) -> None:
        """Starts the head, or a node of one core, and returns when it has joined."""
        assert self.cluster is not None
        role = f"--address={self.cluster} --num-cpus=1"
        if not self.nodes:
            port = self.cluster.rpartition(":")[2]
            role = f"--head --port={port} --include-dashboard=false --num-cpus=0"
        options = f"{role} --object-store-memory=100000000 --disable-usage-stats --block"
        program = ["-m", "ray.scripts.scripts", "start", "--node-ip-address=127.0.0.1"]
        program += options.split()
        log = self.logs / f"node-{len(self.nodes)}.log"
        node = Command(program, log, environment(self.folder))
        self.nodes.append(node)
        if not wait_for(lambda: node.has("Ray runtime started"), 120, pause=0.2):
            raise SystemExit(f"a node did not join the cluster:\n{os.linesep.join(node.lines)}")

    def finish(self) -> None:
        """Waits for the run's end, and resumes it as often as it asks for that."""
        for _ in range(MAX_RESUMES + 1):
            if not wait_for(lambda: self.server.code is not None, PATIENCE, pause=0.2):
                self.problems.append(f"the run did not end within {PATIENCE} s after the fault")
                self.server.end(5)
                break
            code = self.server.code
            self.problems += exit_problems(self.server, code, self.forgiven)
            self.problems += [f"outlives the run: {line}" for line in left_over(self.nodes)]
            if code == 0:
                break
            self.events.append(ending(self.server))
            self.start(f"resume={self.run / 'r'}")
        else:
            self.problems.append(f"not finished after {MAX_RESUMES} resumes")
        self.end_nodes()
        left_over([], 20)

    def end_nodes(self) -> None:
        """Ends the cluster, if there is one."""
        for node in reversed(self.nodes):
            node.end()

    def _new_run(self) -> Sequence[str]:
        where = f"engine.address={self.cluster}" if self.cluster else "engine.workers=2"
        return [*MODEL, *DIGITS, LONG, "engine=ray", where, f"run_dir={self.run / 'r'}"]


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
