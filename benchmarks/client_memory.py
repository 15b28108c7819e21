"""Memory of one client on a small board: ResNet-18, batches of 16, CPU.

    python benchmarks/client_memory.py

Every run is a process of its own that imports what a ClientApp imports, gets a server's messages,
trains and packs its replies. Its peak is the kernel's own figure (VmHWM), imports included. Each
run is repeated inside a memory cgroup with a hard limit, after a check that the limit is real: a
process that takes more is killed. Wall times are reliable on a quiet machine only.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from proc import memory

MIB = 2**20
IMPORTS = ("torch", "torch, flwr.clientapp", "orchestra_flwr.federation.client.client_app")


# ---- the process that is measured


def client(folder: Path) -> None:
    """Plays one client over some rounds, as a client does, and prints what it took."""
    started = time.perf_counter()
    from orchestra_flwr.federation.client.answers import train_reply

    figures: dict = {
        "import_seconds": time.perf_counter() - started,
        "rss_imports": memory("VmRSS"),
    }
    import torch
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from orchestra_flwr.config import Config
    from orchestra_flwr.federation.client.numpy_client import OrchestraClient
    from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
    from orchestra_flwr.flower.arrays import payload_bytes
    from orchestra_flwr.flower.process_identity import identify_process

    identify_process()
    plan = json.loads((folder / "plan.json").read_text())
    config = Config.from_json(json.dumps(plan["config"]))
    images = torch.randint(
        0,
        256,
        (plan["images"], 3, config.data.image_size, config.data.image_size),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )
    player = OrchestraClient(config, "0", images)
    parameters = list(player.learner.parameters())
    figures["rss_client"] = memory("VmRSS")
    figures["parameter_bytes"] = sum(p.nbytes for p in parameters)
    figures["trained_bytes"] = sum(p.nbytes for p in parameters if p.requires_grad)

    def message(number: int) -> RecordDict:
        arrays = {
            name: Array("float32", tuple(shape), "numpy.ndarray", (folder / name).read_bytes())
            for name, shape in plan["arrays"].items()
        }
        task = {
            "round": number,
            "train": number > 0,
            "contribute": True,
            "schema": player.schemas.fingerprint,
        }
        return RecordDict({ARRAYS: ArrayRecord(arrays), CONFIG: ConfigRecord(task)})

    figures["rounds"] = []
    for number in range(plan["rounds"] + 1):  # the first one is for clustering only
        content = message(number)
        bytes_in = payload_bytes(content)
        cpu = time.process_time()
        reply = train_reply(player, content)
        cpu = time.process_time() - cpu
        metrics = reply[METRICS]
        steps = metrics["steps"]
        figures["rounds"].append(
            {
                "peak": memory("VmHWM"),
                "bytes_in": bytes_in,
                "bytes_out": payload_bytes(reply),
                "steps": steps,
                "seconds_per_step": metrics["seconds"] / steps if steps else None,
                "cpu_seconds_per_step": cpu / steps if steps else None,
            }
        )
        del content, reply
        figures["rounds"][-1]["rss_after"] = memory("VmRSS")
    figures["peak"] = memory("VmHWM")
    print(json.dumps(figures))


# ---- the process that measures


def prepare(folder: Path, arguments: argparse.Namespace, precision: str) -> None:
    """Leaves in `folder` what a client is sent: its configuration and a server's arrays."""
    from orchestra_flwr.config import load_config
    from orchestra_flwr.federation.messages.schema import Schemas, pack_state
    from orchestra_flwr.flower.arrays import to_record
    from orchestra_flwr.training import build_learner

    config = load_config(
        [
            "data=cifar10",
            "device=cpu",
            "training.local_epochs=1",
            f"training.threads={arguments.threads}",
            f"training.precision={precision}",
        ]
    )
    learner = build_learner(config, 3)
    record = to_record(pack_state(learner, Schemas.of(learner, config)))
    for name, array in record.items():
        (folder / name).write_bytes(array.data)
    plan = {
        "config": config.model_dump(),
        "arrays": {name: array.shape for name, array in record.items()},
        "images": arguments.images,
        "rounds": arguments.rounds,
    }
    (folder / "plan.json").write_text(json.dumps(plan))


def measure(command: list[str], group: "MemoryGroup | None" = None) -> dict:
    """Runs a process, within a group's limit, and returns the JSON that it prints."""
    if group is not None:
        command = group.enter(command)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        cause = "killed at the memory limit" if done.returncode == -signal.SIGKILL else done.stderr
        return {"failed": cause.strip()}
    return json.loads(done.stdout.splitlines()[-1])


def import_cost(modules: str) -> dict:
    """Median CPU seconds and resident memory of a fresh process that imports modules."""
    script = (
        f"import json, time; import {modules}; cpu = time.process_time()\n"
        "rss = next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmRSS'))\n"
        "print(json.dumps({'cpu_seconds': cpu, 'rss': int(rss) * 1024}))"
    )
    runs = [measure([sys.executable, "-c", script]) for _ in range(3)]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


