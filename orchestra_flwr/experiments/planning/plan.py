"""The plan of an experiment: all of its runs, stored beside them for the report."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from orchestra_flwr.config import Config, ConfigError, Section, is_free, load_config, parse
from orchestra_flwr.experiments.planning.axes import axes_of, combinations, left_out, selected
from orchestra_flwr.experiments.planning.description import (
    Experiment,
    Overrides,
    Scale,
    check_name,
    load_experiment,
    load_scale,
    reading_order,
)
from orchestra_flwr.experiments.planning.rows import Composer, Row, check_rows_differ
from orchestra_flwr.experiments.planning.transfer import ROOT, transfer_name
from orchestra_flwr.files import read_json, write_json

PLANS = "plans"  # the folder, beside the runs, that assigns runs to experiments


class Plan(Section):
    """All runs of an experiment at a scale; stored beside them, for the report."""

    name: Annotated[str, AfterValidator(check_name)]  # a part of names of files, as is the scale
    scale: str = Field(pattern=r"^\w+$")
    command: str  # that runs it; one line each if several commands asked for some of the runs
    # Overrides that the command added to the experiment's; None in plans of old versions.
    extra: Overrides | None = None
    experiment: Experiment
    settings: Scale
    rows: tuple[Row, ...]
    transfer: str | None = None  # name of the evaluation by other images; None without any
    transfer_root: str | None = None  # where these images are, if the command said so

    @property
    def changes(self) -> list[str] | None:
        """The overrides of `extra` that change results; None in plans of old versions."""
        return None if self.extra is None else [o for o in self.extra if not is_free(o)]

    def write(self, folder: Path) -> None:
        """Writes `<folder>/plans/<name>-<scale>.json`.

        Rows that an earlier command asked for, with other seeds, other values of `only` or on
        another device, stay in the report. Rows of a command with overrides that change results are
        replaced, and so are those whose runs would have other settings today.
        """
        file = folder / PLANS / f"{self.name}-{self.scale}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        plan = self
        with contextlib.suppress(FileNotFoundError, ValueError):
            plan = self._with_rows_of(_read_plan(file))
        write_json(file, plan.model_dump(mode="json"))

    def _with_rows_of(self, earlier: Plan) -> Plan:
        same = ("changes", "experiment", "settings", "transfer")
        if any(getattr(self, key) != getattr(earlier, key) for key in same):
            return self
        asked = [(row.values, row.seed) for row in self.rows]
        others = [row for row in earlier.rows if (row.values, row.seed) not in asked]
        axes = axes_of(self.name, self.experiment, self.settings, self.scale)
        order = {axis: list(values) for axis, values in axes.items()}
        # Composed anew, whatever overrides the file has: it may be a stranger's.
        composer = Composer(self.experiment, self.settings, self.scale, axes, self.extra or ())
        rows = [*self.rows]
        for row in others:
            if all(value in order.get(axis, ()) for axis, value in row.values.items()):
                composed, _ = composer.rows([row.values], [row.seed])
                rows += [today for today in composed if today.run == row.run]
        rows.sort(key=lambda r: ([order[axis].index(v) for axis, v in r.values.items()], r.seed))
        commands = dict.fromkeys([*earlier.command.splitlines(), self.command])
        return self.model_copy(update={"rows": tuple(rows), "command": "\n".join(commands)})


def read_plans(folder: Path) -> tuple[list[Plan], dict[str, str]]:
    """The plans in a folder of runs, in reading order; none if there are no experiments.

    Returns:
        The plans, and the files that this version cannot read, each with a one-line reason.
    """
    plans, wrong = [], {}
    for file in sorted((folder / PLANS).glob("*.json")):
        try:
            plans.append(_read_plan(file))
        except ValueError as error:
            wrong[f"{PLANS}/{file.name}"] = str(error)
    return sorted(plans, key=lambda plan: (reading_order(plan.name), plan.scale)), wrong


def _read_plan(file: Path) -> Plan:
    return parse(Plan, read_json(file))


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

    Overrides of a row, of which later ones win: the scale's, or a preset in their place; the
    experiment's at the scale, those of axes that the scale names, the scale's adjustments, those
    of axes that the experiment defines, `extra`, and the scaling rule.

    Args:
        scale: paper, medium or small.
        seeds: None: those of the experiment.
        only: values of axes: rows with another value on these axes are left out. A value may be
            cut at its commas.
        extra: further Hydra overrides, of every run; none that would cancel an axis or a rule.
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
    axes = axes_of(name, experiment, settings, scale)
    composer = Composer(experiment, settings, scale, axes, extra)
    excluded = left_out(name, experiment, scale)
    if not [*combinations(axes, {}, excluded)]:
        raise ConfigError(f"{name}.leave_out: leaves out all combinations")
    chosen = combinations(axes, selected(axes, only), excluded)
    rows, configs = composer.rows(chosen, experiment.seeds if seeds is None else seeds)
    if not rows:
        raise ConfigError(f"only={','.join(only)}: no row has all of these values")
    check_rows_differ(rows, composer)
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


def _command(
    name: str, scale: str, seeds: Sequence[int] | None, only: Sequence[str], extra: Sequence[str]
) -> str:
    command = [f"orchestra-experiment experiment={name} scale={scale}"]
    command += [f"seeds={','.join(map(str, seeds))}"] if seeds is not None else []
    command += [f"only={shlex.quote(','.join(only))}"] if only else []
    return " ".join([*command, *map(shlex.quote, extra)])
