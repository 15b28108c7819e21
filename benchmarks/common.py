"""What the benchmarks share: timing that takes turns, and results with the machine beside them."""

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from orchestra_flwr.reporting import environment

if TYPE_CHECKING:
    from flwr.app import RecordDict

# Where it is set, every process compiles all that it imports, as on no user's machine.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

RESULTS = Path(os.environ.get("ORCHESTRA_RESULTS", Path(__file__).parent / "results"))


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    """Whether somebody listens at a port of 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def in_turns(
    tasks: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each task; they take turns, so that all meet the same weather."""
    import torch

    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(warm_up + rounds):
        for name, task in tasks.items():
            started = clock()
            task()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn >= warm_up:
                seconds[name].append(clock() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def bfloat16_is_fast() -> bool:
    """Whether the processor has instructions for bfloat16; without them a step takes minutes."""
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def run_client(
    train: Callable[[Callable[..., "RecordDict"], "RecordDict"], "RecordDict"],
) -> NoReturn:
    """`run_client.py` with another way to train, which gets the usual one and a round's message."""
    from orchestra_flwr import cli
    from orchestra_flwr.deployment.client_work.client_worker import ClientWorker
    from orchestra_flwr.deployment.processes import client_process

    class Changed(ClientWorker):
        def train(self, content: "RecordDict") -> "RecordDict":
            return train(super().train, content)

    client_process.ClientWorker = Changed  # type: ignore[misc]
    sys.exit(cli.client_main())


def write(name: str, result: Mapping[str, Any], file: Path | None = None) -> Path:
    """Writes `results/<name>.json` (or to the folder that ORCHESTRA_RESULTS names), or `file`."""
    file = file or RESULTS / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    here = {"measured": time.strftime("%Y-%m-%d"), "load": os.getloadavg(), **environment()}
    file.write_text(json.dumps({"environment": here, **result}, indent=2) + "\n")
    return file


def table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    """Prints a Markdown table."""
    for line in (head, ("---",) * len(head), *rows):
        print("| " + " | ".join(map(str, line)) + " |")
