"""The results of an experiment by row: means over seeds beside the paper's."""

from dataclasses import dataclass, field
from pathlib import Path

from orchestra_flwr.experiments.planning.measure_table import MEASURES
from orchestra_flwr.experiments.planning.plan import Plan
from orchestra_flwr.experiments.planning.rows import Row
from orchestra_flwr.experiments.results.paper import paper_value
from orchestra_flwr.experiments.results.runs import LOGS, Run, last_error, read_run, unreadable
from orchestra_flwr.experiments.results.statistics import Sample

ACCURACIES = ("knn", "linear")


@dataclass(frozen=True)
class Result:
    """A row of an experiment, over its seeds."""

    values: dict[str, str]  # the row's value on each axis
    runs: tuple[Run, ...]  # its complete runs
    ours: dict[str, Sample]  # by measure, the mean of the runs that have it, in the measure's unit
    paper: dict[str, Sample]  # by measure, what the paper prints
    # By measure, the mean before training of the same runs.
    before: dict[str, Sample] = field(default_factory=dict)

    def gain(self, measure: str) -> float | None:
        """What training added to a measure."""
        if measure not in self.ours or measure not in self.before:
            return None
        return self.ours[measure].mean - self.before[measure].mean

    def is_worse(self, measure: str) -> bool:
        """Whether training made a measure worse, if more of it is better."""
        return (self.gain(measure) or 0) < 0

    def difference(self, measure: str) -> float | None:
        """Our mean minus the paper's."""
        if measure not in self.ours or measure not in self.paper:
            return None
        return self.ours[measure].mean - self.paper[measure].mean

    def label(self, axes: tuple[str, ...]) -> str:
        """The values on some axes, as text."""
        return ", ".join(self.values[axis] for axis in axes)


@dataclass(frozen=True)
class Results:
    """The results of an experiment."""

    plan: Plan
    rows: tuple[Result, ...]  # in the plan's order
    # Why runs are missing, unfinished, failed or not fully evaluated, by name.
    incomplete: dict[str, str]

    @property
    def runs(self) -> list[Run]:
        """All complete runs without repetition."""
        return list({run.name: run for row in self.rows for run in row.runs}.values())

    def sections(self, inner: tuple[str, ...]) -> dict[str, list[Result]]:
        """The rows by their values on the axes that are not `inner`, in the plan's order."""
        outer = tuple(axis for axis in self.plan.experiment.axes if axis not in inner)
        sections: dict[str, list[Result]] = {}
        for row in self.rows:
            sections.setdefault(row.label(outer), []).append(row)
        return sections


def read_results(plan: Plan, folder: Path) -> Results:
    """Reads the runs of a plan.

    A run counts if it is complete and has as many rounds as planned: one that got more rounds or
    ended early is left out, and so is one that is damaged or that this version cannot read.
    """
    by_row: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    incomplete: dict[str, str] = {}
    by_name = {row.run: read_run(folder / row.run) for row in plan.rows}
    plan = _with_map(plan, [run for run in by_name.values() if run is not None])
    for row in plan.rows:
        runs = by_row.setdefault(tuple(row.values.items()), [])
        run, log = by_name[row.run], folder / LOGS / f"{row.run}.log"
        if run is not None and (why := why_left_out(run, row)):
            incomplete[row.run] = why
        elif run is not None and run.summary:
            runs.append(run)
            missing = [m for m in plan.experiment.measures if run.is_missing(m, plan.transfer)]
            if missing:
                titles = ", ".join(MEASURES[measure].title for measure in missing)
                incomplete[row.run] = _with_error(f"not measured: {titles}", log)
        else:
            incomplete[row.run] = _why(run, log)
    rows = tuple(_result(plan, dict(values), runs) for values, runs in by_row.items())
    return Results(plan, rows, incomplete)


def _with_map(plan: Plan, runs: list[Run]) -> Plan:
    """Replaces accuracies by mAP where images have several labels, and so no accuracies."""
    measured = {m for run in runs for m in ("map", *ACCURACIES) if run.measure(m) is not None}
    if "map" not in measured:
        return plan
    asked = plan.experiment.measures
    left = [m for m in asked if m not in ACCURACIES or m in measured]
    measures = tuple(dict.fromkeys(("map", *left)))
    experiment = plan.experiment.model_copy(update={"measures": measures})
    return plan.model_copy(update={"experiment": experiment})


def why_left_out(run: Run, row: Row) -> str | None:
    """Why a run, complete or not, does not count for a row; None: it does."""
    if wrong := unreadable([run]):
        return f"cannot be read: {wrong[run.folder]}"
    rounds = run.summary.get("rounds", run.config.federation.rounds)
    if run.summary and row.rounds is not None and rounds != row.rounds:
        return f"has {rounds} rounds, not {row.rounds}"
    return None


def _result(plan: Plan, values: dict[str, str], runs: list[Run]) -> Result:
    compared = {
        axis: plan.settings.compare.get(axis, {}).get(value, value)
        for axis, value in values.items()
    }
    ours: dict[str, Sample] = {}
    paper: dict[str, Sample] = {}
    before: dict[str, Sample] = {}
    for measure in plan.experiment.measures:
        factor = MEASURES[measure].factor
        measured = [run for run in runs if run.measure(measure, plan.transfer) is not None]
        for samples, taken in (
            (ours, [run.measure(measure, plan.transfer) for run in measured]),
            (before, [run.before(measure) for run in measured]),
        ):
            sample = Sample.of([factor * value for value in taken if value is not None])
            if sample is not None and sample.count == len(measured):
                samples[measure] = sample
        if (printed := paper_value(plan.name, compared, measure)) is not None:
            paper[measure] = printed
    return Result(values, tuple(runs), ours, paper, before)


def _why(run: Run | None, log: Path) -> str:
    if run is None:
        error = last_error(log)
        return f"failed: {error}" if error else "not run"
    done = run.metrics[-1]["round"] if run.metrics else 0
    return _with_error(f"unfinished, {done} of {run.config.federation.rounds} rounds", log)


def _with_error(state: str, log: Path) -> str:
    error = last_error(log)
    return f"{state}, failed: {error}" if error else state
