"""Faults at random moments in real federations, and what must hold after each of them.

    python benchmarks/run_faults.py minutes=30 seed=0
    python benchmarks/run_faults.py seed=0 case=7            # one case again
    python benchmarks/run_faults.py minutes=10 only=link,ray:raylet,disk:state

A case is a run of its own: server, SuperLink, gate, two clients over TLS, or a simulation on Ray.
It suffers one fault: SIGKILL, SIGTERM or SIGSTOP to any process, a link that is cut or stalls, a
full disk, a clock that jumps, requests that come again, another CA, lost nodes of a Ray cluster.
Then the run must give the bits of the undisturbed one, or one clear line with a documented exit
code and the same bits after `resume=`. No process and no temporary folder may be left, ledgers must
agree, and no secret may be readable for others. Other cases: rounds end with the first reply while
a client hangs, sleeps or is gone; they must end, and name it. A hostile client sends absurd values;
it must be named, and encoder, losses and all checkpoints be as large as usual. A server's operator
asks for more than an update, or a file is not what it seems; no code from there may run, no byte of
an image, a path or a key may be sent, and the run must end in its usual bits, or go on from its
checkpoint. The faults and all that is drawn follow from the seed; the moments, in milliseconds, do
not. Every fault of a kind comes before one comes again: `faults/cases.py` lists them.

The logs of a case that failed stay in outputs/faults/seed-<seed>-case-<number>/, all lines in
outputs/faults/seed-<seed>.json, or with kept=FOLDER there. Exit code 1 if a case failed. As root,
disks and their mounts are private to this program; otherwise the cases with full disks are left
out, and without a C compiler those with clocks. The gate is a thread of run_server.py: it is hit
with the server's process, by links and by requests.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from common import table
from faults.cases import (
    FAULTS,
    FEDERATION,
    NotHitError,
    faults_in_turn,
    hostile_rounds,
    machines,
    signals,
)
from faults.disk import with_own_mounts
from faults.federation import (
    HOSTILE,
    MAX_RELEASES,
    ROUNDS,
    Federation,
    make_photos,
    quiet_environment,
)
from faults.hostile_client import REFUSED
from faults.hostile_files import IMAGES, LOAD, RUNS, SECRET, change_encoder, stub_ghostscript
from faults.hostile_server import write_evil_package
from faults.invariants import (
    bit_problems,
    code_problems,
    hostile_problems,
    late_problems,
    leak_problems,
    ledger_problems,
    mode_problems,
    record_problems,
    temporary_problems,
)
from faults.processes import ROOT, Command, adopt_orphans, wait_for
from faults.simulation import DIGITS, LONG, Simulation, undisturbed
from faults.simulation import environment as alone

from orchestra_flwr.reporting import environment

KEPT = ROOT / "outputs" / "faults"  # the default of kept=
PHOTOS = {"a": 48, "b": 37}
SIZE = 16  # of the images that clients train on, in pixels


@dataclass
class Case:
    """One line of the table."""

    number: int
    kind: str
    fault: str
    events: list[str]
    problems: list[str]
    seconds: float

    @property
    def outcome(self) -> str:
        if self.problems:
            return "failed"
        return "not done" if self.fault.startswith("not done") else "ok"


class Suite:
    """All cases of a seed.

    Args:
        folder: a temporary one with a short path.
        seed: of all draws.
        disks: whether file systems can be mounted.
    """

    def __init__(self, folder: Path, kept: Path, seed: int, *, disks: bool) -> None:
        self.folder, self.kept, self.seed, self.disks = folder, kept, seed, disks
        self.photos = folder / "photos"
        make_photos(self.photos, PHOTOS)
        self._references: dict[str, Path] = {}

    def case(self, number: int, kind: str, which: str) -> Case:
        """Runs a case, prints its line and keeps its logs if it failed."""
        started = time.monotonic()
        folder = self.folder / str(number)
        folder.mkdir()
        rng = random.Random(f"{self.seed}, case {number}, {kind}, {which}")
        if kind == "disk" and not self.disks:
            fault, events, problems = "not done: no disk can be mounted here", [], []
        elif kind in ("ray", "cluster"):
            fault, events, problems = self._simulate(rng, folder, kind, which)
        elif kind == "file":
            fault, events, problems = self._read_file(folder, which)
        else:
            fault, events, problems = self._federate(rng, folder, kind, which)
        case = Case(number, kind, fault, events, problems, time.monotonic() - started)
        if case.problems:
            shutil.copytree(
                folder, self.kept / f"seed-{self.seed}-case-{number}", dirs_exist_ok=True,
                ignore=_no_regular_file,
            )  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)
        story = "; ".join([case.fault, *case.events, *(f"FAILED: {p}" for p in case.problems)])
        head = f"{time.strftime('%H:%M:%S')} seed {self.seed} case {number} {kind}"
        print(f"{head}, {case.seconds:.0f} s: {story}: {case.outcome}", flush=True)
        return case

    def _federate(
        self, rng: random.Random, folder: Path, kind: str, which: str
    ) -> tuple[str, list[str], list[str]]:
        private, listened = kind == "private", kind in ("requests", "server", "image")
        photos = self._with_a_hostile_file(folder, which) if kind == "image" else self.photos
        made = Federation(
            folder, photos, private=private, listened=listened, late=kind == "late",
            disks=self.disks,
        )  # fmt: skip
        with made as run:
            if kind == "clock":
                try:
                    run.make_clocks()
                except OSError as error:
                    return f"not done: {error}", [], []
            if kind == "hostile":
                run.hostile = hostile_rounds(rng, which)
            marker = write_evil_package(run.programs)
            stub_ghostscript(run.programs, marker)
            run.start(*("a" if kind == "server" else ""))
            fault = _try(lambda: FEDERATION[kind](rng, run, which))
            if kind == "server" and "b" not in run.clients:
                run.start_client("b")
            run.problems += mode_problems(folder)  # while it runs, and at its end
            run.finish()
            run.problems += code_problems(marker)
            if listened:
                key = run.security / "bundles" / "a" / "client.key"
                secrets = (str(run.folder), str(ROOT), "site-packages")
                run.problems += leak_problems(run.sent, photos / "a", SIZE, key, *secrets)
            if private:
                run.problems += record_problems(run.run / "r", ROUNDS)
                run.problems += ledger_problems(run.run / "r", run.state, MAX_RELEASES)
                if not any(
                    session.has("have spent privacy.total_epsilon") for session in run.sessions
                ):
                    run.problems.append("the server does not say that the total is spent")
                run.problems += run.refused_at_the_total()
            elif kind == "hostile":
                run.problems += self._after_hostile(run, which)
            elif kind == "late":
                run.problems += record_problems(run.run / "r", ROUNDS) + late_problems(
                    run.run / "r"
                )
            else:
                reference = self._reference("federation")
                run.problems += bit_problems(run.run / "r", reference, ROUNDS)
            run.problems += temporary_problems(run.tmp) + mode_problems(folder)
            if run.problems and self.disks:  # these disks are gone with the block
                for name in ("run", "state"):
                    shutil.copytree(folder / name, folder / f"{name}.kept", ignore=_no_regular_file)
        return fault, run.events, run.problems

    def _with_a_hostile_file(self, folder: Path, which: str) -> Path:
        """A copy of all photographs, with one file more for client a."""
        photos = folder / "photos"
        shutil.copytree(self.photos, photos)
        name, content = IMAGES[which]
        (photos / "a" / name).write_bytes(content())
        return photos

    def _read_file(self, folder: Path, which: str) -> tuple[str, list[str], list[str]]:
        """A foreign run's configuration or encoder is read where it could find code to run."""
        marker, run = write_evil_package(folder / "evil"), folder / "r"
        shutil.copytree(self._reference("federation"), run)
        (folder / "tmp").mkdir()
        variables = alone(folder) | {SECRET: "what must not be read"}
        variables["PYTHONPATH"] += os.pathsep + str(folder / "evil")
        resume = ["run_sim.py", f"resume={run}", f"federation.rounds={ROUNDS + 1}"]
        config = (run / "config.yaml").read_text()
        if which in RUNS:
            (run / "config.yaml").write_text(RUNS[which](config))
            reading = Command(resume, folder / "reading.log", variables)
        else:
            change_encoder(run, which)
            program = ["-c", LOAD, run / "encoder.safetensors"]
            reading = Command(program, folder / "reading.log", variables)
        problems = []
        if not wait_for(lambda: reading.code is not None, 120):
            problems.append("is still being read after 120 s")
        code = reading.end(5)
        if code not in (0, 2) or (code == 0 and which not in RUNS and not reading.has("refused: ")):
            problems.append(f"exit code {code}: {(reading.lines or ['no output'])[-1]}")
        texts = [reading.log, *run.rglob("*.json*"), run / "config.yaml"]
        if any("what must not be read" in text.read_text(errors="replace") for text in texts):
            problems.append("a value of the environment was read")
        problems += code_problems(marker)
        if code == 0 and which in RUNS:
            return f"{which}, read as plain text", [], problems
        (run / "config.yaml").write_text(config)
        again = Command(resume, folder / "again.log", variables)
        if again.process.wait() != 0:
            problems.append(f"its checkpoint is of no use: {(again.lines or ['no output'])[-1]}")
        return f"{which}: {(reading.lines or [''])[-1][:160]}", [], problems

    def _after_hostile(self, run: Federation, which: str) -> list[str]:
        """The run is as usual, and goes on from its oldest checkpoint with the same clients."""
        folder, refused = run.run / "r", which in REFUSED
        rounds = [int(number) for number in run.hostile] if refused else []
        reference = self._reference("federation")
        problems = record_problems(folder, ROUNDS)
        problems += hostile_problems(folder, reference, HOSTILE, rounds)
        run.start_server(f"resume={folder}", "resume_round=1", f"federation.rounds={ROUNDS + 1}")
        for name in PHOTOS:
            run.start_client(name)
        run.finish()
        problems += record_problems(folder, ROUNDS + 1)
        return problems + hostile_problems(folder, reference, HOSTILE, rounds)

    def _simulate(
        self, rng: random.Random, folder: Path, kind: str, which: str
    ) -> tuple[str, list[str], list[str]]:
        run = Simulation(folder, cluster=kind == "cluster")
        try:
            run.start()
            fault = _try(lambda: (machines if run.cluster else signals)(rng, run, which))
            run.finish()
        finally:
            run.end_nodes()
        run.problems += bit_problems(run.run / "r", self._reference("ray"), ROUNDS)
        run.problems += temporary_problems(run.tmp) + mode_problems(folder)
        return fault, run.events, run.problems

    def _reference(self, which: str) -> Path:
        if which not in self._references:
            images = ["data=image_folder", f"data.root={self.photos}", "partition=by_class"]
            images.append(f"federation.clients={len(PHOTOS)}")
            overrides = [*DIGITS, LONG] if which == "ray" else images
            self._references[which] = undisturbed(self.folder / which, *overrides)
        return self._references[which]


