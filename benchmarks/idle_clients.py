"""Clients that send back what they received: what is left of a round is transport.

A module of its own, so that Ray's workers import it as they import the real client app.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from proc import cpu_seconds, descendants, status

from orchestra_flwr.config import Config
from orchestra_flwr.federation.client import client_app
from orchestra_flwr.federation.client.answers import answer
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
from orchestra_flwr.flower.arrays import from_record, to_record
from orchestra_flwr.methods import release_of
from orchestra_flwr.reporting import Progress

MEMORY = {"own_gb": "RssAnon", "store_gb": "RssShmem", "libraries_gb": "RssFile"}

app = ClientApp()
app.query()(client_app.query)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Takes a message apart and packs a reply, as a client does that trains for no time."""
    return answer(message, give_back)


def give_back(content: RecordDict) -> RecordDict:
    """The state that came, and centroids of which the method can make its own."""
    task = content.config_records[CONFIG]
    config = Config.from_json(str(task["config"]))
    received = from_record(content.array_records.pop(ARRAYS))
    release = release_of(config)
    # Rows of length 1: longer ones are refused.
    arrays = {
        name: np.full(rows, rows[-1] ** -0.5, np.float32) for name, rows in release.rows.items()
    }
    if task["train"]:
        arrays["shared"] = received["shared"]
    return RecordDict(
        {
            ARRAYS: to_record(arrays),
            METRICS: MetricRecord({"examples": 16, "seconds": 0.0, "steps": 0}),
            CONFIG: ConfigRecord({"schema": str(task["schema"])}),
        }
    )


class Clock(Progress):
    """Reads the clocks whenever a round ends: wall time, CPU time and memory of the server."""

    def __init__(self, rounds: int) -> None:
        super().__init__(rounds)
        self.readings: list[dict[str, float]] = []

    def tick(self) -> None:
        self.readings.append(
            {
                "wall": time.perf_counter(),
                "server_cpu": time.process_time(),
                "all_cpu": _cpu_of_descendants(os.getpid()),
                **_memory(),
            }
        )

    def round_finished(self, *args: object) -> None:
        self.tick()

    def summary(self) -> dict[str, object]:
        """Differences from round to round, and the peak resident memory of this process in GB."""
        pairs = list(zip(self.readings, self.readings[1:], strict=False))
        readings: dict[str, object] = {
            name: [after[name] - before[name] for before, after in pairs]
            for name in ("wall", "server_cpu", "all_cpu")
        }
        readings |= {name: [reading[name] for reading in self.readings] for name in MEMORY}
        readings["rss_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        return readings


def _memory() -> dict[str, float]:
    """Resident memory of this process in GB: its own, what it has touched of Ray's
    store, and program code."""
    numbers = status()
    return {name: numbers[key] / 1e6 for name, key in MEMORY.items()}


def _cpu_of_descendants(root: int) -> float:
    """CPU seconds so far of a process and of all that descend from it and still live (Linux)."""
    seconds = 0.0
    for pid in (root, *descendants(root)):
        with suppress(OSError):  # it has ended meanwhile
            seconds += cpu_seconds(pid)
    return seconds


def in_own_process(script: str, **options: object) -> dict[str, Any]:
    """Runs a benchmark's script with options and a new folder; what it printed by `print_json`."""
    with tempfile.TemporaryDirectory(prefix="orch", ignore_cleanup_errors=True) as temporary:
        settings = {
            "FLWR_HOME": f"{temporary}/flwr",
            "RAY_TMPDIR": f"{temporary}/ray",
            "OMP_NUM_THREADS": "1",
            # Otherwise Ray's workers give way to everything else on the machine.
            "RAY_worker_niceness": "0",
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        done = subprocess.run(
            [sys.executable, script, f"--folder={temporary}", *arguments],
            env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def print_json(figures: dict[str, Any]) -> None:
    """The last line of a measuring process, which :func:`in_own_process` reads."""
    print(json.dumps(figures))
