"""The rows of an experiment: one for each combination and seed, with the name of its run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import Field

from orchestra_flwr.config import (
    WITHOUT_EFFECT,
    Config,
    ConfigError,
    Section,
    is_free,
    load_config,
    without_options_of_others,
    without_unread,
)
from orchestra_flwr.experiments.planning.axes import Axes, Values
from orchestra_flwr.experiments.planning.description import Experiment, Overrides, Scale, covers
from orchestra_flwr.experiments.planning.measure_table import MEASURES
from orchestra_flwr.experiments.planning.scaling import scaled_override
from orchestra_flwr.files import at_home
from orchestra_flwr.fingerprints import fingerprint_of

TIMEOUT = "federation.round_timeout"  # in a simulation only a clock reads it
UNLESS_USUAL = (  # in a run's name if not the default
    "federation.max_update",
    TIMEOUT,
    "training.min_steps",
    "data.augmentation.view_size",
)


class Row(Section):
    """One run of an experiment."""

    values: dict[str, str]  # the row's value on each axis
    seed: int  # of the run
    overrides: Overrides  # arguments of `orchestra-sim`, without the seed
    run: str = Field(pattern=r"^[^/.][^/]*$")  # a folder beside the plans
    rounds: int | None = None  # that the run has when it is complete; None in plans of old versions


@dataclass(frozen=True)
class Composer:
    """Composes the rows of an experiment at a scale."""

    experiment: Experiment
    settings: Scale
    scale: str  # the name of the settings
    axes: Axes  # the values of each axis at the scale
    extra: Sequence[str]  # overrides of the command, of every row
    # Cached configurations by their overrides, which many rows share.
    composed: dict[Overrides, Config] = field(default_factory=dict)

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
        """The name of a row's run; "" if the row does not compose, such as one left out."""
        try:
            _, config = self.compose(values)
        except ConfigError:
            return ""
        return run_name(config.model_copy(update={"seed": seed}), self.experiment.work)

    def compose(self, values: Mapping[str, str]) -> tuple[Overrides, Config]:
        """The overrides of a row that its run reads, without the seed, and its configuration."""
        overrides = self._with_extra(values)
        scaling = self.experiment.scaling
        if scaling:
            without = {axis: value for axis, value in values.items() if axis != scaling.axis}
            config, reference = (
                self._config(chosen) for chosen in (overrides, self._with_extra(without))
            )
            overrides.append(scaled_override(scaling.rule, config, reference))
        read = without_unread(self._config(overrides), overrides)
        return tuple(read), self._config(read)

    def _with_extra(self, values: Mapping[str, str]) -> list[str]:
        """The overrides of a row with those of the command, but for options that it has not."""
        overrides = [*self._overrides(values), *self.extra]
        return without_options_of_others(overrides, self.extra) if self.extra else overrides

    def _config(self, overrides: Sequence[str]) -> Config:
        key = tuple(overrides)
        if key not in self.composed:
            self.composed[key] = load_config(key)
        return self.composed[key]

    def _overrides(self, values: Mapping[str, str]) -> list[str]:
        here = self.experiment.at(self.scale)
        chosen = {**self.experiment.axes, **here.axes}
        shared = [axis for axis in values if isinstance(chosen[axis], str)]
        specific = [axis for axis in values if axis not in shared]
        return [
            *self.settings.machine,
            "evaluation.limit=null",  # tables hold figures of all images
            *([f"preset={here.preset}"] if here.preset else self._scaled()),
            *here.overrides,
            *dict.fromkeys(need for m in self.experiment.measures if (need := MEASURES[m].needs)),
            *(o for axis in shared for o in self.axes[axis][values[axis]]),
            *(o for a in self.settings.adjustments if covers(a.when, values) for o in a.overrides),
            *(o for axis in specific for o in self.axes[axis][values[axis]]),
        ]

    def _scaled(self) -> Overrides:
        """The scale's own settings."""
        rooted = any(override.startswith("data.root=") for override in self.extra)
        further = self.settings.with_root if rooted else self.settings.without_root
        return (*self.settings.overrides, *further)


def check_rows_differ(rows: Sequence[Row], composer: Composer) -> None:
    """Refuses overrides that cancel an axis, also if `only` leaves it one value.

    Raises:
        ConfigError: a row and a row with another value of an axis would be the same run, but only
            because of the overrides.
    """
    if all(map(is_free, composer.extra)):
        return
    seed = rows[0].seed
    leaner = [replace(composer, extra=fewer) for fewer in _with_less(composer.extra)]
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
            if runs[key] == run and any(c.run(other, seed) != c.run(row, seed) for c in leaner):
                raise ConfigError(
                    f"{' '.join(composer.extra)}: makes {axis} {row[axis]} and {choice} the same "
                    "run; an override cannot set what the experiment varies"
                )


def _with_less(extra: Sequence[str]) -> list[Overrides]:
    """No override, and all but one: without some, such as `plugins`, no row may compose."""
    return [(), *((*extra[:i], *extra[i + 1 :]) for i in range(len(extra)))]


def run_name(config: Config, work: str = "train", *, whole_root: bool = False) -> str:
    """A run's folder: readable, and equal for two runs only if they compute the same.

    Experiments share runs by this name. Where a run is computed and what is shown meanwhile makes
    no difference (`WITHOUT_EFFECT`), nor does a term of weight 0. Keys that came later
    (`UNLESS_USUAL`) make one only if they are not the default, so that older runs keep their names;
    `federation.round_timeout` only with a clock.

    Args:
        work: what is done; if it is not training, the first part of the name.
        whole_root: whether the whole path of `data.root` makes a difference, not only its last
            part, with which images that were moved still count as the same.
    """
    values = config.model_dump()
    values["terms"] = {term.name: term.model_dump() for term in config.active_terms}
    root = config.data.options.get("root")
    for key in (*UNLESS_USUAL, *WITHOUT_EFFECT, "name", "run_dir", "resume", "resume_round"):
        *path, last = key.split(".")
        section, model = values, config
        for part in path:
            section, model = section[part], getattr(model, part)
        is_read = key in UNLESS_USUAL and (key != TIMEOUT or config.clock.plugin.keeps_time)
        if not is_read or section[last] == type(model).model_fields[last].default:
            section.pop(last, None)
    if root and whole_root:
        values["root"] = str(at_home(root).resolve())
    else:
        values["root"] = Path(root).name if root else None
    digest = fingerprint_of(json.dumps(values, sort_keys=True), digits=10)
    dirichlet = config.partition.name == "dirichlet"
    split = f"-a{config.partition.settings.alpha:g}" if dirichlet else ""
    clients = f"k{config.federation.clients}"
    what = config.method.name if work == "train" else work
    return f"{what}-{config.data.name}-{clients}{split}-s{config.seed}-{digest}"
