"""The axes of an experiment at a scale, and the combinations of their values that are run."""

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence

from orchestra_flwr.config import ConfigError
from orchestra_flwr.experiments.planning.description import (
    AxisValues,
    Cells,
    Experiment,
    Scale,
    covers,
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