def _try(fault) -> str:
    try:
        return fault()
    except NotHitError as error:
        return f"not done: {error}"


def _no_regular_file(folder: str, names: list[str]) -> list[str]:
    """Sockets and the like cannot be copied; images and caches need not be."""
    return [
        name
        for name in names
        if name in ("cache", "flwr", "ray", "clocks", ".ballast")
        or not ((path := Path(folder, name)).is_file() or path.is_dir())
    ]


def options(arguments: list[str]) -> dict[str, str]:
    """What the command line says.

    Raises:
        SystemExit: an unknown option.
    """
    chosen = {"minutes": "30", "seed": "0", "case": "", "only": "", "kept": str(KEPT)}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key not in chosen or not equals:
            raise SystemExit(f"error: {argument}: must be one of {', '.join(chosen)}, as KEY=VALUE")
        chosen[key] = value
    for entry in chosen["only"].split(","):
        kind, _, part = entry.partition(":")
        if entry and not any(part in fault for fault in FAULTS.get(kind, ())):
            allowed = ", ".join(FAULTS.get(kind, FAULTS))
            raise SystemExit(f"error: only={entry}: must be of {allowed}")
    return chosen


def main() -> int:
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        return 0
    chosen = options(sys.argv[1:])
    disks = with_own_mounts()
    quiet_environment()
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    kept, seed = Path(chosen["kept"]), int(chosen["seed"])
    only = [entry for entry in chosen["only"].split(",") if entry]
    fault = faults_in_turn(seed, only)
    cases: list[Case] = []
    with tempfile.TemporaryDirectory(prefix="of", ignore_cleanup_errors=True) as folder:
        suite = Suite(Path(folder), kept, seed, disks=disks)
        until = time.monotonic() + 60 * float(chosen["minutes"])
        number = int(chosen["case"] or 1)
        while not cases or (not chosen["case"] and time.monotonic() < until):
            cases.append(suite.case(number, *fault(number)))
            number += 1
    print()
    table(
        ("case", "kind", "fault", "outcome", "s"),
        [(c.number, c.kind, c.fault, c.outcome, f"{c.seconds:.0f}") for c in cases],
    )
    kept.mkdir(parents=True, exist_ok=True)
    lines = [{**asdict(case), "outcome": case.outcome} for case in cases]
    result = {"environment": environment(), "load": os.getloadavg(), "cases": lines}
    (kept / f"seed-{seed}.json").write_text(json.dumps(result, indent=2) + "\n")
    failed = [case for case in cases if case.outcome == "failed"]
    for case in failed:
        print(f"\ncase {case.number}: logs in {kept / f'seed-{seed}-case-{case.number}'}")
        for problem in case.problems:
            print(f"  {problem}")
    print(f"\n{len(cases)} cases, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