class MemoryGroup:
    """A cgroup of version 1 or 2 with a hard limit of memory and no swap."""

    def __init__(self, path: Path, version: int, limit: int) -> None:
        self.path, self.version = path, version
        path.mkdir()
        try:
            memory, swap, allowed = "memory.max", "memory.swap.max", 0
            if version == 1:  # limits memory, then memory and swap together
                memory, swap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
                allowed = limit
            (path / memory).write_text(str(limit))
            if (path / swap).exists():  # not without accounting of swap
                (path / swap).write_text(str(allowed))
        except OSError:
            path.rmdir()
            raise

    def enter(self, command: list[str]) -> list[str]:
        """The command, started by a shell that puts itself into the group first."""
        enter = 'echo $$ > "$0" && exec "$@"'
        return ["sh", "-c", enter, str(self.path / "cgroup.procs"), *command]

    def peak(self) -> int | None:
        """Most memory charged to the group, page cache included."""
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        file = self.path / name
        return int(file.read_text()) if file.is_file() else None


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """A limited group, removed in the end.

    Raises:
        OSError: no group could be made here.
    """
    root = Path("/sys/fs/cgroup")
    if (root / "memory").is_dir():  # version 1: below this process's own group
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        places = {line.split(":")[1]: line.split(":", 2)[2] for line in lines}
        parent, version = root / "memory" / places["memory"].lstrip("/"), 1
    elif (root / "cgroup.controllers").is_file():  # version 2: groups with processes stay leaves
        parent, version = root, 2
    else:
        raise OSError("no memory cgroups are mounted")
    group = MemoryGroup(parent / "client_memory", version, limit)
    try:
        yield group
    finally:
        group.path.rmdir()


def why_no_limit(limit: int) -> str | None:
    """None if a process that takes a tenth more than the limit is killed, else what is wrong."""
    taker = [sys.executable, "-c", f"b'x' * {limit + limit // 10}"]
    try:
        with memory_group(limit) as group:
            done = subprocess.run(group.enter(taker), capture_output=True, check=False)
    except OSError as error:
        return str(error)
    return None if done.returncode == -signal.SIGKILL else "a process over the limit was not killed"


def mib(value: int | None) -> str:
    return "-" if value is None else f"{value / MIB:.0f}"


def row(run: dict) -> tuple[str, ...]:
    limit = mib(run["limit"])
    if "failed" in run:
        return (run["precision"], limit, run["failed"].splitlines()[-1], *["-"] * 6)
    last = run["rounds"][-1]
    figures = (run["rss_imports"], run["rss_client"], run["peak"], last["rss_after"])
    return (
        run["precision"],
        limit,
        *map(mib, figures),
        mib(run["parameter_bytes"]),
        f"{last['seconds_per_step']:.2f}",
        f"{last['cpu_seconds_per_step']:.2f}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--images", type=int, default=128, help="of the client (default: 128)")
    parser.add_argument("--rounds", type=int, default=2, help="of training (default: 2)")
    parser.add_argument("--threads", type=int, default=1, help="training.threads (default: 1)")
    parser.add_argument("--limit", type=float, default=4.0, help="hard limit in GiB (default: 4)")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--client", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        client(arguments.client)
        return 0

    # Not above: a client's process imports no more than a client.
    from common import bfloat16_is_fast, table, write

    limit = int(arguments.limit * 2**30)
    imports = {modules: import_cost(modules) for modules in IMPORTS}
    rows = [(name, f"{c['cpu_seconds']:.2f}", mib(c["rss"])) for name, c in imports.items()]
    table(("import", "CPU seconds", "MiB"), rows)
    print()

    without = why_no_limit(limit)
    runs = []
    for precision in ("float32", *["bfloat16"] * bfloat16_is_fast()):
        with tempfile.TemporaryDirectory() as name:
            prepare(Path(name), arguments, precision)
            command = [sys.executable, __file__, "--client", name]
            runs.append({"precision": precision, "limit": None, **measure(command)})
            if without is None:
                with memory_group(limit) as group:
                    run = {"precision": precision, "limit": limit, **measure(command, group)}
                    runs.append({**run, "group_peak": group.peak()})
    head = ("precision", "limit", "imports", "client", "peak", "after", "weights")
    table((*head, "s/step", "cpu-s/step"), [*map(row, runs)])
    print(
        f"\nMiB of resident memory. Hard limit of {arguments.limit:g} GiB: "
        + ("a process over it was killed" if without is None else f"not applied, {without}")
    )

    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": {k: v for k, v in vars(arguments).items() if k not in ("output", "client")},
        "limit_not_applied": without,
        "imports": imports,
        "runs": runs,
    }
    print(f"written to {write('client_memory', result, arguments.output)}")
    return 1 if any("failed" in run for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
