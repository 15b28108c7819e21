"""Runs an experiment: each run is a process with its own folder; complete runs are not repeated."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

from orchestra_flwr.commands.own_process import own_process
from orchestra_flwr.config import Config, ConfigError, is_free
from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import duration
from orchestra_flwr.experiments.planning.classes_held import classes_held_by_clients
from orchestra_flwr.experiments.planning.measure_table import FINETUNING, MEASURES, TRANSFER
from orchestra_flwr.experiments.planning.plan import Plan
from orchestra_flwr.experiments.planning.rows import Row
from orchestra_flwr.experiments.planning.transfer import PROTOCOLS, check_transfer, with_root
from orchestra_flwr.experiments.results.runs import LOGS, STARTED, Run, last_error, read_run
from orchestra_flwr.files import at_home, write_atomically
from orchestra_flwr.folder_lock import is_locked
from orchestra_flwr.plugins import changed
from orchestra_flwr.reporting import RunFolder, environment

Announce = Callable[[str], None]
TRAIN, EVALUATE = "orchestra_flwr.cli:main", "orchestra_flwr.cli:evaluate_main"
REFUSED = 2  # exit code of a run that was not begun
POLL = 0.1  # seconds between looks at the processes
GRACE = 20  # seconds that an interrupted run has to end; its checkpoint is safe in any case


@dataclass
class Job:
    """One run and the commands that it still needs."""

    name: str  # of the run
    steps: list[list[str]]  # commands, one after another
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    process: subprocess.Popen[bytes] | None = None  # of the command that is running
    began: float = 0.0  # when the job was started (monotonic clock)
    was_begun: bool = False  # the run's folder existed before; the run is resumed
    is_elsewhere: bool = False  # another command runs it, and this one waits for its end
    # Returns the job as it stands later, or None once the run is complete.
    refresh: Callable[[], Job | None] | None = None


def run_plan(
    plan: Plan, configs: Mapping[str, Config], folder: Path, jobs: int, announce: Announce
) -> list[str]:
    """Runs the missing parts of an experiment.

    Args:
        plan: the experiment's runs; written into the folder, for the report.
        folder: holds the folders of all runs.
        announce: called with lines about the progress.

    Returns:
        The runs that failed; the others are complete.

    Raises:
        ConfigError: the images that encoders are evaluated on cannot be read; nothing was run.
        KeyboardInterrupt: all processes have ended, and everything can be resumed.
        OSError: the folder cannot be written.
    """
    todo = jobs_of(plan.rows, folder, plan)
    if plan.transfer and todo:
        images = plan.experiment.at(plan.scale).transfer
        check_transfer(images, plan.transfer_root, configs.values())
    plan.write(folder)
    for line in (*_of_other_images(configs, folder), *of_other_code(configs, folder)):
        announce(line)
    if plan.experiment.work == "split":
        return _measure_splits(configs, folder, announce)
    complete, begun = len(configs) - len(todo), sum(job.was_begun for job in todo)
    announce(
        f"{plan.name}, {plan.settings.title}: {len(configs)} runs, {complete} complete already"
        + (f", {begun} to be resumed" if begun else "")
    )
    return run_jobs(todo, folder, jobs, announce)


def _of_other_images(configs: Mapping[str, Config], folder: Path) -> Iterator[str]:
    """A line for each other folder of images from which existing runs were made.

    A run's name has only the last part of `data.root`, so that images may be moved. If the old
    folder still exists, they were not: these may be other images of the same name.
    """
    moved: Counter[tuple[str, str]] = Counter()
    for name, config in configs.items():
        root, run = config.data.options.get("root"), read_run(folder / name)
        if root and run is not None:
            with contextlib.suppress(ConfigError, OSError):  # one of the two is not there
                earlier = run.config.data.options.get("root")
                if earlier and not at_home(root).samefile(at_home(earlier)):
                    moved[earlier, root] += 1
    for (earlier, root), count in moved.items():
        yield (
            f"{count} of these runs exist already and are of the images in {earlier}, not in "
            f"{root}: for other images give another folder="
        )


def of_other_code(configs: Mapping[str, Config], folder: Path) -> Iterator[str]:
    """A line for each users' package that has changed since existing runs were made."""
    made_before: Counter[str] = Counter()
    for name, config in configs.items():
        if (run := read_run(folder / name)) is not None:
            made_before.update(changed(run.summary.get("versions") or {}, config.plugins))
    for package, count in made_before.items():
        yield (
            f"{count} of these runs exist already and are of other code: {package} has changed. "
            f"To train them again, remove their folders in {folder}"
        )


