"""The parts of an experiment: `conf/experiment/<name>.yaml` and `conf/scale/<scale>.yaml`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field
from yaml import YAMLError

from orchestra_flwr.config import ConfigError, Section, conf_dir, parse
from orchestra_flwr.experiments.planning.measure_table import Measure
from orchestra_flwr.plugins import must_be_one_of

Overrides = tuple[str, ...]
AxisValues = dict[str, Overrides]  # for every value of an axis its Hydra overrides
Cells = dict[str, tuple[str, ...]]  # some values of some axes
SCALES = ("paper", "medium", "small")
S = TypeVar("S", bound=Section)


class Adjustment(Section):
    """Overrides for the rows whose values are all in `when`."""

    when: Cells
    overrides: Overrides


class Scale(Section):
    """What all experiments of a scale have in common."""

    title: str  # its name in the report
    comparable: bool  # whether results may be compared with the paper's in absolute value
    jobs: int = Field(ge=1)  # runs side by side
    machine: Overrides = ()  # overrides of every run that choose what computes it
    overrides: Overrides  # of every run of an experiment that names no preset
    # Further such overrides, if `data.root` is set and if it is not.
    with_root: Overrides = ()
    without_root: Overrides = ()
    axes: dict[str, AxisValues]  # axes that experiments take by name
    adjustments: tuple[Adjustment, ...] = ()  # overrides for combinations of values of such axes
    # By axis, for a value the paper's value to show beside it.
    compare: dict[str, dict[str, str]] = Field(default_factory=dict)


class Scaling(Section):
    """A rule of section C.4 that follows an axis, from the value that a run has without it."""

    axis: str
    rule: Literal["local_epochs_with_clients", "lr_with_participation"]


class Presentation(Section):
    """How the report shows an experiment."""

    # table: numbers only; lines: a measure over an axis; rounds: kNN over the rounds; embedding:
    # t-SNE of test images; tuning: the score without labels against kNN.
    kind: Literal["table", "lines", "rounds", "embedding", "tuning"]
    # The axes whose values name a table's rows; x and series where there are none.
    rows: tuple[str, ...] = ()
    x: str | None = None  # the axis along which lines are drawn
    x_title: str | None = None  # its name in the picture
    series: str | None = None  # the axis that has a colour for each value

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The axes whose values name a table's rows; the other axes divide rows into tables."""
        return self.rows or tuple(axis for axis in (self.series, self.x) if axis)


class AtScale(Section):
    """What differs at one scale."""

    preset: str | None = None  # its settings replace the scale's
    overrides: Overrides = ()  # further ones, of every run
    # In place of the experiment's.
    axes: dict[str, str | AxisValues] = Field(default_factory=dict)
    leave_out: tuple[Cells, ...] | None = None
    # Other images to evaluate the encoders on; arguments of the evaluation's command.
    transfer: Overrides = ()


class Experiment(Section):
    """A table or a figure of the paper."""

    title: str
    reference: str  # its place in the paper
    about: str  # what it shows
    # What a row computes: `train` trains a federation, `split` only splits the images.
    work: Literal["train", "split"] = "train"
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)  # every row is run with all of them
    # What is varied, each axis by its values or by the name of an axis of the scale; every
    # combination is a row.
    axes: dict[str, str | AxisValues]
    # Combinations that are not run: those whose values are all in one entry.
    leave_out: tuple[Cells, ...] = ()
    scaling: Scaling | None = None
    measures: tuple[Measure, ...] = Field(min_length=1)  # what is reported
    show: Presentation
    paper: AtScale = AtScale()  # what differs at a scale
    small: AtScale = AtScale()
    medium: AtScale | None = None  # the same; None: what differs at `small`

    def at(self, scale: str) -> AtScale:
        """What differs at one of `SCALES`."""
        here = {"paper": self.paper, "medium": self.medium, "small": self.small}[scale]
        return self.small if here is None else here


def experiment_names() -> list[str]:
    """The names of all experiments: tables first, in the order of their numbers."""
    return sorted(
        (path.stem for path in (conf_dir() / "experiment").glob("*.yaml")), key=reading_order
    )


def reading_order(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """A sort key: tables first, and figure5 before figure10."""
    parts = re.findall(r"\d+|\D+", name)
    numbers_as_such = [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
    return parts[0] != "table", numbers_as_such


def load_experiment(name: str) -> Experiment:
    """Reads and checks an experiment.

    Raises:
        ConfigError: an unknown experiment (the message lists all), or a file with an error or with
            a name that no experiment can have.
    """
    names = experiment_names()
    if name not in names:
        raise ConfigError(f"experiment={name}: {must_be_one_of(name, names)}")
    check_name(name)
    experiment = _read(Experiment, conf_dir() / "experiment" / f"{name}.yaml")
    _check_axes(name, experiment)
    return experiment


def check_name(name: str) -> str:
    """Returns a name that files and commands can take as it is.

    Raises:
        ConfigError: another one, such as a path or one with spaces.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(
            f"experiment={name}: must be of letters, digits, _, - and ., and begin with none of "
            "the last two; rename its file"
        )
    return name


def load_scale(name: str) -> Scale:
    """Reads and checks a scale.

    Raises:
        ConfigError: an unknown scale, or a file with an error.
    """
    if name not in SCALES:
        raise ConfigError(f"scale={name}: {must_be_one_of(name, SCALES)}")
    return _read(Scale, conf_dir() / "scale" / f"{name}.yaml")


def covers(cells: Mapping[str, tuple[str, ...]], values: Mapping[str, str]) -> bool:
    """Whether the values of a row are all in `cells`."""
    return all(values.get(axis) in allowed for axis, allowed in cells.items())


def _read(section: type[S], file: Path) -> S:
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(file))
    except (YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
    return parse(section, values, file.stem)


def _check_axes(name: str, experiment: Experiment) -> None:
    show = experiment.show
    shown = [*show.row_axes, show.series, show.x]
    scales_present = [name for name in SCALES if getattr(experiment, name) is not None]
    scales = {name: experiment.at(name) for name in scales_present}
    cells = [*experiment.leave_out, *(c for here in scales.values() for c in here.leave_out or ())]
    axes_by_key = {
        "show": [axis for axis in shown if axis],
        "scaling": [experiment.scaling.axis] if experiment.scaling else [],
        "leave_out": [axis for entry in cells for axis in entry],
        **{f"{name}.axes": list(here.axes) for name, here in scales.items()},
    }
    for key, axes in axes_by_key.items():
        for axis in axes:
            if axis not in experiment.axes:
                raise ConfigError(
                    f"{name}.{key}: {axis} is no axis (must be one of {', '.join(experiment.axes)})"
                )
