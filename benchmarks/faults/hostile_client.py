"""The real client but for what it sends: finite, of the right shape, and absurd.

The environment variable HOSTILE says what, by round: {"1": "1e30", "3": "a huge loss"}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from orchestra_flwr import cli
from orchestra_flwr.deployment.client_work import client_worker
from orchestra_flwr.deployment.processes import client_process
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS

Attack = Callable[[ArrayRecord, MetricRecord], None]


def _state(change: Callable[[np.ndarray], np.ndarray]) -> Attack:
    def attack(arrays: ArrayRecord, metrics: MetricRecord) -> None:
        arrays["shared"] = Array(change(arrays["shared"].numpy()).astype(np.float32))

    return attack


def _rows(arrays: ArrayRecord, metrics: MetricRecord) -> None:
    arrays["local_centroids"] = Array(arrays["local_centroids"].numpy() * np.float32(1e30))


def _says(value: float, *prefixes: str) -> Attack:
    def attack(arrays: ArrayRecord, metrics: MetricRecord) -> None:
        for name in [name for name in metrics if name.startswith(prefixes)]:
            metrics[name] = value

    return attack


def _one_value(state: np.ndarray) -> np.ndarray:
    changed = state.copy()
    changed[len(changed) // 2] = 1e6
    return changed


# What the server refuses, and what it takes without any effect.
REFUSED: dict[str, Attack] = {
    "1e30": _state(lambda state: np.full_like(state, 1e30)),
    "-1e30": _state(lambda state: np.full_like(state, -1e30)),
    "1000 times the model": _state(lambda state: 1000 * state),
    "one huge value": _state(_one_value),
    "huge rows": _rows,
    "10^9 images": _says(10**9, "examples"),
    "2^40 images": _says(2**40, "examples"),
    "a negative group": _says(-1, "smallest_group"),
}
TAKEN: dict[str, Attack] = {
    "10^8 images": _says(10**8, "examples"),
    "a huge loss": _says(3e38, "loss/"),
    "huge measures and seconds": _says(-3e38, "measure/", "seconds", "steps"),
}


class Hostile(client_worker.ClientWorker):
    def train(self, content: RecordDict) -> RecordDict:
        what = json.loads(os.environ["HOSTILE"]).get(str(content.config_records[CONFIG]["round"]))
        reply = super().train(content)
        if what is not None:
            print(f"hostile: {what}", flush=True)
            attack = (REFUSED | TAKEN)[what]
            attack(reply.array_records[ARRAYS], reply.metric_records[METRICS])
        return reply


if __name__ == "__main__":
    client_process.ClientWorker = Hostile  # type: ignore[misc]
    sys.exit(cli.client_main())
