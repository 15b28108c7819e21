"""`python -m orchestra_flwr.experiments.theory FOLDER`: the toy theory of Dec-SSL, in seconds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from orchestra_flwr.console.output_streams import outlast_output
from orchestra_flwr.console.printable import printable
from orchestra_flwr.extras import require_server

USAGE = """\
usage: python -m orchestra_flwr.experiments.theory FOLDER [dimensions=256,1024] [sources=3,5]
                                                          [seed=0]

Which axes do sources represent that learn with labels, and without? Simulates every pair of a
number of dimensions and of sources, and writes theory.md, theory.json and theory.png into FOLDER.
Seconds for 256 and 1,024 dimensions, a minute for 4,096.

Exit code 0: done, 1: a file cannot be written, 2: a wrong argument.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    # Heavy imports wait for help and for wrong arguments.
    outlast_output()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    try:
        require_server("python -m orchestra_flwr.experiments.theory")
        folder, settings = _parsed(arguments)
    except ValueError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    from orchestra_flwr.experiments.theory.theory_output import write_results
    from orchestra_flwr.experiments.theory.toy_model import Setting, simulate

    outcomes = []
    for dimensions, sources, seed in settings:
        setting = Setting(dimensions, sources, seed=seed)
        outcomes.append((setting, simulate(setting)))
        print(f"d={dimensions}, K={sources}: done", flush=True)
    try:
        print(f"results: {write_results(folder, outcomes)}")
    except OSError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 1
    return 0


def _parsed(arguments: Sequence[str]) -> tuple[Path, list[tuple[int, int, int]]]:
    """The folder, and dimensions, sources and seed of every simulation.

    Raises:
        ValueError: says what is wrong and what is allowed.
    """
    values = {"dimensions": [256, 1024], "sources": [3, 5], "seed": [0]}
    folders = [each for each in arguments if "=" not in each]
    for each in arguments:
        key, found, text = each.partition("=")
        if found and key not in values:
            raise ValueError(f"{key}: unknown key, must be one of {', '.join(values)}")
        if found:
            if not all(part.isdigit() for part in text.split(",")):
                raise ValueError(f"{each}: must be whole numbers, such as {key}={values[key][0]}")
            values[key] = [int(part) for part in text.split(",")]
    if len(values["seed"]) > 1:
        raise ValueError("seed: must be one number")
    if len(folders) != 1:
        raise ValueError("one folder for the results must be given (--help)")
    if min(values["sources"]) < 2:
        raise ValueError(f"sources={min(values['sources'])}: must be at least 2")
    if min(values["dimensions"]) < 4 * max(values["sources"]):
        least = 4 * max(values["sources"])
        raise ValueError(f"dimensions={min(values['dimensions'])}: must be at least {least}")
    pairs = [(d, k, values["seed"][0]) for k in values["sources"] for d in values["dimensions"]]
    return Path(folders[0]), pairs


if __name__ == "__main__":
    sys.exit(main())
