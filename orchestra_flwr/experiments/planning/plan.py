"""From an experiment to its runs: one for every row and seed, with a unique name."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestra_flwr.config import (
    RESUME_MAY_CHANGE,
    Config,
    ConfigError,
    Section,
    is_free,
    load_config,
    parse,
    without_unread,
)
from orchestra_flwr.experiments.planning.description import (
    AxisValues,
    Cells,
    Experiment,
    Overrides,
    Scale,
    covers,
    load_experiment,
    load_scale,
    reading_order,
)
from orchestra_flwr.experiments.planning.joined_values import joined_values
from orchestra_flwr.experiments.planning.scaling import scaled_override
from orchestra_flwr.experiments.planning.transfer import ROOT, transfer_name
from orchestra_flwr.files import write_atomically
from orchestra_flwr.fingerprints import fingerprint_of

Axes = Mapping[str, AxisValues]
Values = dict[str, str]  # of a row, by axis
# Overrides that a measure needs.
NEEDED: Mapping[str, Overrides] = {
    "unsupervised": ("evaluation.unsupervised=true",),
    **dict.fromkeys(("linear_10", "linear_1"), ("evaluation.few_labels=true",)),
    **dict.fromkeys(
        ("linear_recalibrated", "accuracy_recalibrated"), ("evaluation.recalibrated=true",)
    ),
    **dict.fromkeys(("drift", "drift_pairs"), ("evaluation.drift=true",)),
    **dict.fromkeys(
        ("own_linear", "own_linear_worst", "own_accuracy", "own_accuracy_worst"),
        ("evaluation.clients=true",),
    ),
}
PLANS = "plans"  # the folder, beside the runs, that says which runs belong to which experiment


class Row(Section):
    """One run of an experiment.

    Attributes:
        values: the row's value on each axis.
        seed: of the run.
        overrides: arguments of `orchestra-sim`, without the seed.
        run: the name of its folder.
        rounds: that the run has when it is complete; None in plans of before.
    """

    values: dict[str, str]
    seed: int
    overrides: Overrides
    run: str
    rounds: int | None = None


class Plan(Section):
    """All runs of an experiment at a scale; stored beside them, for the report.

    Attributes:
        command: that runs it; a line for each, where several commands asked for some of the runs.
        extra: overrides that the command added to those of the experiment; None in plans of before.
        experiment, settings: what is run, and its scale.
        transfer: name of the evaluation by other images; None without any.
        transfer_root: where these are, if the command said so.
    """

    name: str
    scale: str
    command: str
    extra: Overrides | None = None
    experiment: Experiment
    settings: Scale
    rows: tuple[Row, ...]
    transfer: str | None = None
    transfer_root: str | None = None

    def write(self, folder: Path) -> None:
        """Writes `<folder>/plans/<name>-<scale>.json`.

        Rows that an earlier command asked for, with other seeds or other values of `only`, stay in
        the report; those of a command with other overrides are replaced, and so are those whose
        runs would have other settings today.
        """
        file = folder / PLANS / f"{self.name}-{self.scale}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        plan = self
        with contextlib.suppress(FileNotFoundError, ValueError):
            plan = self._with_rows_of(_read_plan(file))
        write_atomically(file, (plan.model_dump_json(indent=1) + "\n").encode())

    def _with_rows_of(self, earlier: Plan) -> Plan:
        same = ("extra", "experiment", "settings", "transfer")
        if any(getattr(self, key) != getattr(earlier, key) for key in same):
            return self
        asked = [(row.values, row.seed) for row in self.rows]
        others = [row for row in earlier.rows if (row.values, row.seed) not in asked]
        rows = [*self.rows, *_of_today(others, self.experiment.work)]
        axes = _axes(self.name, self.experiment, self.settings, self.scale)
        order = {axis: list(values) for axis, values in axes.items()}
        rows.sort(key=lambda r: ([order[axis].index(v) for axis, v in r.values.items()], r.seed))
        commands = dict.fromkeys([*earlier.command.splitlines(), self.command])
        return self.model_copy(update={"rows": tuple(rows), "command": "\n".join(commands)})


def _of_today(rows: Iterable[Row], work: str) -> Iterator[Row]:
    """The rows whose runs have the names, and so the settings, that this version gives them."""
    configs: dict[Overrides, Config | None] = {}
    for row in rows:
        if row.overrides not in configs:
            configs[row.overrides] = None
            with contextlib.suppress(ConfigError):
                configs[row.overrides] = load_config(row.overrides)
        config = configs[row.overrides]
        if config and run_name(config.model_copy(update={"seed": row.seed}), work) == row.run:
            yield row


def read_plans(folder: Path) -> tuple[list[Plan], dict[str, str]]:
    """The plans in a folder of runs, in reading order; none where there are no experiments.

    Returns:
        The plans, and the files that this version cannot read, each with the reason in a line.
    """
    plans, wrong = [], {}
    for file in sorted((folder / PLANS).glob("*.json")):
        try:
            plans.append(_read_plan(file))
        except ValueError as error:
            wrong[f"{PLANS}/{file.name}"] = str(error)
    return sorted(plans, key=lambda plan: (reading_order(plan.name), plan.scale)), wrong


def _read_plan(file: Path) -> Plan:
    return parse(Plan, json.loads(file.read_text()))


def make_plan(
    name: str,
    scale: str,
    *,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    extra: Sequence[str] = (),
    transfer_root: str | None = None,
) -> tuple[Plan, dict[str, Config]]:
    """Makes the plan of an experiment.

    Overrides of a row, later ones winning: the scale's, or a preset in their place; the
    experiment's at the scale, those of axes that the scale names, the scale's adjustments, those
    of axes that the experiment defines, `extra`, and the scaling rule.

    Args:
        name: of the experiment.
        scale: paper, medium or small.
        seeds: None: those of the experiment.
        only: values of axes: rows with another value on these axes are left out. A value may be
            cut at its commas.
        extra: further Hydra overrides, of every run; none that an axis or a rule would lose by.
        transfer_root: where the other images are that encoders are evaluated on.

    Returns:
        The plan, and the configuration of each run by the run's name.

    Raises:
        ConfigError: an unknown name, a value that no axis has, or overrides that do not compose or
            make two rows the same run.
    """
    experiment, settings = load_experiment(name), load_scale(scale)
    _check_extra(extra)
    if any(not is_free(override) for override in extra):
        settings = settings.model_copy(update={"comparable": False})
    axes = _axes(name, experiment, settings, scale)
    composer = _Composer(experiment, settings, scale, axes, extra)
    left_out = experiment.at(scale).leave_out
    left_out = experiment.leave_out if left_out is None else left_out
    chosen = _combinations(axes, _selected(axes, only), left_out)
    rows, configs = composer.rows(chosen, experiment.seeds if seeds is None else seeds)
    if not rows:
        raise ConfigError(f"only={','.join(only)}: no row has all of these values")
    _check_rows_differ(rows, composer)
    for override in extra:
        if all(override not in row.overrides for row in rows):
            load_config([*rows[0].overrides, override], all_read=True)  # says why nothing reads it
    places = [f"{ROOT}={transfer_root}"] if transfer_root else []
    plan = Plan(
        name=name,
        scale=scale,
        command=_command(name, scale, seeds, only, (*places, *extra)),
        extra=tuple(extra),
        experiment=experiment,
        settings=settings,
        rows=tuple(rows),
        transfer=transfer_name(experiment.at(scale).transfer, transfer_root),
        transfer_root=transfer_root,
    )
    return plan, configs


def _check_extra(extra: Sequence[str]) -> None:
    for override in extra:
        key = override.partition("=")[0].lstrip("+")
        if key in ("seed", "run_dir", "resume"):
            instead = "seeds=" if key == "seed" else "folder="
            raise ConfigError(f"{override}: each run of an experiment has its own; use {instead}")


def _check_rows_differ(rows: Sequence[Row], composer: _Composer) -> None:
    """Refuses overrides in whose place an axis has its values, also where `only` leaves one value.

    Raises:
        ConfigError: a row and one with another value of an axis would be the same run, and are not
            without the overrides.
    """
    if all(map(is_free, composer.extra)):
        return
    plain, seed = replace(composer, extra=()), rows[0].seed
    runs = {tuple(row.values.items()): row.run for row in rows if row.seed == seed}
    for values, run in list(runs.items()):
        row = dict(values)
        for axis, choice in ((axis, c) for axis, choices in composer.axes.items() for c in choices):
            other = {**row, axis: choice}
            key = tuple(other.items())
            if choice == row[axis]:
                continue
            if key not in runs:
                runs[key] = composer.run(other, seed)
            if runs[key] == run and plain.run(other, seed) != plain.run(row, seed):
                raise ConfigError(
                    f"{' '.join(composer.extra)}: makes {axis} {row[axis]} and {choice} the same "
                    "run; an override cannot set what the experiment varies"
                )


def _command(
    name: str, scale: str, seeds: Sequence[int] | None, only: Sequence[str], extra: Sequence[str]
) -> str:
    command = [f"orchestra-experiment experiment={name} scale={scale}"]
    command += [f"seeds={','.join(map(str, seeds))}"] if seeds is not None else []
    command += [f"only={shlex.quote(','.join(only))}"] if only else []
    return " ".join([*command, *map(shlex.quote, extra)])


def run_name(config: Config, work: str = "train", *, whole_root: bool = False) -> str:
    """A run's folder: readable, and equal for two runs only if they compute the same.

    Experiments share runs by it. Where a run is computed and what is shown meanwhile makes no
    difference (`RESUME_MAY_CHANGE`), nor does a term of weight 0.

    Args:
        config: of the run.
        work: what is done, the first part of the name where it is no training.
        whole_root: whether the whole path of `data.root` makes a difference, and not only its last
            part, by which images that were moved are still the same.
    """
    values = config.model_dump()
    values["terms"] = {term.name: term.model_dump() for term in config.active_terms}
    root = config.data.options.get("root")
    for key in (*RESUME_MAY_CHANGE, "name", "run_dir", "resume"):
        *path, last = key.split(".")
        section = values
        for part in path:
            section = section[part]
        section.pop(last, None)
    if root and whole_root:
        values["root"] = str(Path(root).expanduser().resolve())
    else:
        values["root"] = Path(root).name if root else None
    digest = fingerprint_of(json.dumps(values, sort_keys=True), digits=10)
    dirichlet = config.partition.name == "dirichlet"
    split = f"-a{config.partition.settings.alpha:g}" if dirichlet else ""
    clients = f"k{config.federation.clients}"
    what = config.method.name if work == "train" else work
    return f"{what}-{config.data.name}-{clients}{split}-s{config.seed}-{digest}"


def _axes(name: str, experiment: Experiment, settings: Scale, scale: str) -> Axes:
    """The values of all axes at a scale."""
    axes = {}
    for axis, choices in {**experiment.axes, **experiment.at(scale).axes}.items():
        if not isinstance(choices, str):
            axes[axis] = choices
        elif choices in settings.axes:
            axes[axis] = settings.axes[choices]
        else:
            raise ConfigError(
                f"{name}.axes.{axis}={choices}: must be choices or one of "
                f"{', '.join(settings.axes)}"
            )
    return axes


def _selected(axes: Axes, only: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The values that `only` allows, by axis."""
    selected: dict[str, tuple[str, ...]] = {}
    for value in joined_values(only, {value for choices in axes.values() for value in choices}):
        matching = [axis for axis, choices in axes.items() if value in choices]
        if not matching:
            values = ", ".join(value for choices in axes.values() for value in choices)
            raise ConfigError(f"only={value}: must be among {values}")
        selected[matching[0]] = (*selected.get(matching[0], ()), value)
    return selected


