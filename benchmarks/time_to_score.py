"""Virtual time to the same linear probe with a tenth of the clients ten times slower.

    python benchmarks/time_to_score.py [--seeds 0 1 2] [--target 0.6] [override ...]

Digits (affine_digits), 20 clients, half of them at work, on `clock=virtual`: rounds that wait for
all, rounds that ask more clients and end with 80 %, and buffered updates. Every way uses 160
results. A run takes about half a minute of one core.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common import table, write

from orchestra_flwr import simulate
from orchestra_flwr.reporting import RunFolder

SETTING = (
    "device=cpu",
    "engine=inline",
    "method=simclr",
    "federation.clients=20",
    "federation.participation=0.5",
    "training.local_epochs=1",
    "evaluation.limit=1000",
    "evaluation.every=2",
    "clock=virtual",
    "clock.slow=0.1",
    "clock.slower=10",
)
WAYS = {
    "all awaited": ("federation.rounds=16",),
    "enough=0.8, oversample=1.25": (
        "federation.rounds=20",
        "federation.enough=0.8",
        "federation.oversample=1.25",
    ),
    "buffered, 5 results": ("exchange=buffered", "exchange.buffer=5", "federation.rounds=32"),
}


def outcome(records: Iterable[Mapping[str, Any]], target: float) -> dict[str, float | None]:
    """What a run's lines of `metrics.jsonl` say: virtual seconds and bytes to the target, and more.

    Args:
        records: in the order of the rounds.
        target: linear probe of the backbone that is saved, as a fraction.
    """
    reached: dict[str, float | None] = {"seconds": None, "megabytes": None}
    up, last = 0, 0.0
    for record in records:
        up += record["bytes_up"]
        scores = next(iter((record.get("scores") or {}).values()), None)
        if scores:
            last = scores["linear"]
            if reached["seconds"] is None and last >= target:
                reached |= {"seconds": record["virtual_seconds"], "megabytes": up / 1e6}
    counted = record["clients"]["counted_so_far"]
    return {**reached, "all": record["virtual_seconds"], "last": last, "counted": counted}


def shown(values: list[float | None], form: str) -> str:
    """The mean, with the least and the most; "not reached" where a seed has none."""
    there = [value for value in values if value is not None]
    if len(there) < len(values):
        return f"not reached by {len(values) - len(there)} of {len(values)}"
    mean, least, most = statistics.mean(there), min(there), max(there)
    return f"{mean:{form}} ({least:{form}} to {most:{form}})"


def main() -> None:
    """Runs all ways with all seeds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--target", type=float, default=0.6)
    arguments, overrides = parser.parse_known_args()
    runs: dict[str, list[dict[str, float | None]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in arguments.seeds:
            for number, (way, options) in enumerate(WAYS.items()):
                place = Path(folder) / f"{number}-{seed}"
                simulate([*SETTING, *options, *overrides, f"seed={seed}", f"run_dir={place}"])
                records = RunFolder(place).read_metrics()
                runs[way].append(outcome(records, arguments.target))
                print(f"seed {seed}, {way}: {runs[way][-1]}", flush=True)
    write("time_to_score", {"target": arguments.target, "seeds": arguments.seeds, "runs": runs})
    columns = {
        "seconds": (f"virtual seconds to {arguments.target:g}", ".0f"),
        "megabytes": ("MB up until then", ".0f"),
        "all": ("virtual seconds of the run", ".0f"),
        "last": ("probe at its end", ".3f"),
        "counted": ("clients that counted", ".2f"),
    }
    rows: list[tuple[object, ...]] = [
        (way, *(shown([run[key] for run in outcomes], form) for key, (_, form) in columns.items()))
        for way, outcomes in runs.items()
    ]
    table(("", *(name for name, _ in columns.values())), rows)


if __name__ == "__main__":
    main()
