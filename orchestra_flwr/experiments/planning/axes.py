"""The axes of an experiment at a scale, and the combinations of their values that are run."""

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence

from orchestra_flwr.config import ConfigError
from orchestra_flwr.experiments.planning.description import (
    SCALES,
    AxisValues,
    Cells,
    Experiment,
    Scale,
    covers,
    load_scale,
)

Axes = Mapping[str, AxisValues]
Values = dict[str, str]  # of a row, by axis


def axes_of(name: str, experiment: Experiment, settings: Scale, scale: str) -> Axes:
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
        if not axes[axis]:
            raise ConfigError(f"{name}.axes.{axis}: must have at least one value")
    return axes


def selected(axes: Axes, only: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The values that `only` allows, by axis."""
    chosen: dict[str, tuple[str, ...]] = {}
    for value in joined_values(only, {value for choices in axes.values() for value in choices}):
        matching = [axis for axis, choices in axes.items() if value in choices]
        if not matching:
            values = "; ".join(value for choices in axes.values() for value in choices)
            raise ConfigError(f"only={value}: must be among {values}")
        chosen[matching[0]] = (*chosen.get(matching[0], ()), value)
    return chosen


def left_out(name: str, experiment: Experiment, scale: str) -> Sequence[Cells]:
    """The combinations that are not run at a scale.

    Those of the experiment may name values that it has at another scale.

    Raises:
        ConfigError: a value that no axis has: with it an entry leaves out nothing.
    """
    here = experiment.at(scale).leave_out
    entries, scales = (experiment.leave_out, SCALES) if here is None else (here, (scale,))
    known = _values_at(scales, experiment) if entries else {}
    for axis, values in (pair for entry in entries for pair in entry.items()):
        for value in values:
            if value not in known[axis]:
                allowed = "; ".join(known[axis])
                raise ConfigError(f"{name}.leave_out.{axis}={value}: must be among {allowed}")
    return entries


def _values_at(scales: Sequence[str], experiment: Experiment) -> dict[str, dict[str, None]]:
    """The values that each axis has at any of some scales, in their order."""
    known: dict[str, dict[str, None]] = {}
    for scale in scales:
        settings = load_scale(scale)
        for axis, choices in {**experiment.axes, **experiment.at(scale).axes}.items():
            values = settings.axes.get(choices, {}) if isinstance(choices, str) else choices
            known.setdefault(axis, {}).update(dict.fromkeys(values))
    return known


def joined_values(parts: Sequence[str], known: Container[str]) -> list[str]:
    """Values of a command line, rejoined where they were cut at commas of their own.

    From left to right the longest known value is taken; a part that belongs to none stays as it is.

    Examples:
        >>> joined_values(["base", "GroupNorm", " clip 3"], {"base", "GroupNorm, clip 3"})
        ['base', 'GroupNorm, clip 3']
    """
    joined: list[str] = []
    first = 0
    while first < len(parts):
        ends = range(len(parts), first, -1)
        values = {end: ",".join(parts[first:end]).strip() for end in ends}
        end = next((end for end in ends if values[end] in known), first + 1)
        joined.append(values[end])
        first = end
    return joined


def combinations(axes: Axes, selected: Cells, left_out: Sequence[Cells]) -> Iterator[Values]:
    """The combinations to run: those selected, except those left out."""
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        if covers(selected, values) and not any(covers(entry, values) for entry in left_out):
            yield values