def run_jobs(todo: list[Job], folder: Path, jobs: int, announce: Announce) -> list[str]:
    """Runs jobs, at most `jobs` side by side; returns and raises as :func:`run_plan`."""
    (folder / LOGS).mkdir(parents=True, exist_ok=True)
    return _Sweep(todo, folder, jobs, announce).run()


def jobs_of(rows: Sequence[Row], folder: Path, plan: Plan | None = None) -> list[Job]:
    """The remaining jobs, in the order of the rows; none for complete runs.

    Args:
        plan: the experiment whose measures saved encoders are evaluated by; None: by none.
    """
    jobs: dict[str, Job] = {}
    for row in rows:
        job = _job_of(plan, row, folder)
        if job is not None:
            jobs.setdefault(row.run, job)
    return list(jobs.values())


def _job_of(plan: Plan | None, row: Row, folder: Path) -> Job | None:
    """The commands that a row still needs; None if it is complete."""
    path = folder / row.run
    run = read_run(path)
    if run and row.rounds is not None and run.summary.get("rounds", row.rounds) < row.rounds:
        run = replace(run, summary={})  # it was ended early, and can continue
    steps, begun = [], run is not None
    if run is None:
        overrides = [*row.overrides, f"seed={row.seed}", f"run_dir={path}"]
        steps.append(own_process(TRAIN, *overrides, "logging.progress=plain"))
    elif not run.summary:
        moved = [*_values_of(row, "plugins"), *(o for o in row.overrides if is_free(o))]
        steps.append(own_process(TRAIN, *moved, f"resume={path}"))
    steps += _evaluations(plan, row, path, run) if plan else []
    if not steps:
        return None
    return Job(row.run, steps, was_begun=begun, refresh=partial(_job_of, plan, row, folder))


def _evaluations(plan: Plan, row: Row, path: Path, run: Run | None) -> list[list[str]]:
    """The evaluations of a saved encoder that the plan's measures still need."""
    trained = run if run and run.summary else None  # the others are still to save their encoder
    if trained and row.rounds is not None and trained.summary.get("rounds", 0) > row.rounds:
        return []  # it was resumed with more rounds, and reports leave it out
    missing = {
        by
        for measure in plan.experiment.measures
        if (by := MEASURES[measure].evaluation)
        and (trained is None or trained.is_missing(measure, plan.transfer))
    }
    device = _values_of(row, "device", "plugins")
    commands = []
    if FINETUNING in missing:
        places = _values_of(row, "data.root", "data.cache")
        commands.append([*device, *places, "protocols=[finetune]", f"name={FINETUNING}"])
    if plan.transfer and TRANSFER in missing:
        images = with_root(plan.experiment.at(plan.scale).transfer, plan.transfer_root)
        commands.append([*device, *images, PROTOCOLS, f"name={plan.transfer}"])
    return [own_process(EVALUATE, f"run={path}", *arguments) for arguments in commands]


def _values_of(row: Row, *keys: str) -> list[str]:
    """The overrides of a row that set some keys, for its evaluations to share."""
    return [text for text in row.overrides if text.partition("=")[0].lstrip("+") in keys]