def _combinations(axes: Axes, selected: Cells, left_out: Sequence[Cells]) -> Iterator[Values]:
    """The combinations that are run: those that are selected, but for what is left out."""
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        if covers(selected, values) and not any(covers(entry, values) for entry in left_out):
            yield values


@dataclass(frozen=True)
class _Composer:
    """Composes the overrides of rows."""

    experiment: Experiment
    settings: Scale
    scale: str
    axes: Axes
    extra: Sequence[str]

    def rows(
        self, combinations: Iterable[Values], seeds: Sequence[int]
    ) -> tuple[list[Row], dict[str, Config]]:
        """A row for every combination and seed, and the configuration of each run by its name."""
        rows, configs = [], {}
        for values in combinations:
            overrides, config = self.compose(values)
            rounds = config.federation.rounds
            for seed in dict.fromkeys(seeds):
                seeded = config.model_copy(update={"seed": seed})
                run = run_name(seeded, self.experiment.work)
                configs[run] = seeded
                rows.append(
                    Row(values=values, seed=seed, overrides=overrides, run=run, rounds=rounds)
                )
        return rows, configs

    def run(self, values: Mapping[str, str], seed: int) -> str:
        """The name of a row's run; "" of a row that does not compose, such as one left out."""
        try:
            _, config = self.compose(values)
        except ConfigError:
            return ""
        return run_name(config.model_copy(update={"seed": seed}), self.experiment.work)

    def compose(self, values: Mapping[str, str]) -> tuple[Overrides, Config]:
        overrides = [*self._overrides(values), *self.extra]
        scaling = self.experiment.scaling
        if scaling:
            without = {axis: value for axis, value in values.items() if axis != scaling.axis}
            config, reference = (
                load_config(chosen)
                for chosen in (overrides, [*self._overrides(without), *self.extra])
            )
            overrides.append(scaled_override(scaling.rule, config, reference))
        read = without_unread(load_config(overrides), overrides)
        return tuple(read), load_config(read)

    def _overrides(self, values: Mapping[str, str]) -> list[str]:
        here = self.experiment.at(self.scale)
        chosen = {**self.experiment.axes, **here.axes}
        shared = [axis for axis in values if isinstance(chosen[axis], str)]
        specific = [axis for axis in values if axis not in shared]
        return [
            *self.settings.machine,
            *([f"preset={here.preset}"] if here.preset else self._scaled()),
            *here.overrides,
            *dict.fromkeys(o for m in self.experiment.measures for o in NEEDED.get(m, ())),
            *(o for axis in shared for o in self.axes[axis][values[axis]]),
            *(o for a in self.settings.adjustments if covers(a.when, values) for o in a.overrides),
            *(o for axis in specific for o in self.axes[axis][values[axis]]),
        ]

    def _scaled(self) -> Overrides:
        """The scale's own settings."""
        rooted = any(override.startswith("data.root=") for override in self.extra)
        further = self.settings.with_root if rooted else self.settings.without_root
        return (*self.settings.overrides, *further)
