"""A real federation on this machine: server, gate, two clients, TLS, and small disks if it can."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

from common import free_port

from faults.clock import Clock
from faults.disk import small_disk
from faults.invariants import TERMINATED, exit_problems, traceback_problems
from faults.link import Link
from faults.processes import ROOT, Command, left_over, wait_for
from orchestra_flwr.deployment.keys import command_line

ROUNDS = 3
NAMES = ("a", "b")
HOSTILE = "b"  # the client that is, where one is
MODEL = (
    "model.width=8",
    "model.projector_dim=16",
    "data.image_size=16",
    f"federation.rounds={ROUNDS}",
    "federation.min_success=1",
    "training.local_epochs=4",
    "training.batch_size=16",
    "training.threads=1",
    "clustering.global_clusters=4",
    "clustering.local_clusters=2",
    "logging.progress=plain",
    "device=cpu",
)
# Clients release centroids from the second round on. One release fits into the total, of the
# server's ledger and of each client's own, so in the last round nothing is left.
PRIVATE = ("clustering=private", "privacy.epsilon=20")
TOTAL = "privacy.total_epsilon=20"
MAX_RELEASES = 1
PATIENCE = 600  # seconds for a session to end after a fault
MAX_RESUMES = 3


class Federation:
    """Started with the block, gone after it.

    Args:
        folder: an empty one with a short path, for all that it writes.
        photos: a folder of images for each client.
        private: with differentially private centroids, whose noise is fresh in every run.
        listened: the link of client a hears what passes.
        late: rounds end with the first good reply.
        disks: whether file systems can be mounted.

    Attributes:
        hostile: what client b sends, by the round, see `hostile_client.py`; set before the start.
        events: what happened, in words.
        problems: what must not have happened.
        forgiven: exit codes of the server that the fault explains.
    """

    def __init__(
        self,
        folder: Path,
        photos: Path,
        *,
        private: bool = False,
        listened: bool = False,
        late: bool = False,
        disks: bool = False,
    ) -> None:
        self.folder, self.photos = folder, photos
        self.run, self.state, self.tmp = folder / "run", folder / "state", folder / "tmp"
        self.security, self.logs = folder / "security", folder / "logs"
        self.port = free_port()
        self.private, self.listened, self._late, self._disks = private, listened, late, disks
        self.hostile: dict[str, str] = {}
        self.programs = folder / "evil"  # what a hostile server or file wants to run
        self.events: list[str] = []
        self.problems: list[str] = []
        self.forgiven: set[int] = set()
        self.killed: set[str] = set()  # clients that the fault ended
        self.links: dict[str, Link] = {}
        self.clients: dict[str, Command] = {}
        self.sessions: list[Command] = []
        self.clocks: dict[str, Clock] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Federation:
        with contextlib.ExitStack() as stack:
            for path in (self.run, self.state, self.tmp):
                if self._disks:
                    stack.enter_context(small_disk(path))
                path.mkdir(exist_ok=True)
            self.logs.mkdir()
            make_keys(self.security, "client=a,b")
            for name in NAMES:
                heard = self.security if self.listened and name == "a" else None
                self.links[name] = stack.enter_context(Link(self.port, heard))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for command in [*self.clients.values(), *self.sessions]:
            command.end(5)
        left_over([], 20)
        self._stack.close()

    @property
    def server(self) -> Command:
        """Its latest session."""
        return self.sessions[-1]

    def make_clocks(self) -> None:
        """Before anything is started: clocks that can jump, of the server's and a client's side."""
        for side in ("server", "a"):
            self.clocks[side] = Clock(self.folder / "clocks" / side)

    @property
    def sent(self) -> bytes:
        """All that client a has sent, where its link is listened to."""
        return b"".join(self.links["a"].requests)

    def start(self, *names: str) -> None:
        """The first session of the server, and these clients, or both."""
        lenient = ["federation.min_success=0.5"] if self.hostile or self._late else []
        lenient += ["federation.enough=0.5"] if self._late else []
        self.start_server(*MODEL, f"run_dir={self.run / 'r'}", *self._privacy(), *lenient)
        for name in names or NAMES:
            self.start_client(name)

    def start_server(self, *overrides: str) -> None:
        self.sessions.append(
            Command(
                ["run_server.py", f"port={self.port}", f"security={self.security}", *overrides],
                self.logs / "server.log",
                self.environment("server"),
            )
        )

    def start_client(self, name: str) -> None:
        bound = [TOTAL] if self.private else []
        is_hostile = self.hostile and name == HOSTILE
        program = "benchmarks/faults/hostile_client.py" if is_hostile else "run_client.py"
        self.clients[name] = Command(
            [program, f"server=127.0.0.1:{self.links[name].port}",
             f"security={self.security / 'bundles' / name}", f"data.root={self.photos / name}",
             f"state={self.state}", "device=cpu", "training.threads=1", *bound],
            self.logs / f"{name}.log",
            self.environment(name),
        )  # fmt: skip

    def finish(self) -> None:
        """Waits for the run's end, resumes it as often as it asks for that, ends all clients."""
        for _ in range(MAX_RESUMES + 1):
            ended = wait_for(self._session_has_ended, PATIENCE, pause=0.2)
            if not ended:
                self.problems.append(f"the server did not end within {PATIENCE} s after the fault")
                break
            code = self.server.code
            self.problems += exit_problems(self.server, code, self.forgiven)
            if code == 0:
                break
            self.events.append(ending(self.server))
            orphans = left_over([*self.clients.values()])
            self.problems += [f"outlives its server: {line}" for line in orphans]
            self.start_server(f"resume={self.run / 'r'}")
        else:
            self.problems.append(f"not finished after {MAX_RESUMES} resumes")
        self.end_clients()

    def end_clients(self) -> None:
        """By SIGTERM, which a client answers with exit code 0."""
        for name, client in self.clients.items():
            if client.code is None and (code := client.end()) != 0:
                ending = "did not end" if code is None else f"ended with {code}"
                self.problems.append(f"client {name} {ending} after SIGTERM")
            self.problems += traceback_problems(client, f"client {name}")
        orphans = left_over([session for session in self.sessions if session.code is None])
        self.problems += [f"outlives all that started it: {line}" for line in orphans]

    def _session_has_ended(self) -> bool:
        """Whether the server's session is over; clients that were killed are started again."""
        for name, client in [*self.clients.items()]:
            if client.code is None:
                continue
            if name in self.killed:
                self.killed.remove(name)
            else:
                self.problems.append(f"client {name} ended with {client.code}: {_last(client)}")
            left_over([self.server, *(c for c in self.clients.values() if c.code is None)], 30)
            self.events.append(f"client {name} is started again")
            self.start_client(name)
        return self.server.code is not None

    def _privacy(self) -> Sequence[str]:
        return [*PRIVATE, TOTAL] if self.private else []

    def environment(self, side: str) -> dict[str, str]:
        """Of a program on this side: `evil` is where it could find what must not run."""
        variables = {
            "TMPDIR": str(self.tmp),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(self.programs)]),
            "PATH": os.pathsep.join([str(self.programs), os.environ["PATH"]]),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "HOSTILE": json.dumps(self.hostile),
        }
        return variables | (self.clocks[side].environment if side in self.clocks else {})

    def refused_at_the_total(self) -> list[str]:
        """Problems with another run, which must find that the clients have spent all they allow."""
        self.start_server(*MODEL, "seed=5", f"run_dir={self.run / 'other'}", *PRIVATE)
        for name in NAMES:
            self.start_client(name)
        line = "one more release would exceed this client's privacy.total_epsilon"
        refused = wait_for(lambda: all(c.has(line) for c in self.clients.values()), PATIENCE)
        if (code := self.server.end()) != TERMINATED:
            self.problems.append(f"SIGTERM to a waiting server: exit code {code} instead of 143")
        self.end_clients()
        return [] if refused else ["another run was not refused at privacy.total_epsilon"]


def ending(command: Command) -> str:
    """How a session ended, in words."""
    lines = [line for line in command.lines if line.startswith(("error: ", "stopped"))]
    line = f" {lines[0]!r}" if lines else ""
    return f"exit {command.code}{line}, resumed"


def _last(command: Command) -> str:
    return next((line for line in reversed(command.lines) if line.strip()), "no output")


def make_keys(folder: Path, *arguments: str) -> None:
    """A server's keys for this machine, and what else the arguments ask for."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert command_line.main(["server", f"folder={folder}", "host=127.0.0.1", *arguments]) == 0


def make_photos(folder: Path, counts: dict[str, int]) -> None:
    """A folder of digits as PNG files for each client."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    images = iter(load_digits().images)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.round(next(images) * (255 / 16)).astype(np.uint8)
            Image.fromarray(pixels).convert("RGB").save(folder / name / f"{i:03}.png")


def quiet_environment() -> None:
    """For all that is started from here: nothing leaves the machine, nothing is world-writable."""
    os.environ |= {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    os.umask(0o022)
