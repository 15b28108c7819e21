"""Seconds to the same linear probe with real processes, of which one is ten times slower.

    python benchmarks/slow_clients.py [--targets 0.6 0.65 0.7] [--pace 2]

A real server with TLS, and ten clients with keys, each with a tenth of the training digits
(affine_digits), half of them at work: rounds that wait for all, rounds that ask more clients and
end with 80 %, and buffered updates. Every way uses 80 results. A client trains for real and waits
until it has taken `--pace` seconds, the slow one ten times as long: so the machine's own speed
matters little. Seconds are those of a clock on the wall, evaluation included.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common import free_port, run_client, table, write
from faults.federation import make_keys
from faults.processes import Command
from flwr.app import RecordDict
from many_clients import Server
from PIL import Image
from time_to_score import WAYS as VIRTUAL

from orchestra_flwr.config import load_config
from orchestra_flwr.data import ImageSet, load_dataset
from orchestra_flwr.reporting import RunFolder

NAMES = tuple("abcdefghij")
SLOW, SLOWER = "j", 10
SETTING = (
    "method=simclr", "data=image_folder", "model.width=16", "training.local_epochs=1",
    "federation.min_clients=10", "federation.participation=0.5", "evaluation.every=2",
    "evaluation.limit=1000", "logging.progress=plain", "device=cpu",
)  # fmt: skip
WAYS = {
    **{way: options for way, options in VIRTUAL.items() if not way.startswith("buffered")},
    "buffered, 3 results": ("exchange=buffered", "exchange.buffer=3", "federation.rounds=27"),
}


def train_for(
    seconds: float, train: Callable[[RecordDict], RecordDict], content: RecordDict
) -> RecordDict:
    """Training that takes so long."""
    began = time.monotonic()
    reply = train(content)
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    return reply


def write_images(folder: Path) -> None:
    """Digits as files: a folder of classes for the server, a folder for each client."""
    dataset = load_dataset(load_config(["data=affine_digits"]).data)
    for part, images in (("train", dataset.train), ("test", dataset.test)):
        _save(folder / "server" / part, images)
    for number, name in enumerate(NAMES):
        _save(folder / "clients" / name, dataset.train, number)


def _save(folder: Path, images: ImageSet, first: int | None = None) -> None:
    """All images by class; or every tenth from the first on, in one folder."""
    assert images.labels is not None
    step = 1 if first is None else len(NAMES)
    for index in range(first or 0, len(images), step):
        place = folder / str(int(images.labels[index])) if first is None else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.images[index, 0].numpy()).save(place / f"{index:05}.png")


def measure(folder: Path, way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One federation: seconds until the probe reaches each target, and until the end."""
    port, run = free_port(), folder / f"run-{len(list(folder.glob('run-*')))}"
    server = Server(
        run, port, f"security={folder / 'security'}", f"data.root={folder / 'server'}",
        f"seed={arguments.seed}", *SETTING, *WAYS[way],
    )  # fmt: skip
    clients = []
    try:
        server.wait_for("listening on")
        for name in NAMES:
            pace = arguments.pace * (SLOWER if name == SLOW else 1)
            command = [
                Path(__file__).resolve(), f"--client={pace}", f"server=127.0.0.1:{port}",
                f"security={folder / 'security' / 'bundles' / name}",
                f"data.root={folder / 'clients' / name}", f"state={run}-state", "device=cpu",
                "training.threads=1",
            ]  # fmt: skip
            clients.append(Command(command, run.with_name(f"{run.name}-{name}.log"), {}))
        return outcome(RunFolder(run), server, arguments.targets)
    finally:
        for process in (*clients, server):
            process.end()


def outcome(run: RunFolder, server: Server, targets: list[float]) -> dict[str, Any]:
    """Follows a run until its last round."""
    server.wait_for("client . joined", len(NAMES))
    began, seen = time.monotonic(), 0
    curve: list[tuple[float, float]] = []  # seconds, probe
    while True:
        records = run.read_metrics()
        for record in records[seen:]:
            scores = next(iter((record.get("scores") or {}).values()), None)
            if scores and record["round"]:
                curve.append((time.monotonic() - began, scores["linear"]))
        seen = len(records)
        if server.log.read_text().count("run folder:") > 1 or server.code is not None:
            reached = {
                f"{target:g}": next((at for at, probe in curve if probe >= target), None)
                for target in targets
            }
            return {"seconds_to": reached, "all": time.monotonic() - began, "curve": curve}
        time.sleep(0.2)


def main() -> None:
    """Runs all ways, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=float, nargs="+", default=[0.6, 0.65, 0.7])
    parser.add_argument("--pace", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orch") as temporary:
        folder = Path(temporary)
        write_images(folder)
        make_keys(folder / "security", f"client={','.join(NAMES)}")
        runs = {}
        for way in WAYS:
            runs[way] = measure(folder, way, arguments)
            print(f"{way}: {runs[way]}", flush=True)
    write("slow_clients", {**vars(arguments), "runs": runs})
    head = ("", *(f"seconds to {target:g}" for target in arguments.targets), "seconds of all")
    rows = [
        (
            way,
            *(
                "-" if at is None else f"{at:.0f}"
                for at in (*run["seconds_to"].values(), run["all"])
            ),
            f"{run['curve'][-1][1]:.3f}",
        )
        for way, run in runs.items()
    ]
    table((*head, "probe at the end"), rows)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("--client="):
        run_client(partial(train_for, float(sys.argv.pop(1).partition("=")[2])))
    else:
        main()