class _Sweep:
    def __init__(self, todo: list[Job], folder: Path, jobs: int, announce: Announce) -> None:
        self.todo, self.folder, self.jobs, self.announce = todo, folder, jobs, announce
        self.seconds: list[float] = []  # durations of jobs that were not resumed

    def run(self) -> list[str]:
        try:
            while any(job.state in ("waiting", "running") for job in self.todo):
                self._start_waiting()
                time.sleep(POLL)
                for job in self._in_state("running"):
                    self._check(job)
        finally:
            self._stop_running()
        return [job.name for job in self._in_state("failed")]

    def _log(self, job: Job) -> Path:
        return self.folder / LOGS / f"{job.name}.log"

    def _say(self, job: Job, what: str, left: str = "") -> None:
        self.announce(f"[{self.todo.index(job) + 1}/{len(self.todo)}] {what}: {job.name}{left}")

    def _in_state(self, state: str) -> list[Job]:
        return [job for job in self.todo if job.state == state]

    def _start_waiting(self) -> None:
        for job in self._in_state("waiting"):
            if len(self._in_state("running")) >= self.jobs:
                return
            if self._runs_elsewhere(job) or not self._is_still_to_do(job):
                continue
            job.state, job.began = "running", time.monotonic()
            with self._log(job).open("a") as log:
                print(f"{STARTED}{datetime.now():%Y-%m-%d %H:%M:%S}", file=log)
            self._say(job, "resumed" if job.was_begun else "started")
            self._next_step(job)

    def _runs_elsewhere(self, job: Job) -> bool:
        was, job.is_elsewhere = job.is_elsewhere, False
        with contextlib.suppress(OSError):  # the run itself says what is wrong with its folder
            job.is_elsewhere = is_locked(self.folder / job.name)
        if job.is_elsewhere and not was:
            self._say(job, "another command runs it")
        return job.is_elsewhere

    def _is_still_to_do(self, job: Job) -> bool:
        """Looks again: another command that shares the folder may have made the run first."""
        if job.refresh is None:
            return True
        now = job.refresh()
        if now is None:
            job.state = "done"
            self._say(job, "completed meanwhile")
            return False
        job.steps, job.was_begun = now.steps, now.was_begun
        return True

    def _next_step(self, job: Job) -> None:
        # A new session: Ctrl-C reaches this process alone, which then stops the others.
        with self._log(job).open("a") as log:
            job.process = subprocess.Popen(
                job.steps.pop(0),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _check(self, job: Job) -> None:
        assert job.process is not None
        code = job.process.poll()
        if code is None:
            return
        if code == 0 and job.steps:
            self._next_step(job)
            return
        if code and job.refresh and (self._runs_elsewhere(job) or _is_made(job, code)):
            job.state = "waiting"  # another command was faster
            return
        job.state = "done" if code == 0 else "failed"
        seconds = time.monotonic() - job.began
        if code == 0:
            self.seconds += [] if job.was_begun else [seconds]
            result = f"done in {duration(seconds)}"
        else:
            log = self._log(job)
            result = f"FAILED (exit code {code}): {last_error(log) or f'see {log}'}"
        self._say(job, result, self._left())

    def _left(self) -> str:
        waiting, running = self._in_state("waiting"), self._in_state("running")
        if not waiting and not running:
            return ""
        count = f"; {len(waiting) + len(running)} left"
        if not self.seconds:
            return count
        mean, now = sum(self.seconds) / len(self.seconds), time.monotonic()
        left = sum(max(0.0, mean - (now - job.began)) for job in running) + mean * len(waiting)
        return f"{count}, about {duration(left / self.jobs)}" if left else count

    def _stop_running(self) -> None:
        running = self._in_state("running")
        for job in running:
            if job.process:
                # Not SIGINT: processes that a shell started in the background ignore it.
                job.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for job in running:
            if job.process:
                try:
                    job.process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    job.process.kill()
                    job.process.wait()


def _is_made(job: Job, code: int) -> bool:
    """Whether a run that was refused, with nothing written, is now there all the same."""
    now = job.refresh() if job.refresh and code == REFUSED else job
    return now is None or now.was_begun > job.was_begun


def _measure_splits(configs: Mapping[str, Config], folder: Path, announce: Announce) -> list[str]:
    """Measures the splits in this process: it takes seconds."""
    failed = []
    for number, (name, config) in enumerate(configs.items(), 1):
        run = read_run(folder / name)
        if run is not None and run.summary:
            continue
        try:
            held = classes_held_by_clients(config)
            where = {"run_dir" if run is None else "resume": str(folder / name)}
            with RunFolder.open(config.model_copy(update=where)) as target:
                target.write_summary({"classes": held, "versions": environment()})
            announce(f"[{number}/{len(configs)}] done: {name}")
        except ConfigError as error:
            if _is_measured_elsewhere(folder / name):
                announce(f"[{number}/{len(configs)}] done by another command: {name}")
                continue
            (folder / LOGS).mkdir(parents=True, exist_ok=True)
            why = printable(str(error))  # names of files in it need not be UTF-8
            write_atomically(folder / LOGS / f"{name}.log", f"error: {why}\n".encode())
            failed.append(name)
            announce(f"[{number}/{len(configs)}] FAILED: {why}: {name}")
    return failed


def _is_measured_elsewhere(path: Path) -> bool:
    """Waits while another command writes to a folder; whether it is then complete."""
    while is_locked(path):
        time.sleep(POLL)
    run = read_run(path)
    return run is not None and bool(run.summary)
