"""What one server holds: many clients that are connected, wait and work, with TLS and keys.

    python benchmarks/many_clients.py --clients 100 300 1000

A real server (`run_server.py`), and small real clients, many to a process (`client_herd.py`), each
process with an address of its own (from one address a server accepts some 300 clients). All are on
this machine, so with two cores they share what the server alone would have. For each number of
clients: seconds until all have joined, seconds of a round of 10 of them, and the CPU seconds until
then, memory, open files and threads of the server's processes.
"""

import argparse
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from common import RESULTS, free_port, table, write
from faults.federation import make_keys, make_photos
from faults.processes import Command, wait_for
from proc import cpu_seconds, descendants, status

from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.reporting.plots import COLOURS, INK, new_figure, style_axes

HERD = Path(__file__).with_name("client_herd.py")
PER_PROCESS = 250
COHORT = 10
SMALL = (
    "model=convnet", "model.width=8", "model.projector_dim=16", "data.image_size=16",
    "method=simclr", "training.batch_size=16", "training.local_epochs=1", "federation.min_images=1",
    "federation.rounds=4", "logging.progress=plain", "device=cpu",
)  # fmt: skip
JOINED = re.compile(r"client \S+ joined")


class Server(Command):
    """`run_server.py`; its output is in a file beside the run's folder."""

    def __init__(self, folder: Path, port: int, *overrides: str) -> None:
        command = ["run_server.py", f"port={port}", f"run_dir={folder}", *overrides]
        super().__init__(command, folder.with_suffix(".log"), {})

    def wait_for(self, text: str, count: int = 1, seconds: float = 1800) -> float:
        """Seconds until a text stands so many times in its output."""

        def is_there() -> bool:
            return len(re.findall(text, self.log.read_text())) >= count

        began = time.monotonic()
        wait_for(lambda: is_there() or self.code is not None, seconds, pause=0.2)
        if not is_there():
            raise SystemExit(f"{text!r} did not come {count} times:\n{self.log.read_text()}")
        return time.monotonic() - began

    def usage(self) -> dict[str, float]:
        """CPU seconds, memory (MB), open files and threads of all its processes."""
        total = {"cpu": 0.0, "megabytes": 0.0, "files": 0, "threads": 0}
        for pid in (self.pid, *descendants(self.pid)):
            numbers = status(pid)
            total["cpu"] += cpu_seconds(pid)
            total["megabytes"] += numbers["RssAnon"] / 1000
            total["files"] += len(list(Path(f"/proc/{pid}/fd").iterdir()))
            total["threads"] += numbers["Threads"]
        return total


def measure(folder: Path, count: int) -> dict[str, Any]:
    """One federation of so many clients."""
    names = [f"c{i:04}" for i in range(count)]
    security, port = folder / "security", free_port()
    make_keys(security, f"client={','.join(names)}")
    share = min(1.0, COHORT / count)
    server = Server(folder / "run", port, f"security={security}", f"federation.min_clients={count}",
                    f"federation.participation={share}", *SMALL)  # fmt: skip
    herds: list[Command] = []
    try:
        server.wait_for("listening on")
        before = server.usage()
        for number, start in enumerate(range(0, count, PER_PROCESS)):
            some = names[start : start + PER_PROCESS]
            command = [HERD, f"--server=127.0.0.1:{port}", f"--address=127.0.0.{2 + number}",
                       f"--security={security}", f"--photos={folder / 'photos'}",
                       f"--state={folder / 'state'}", "--clients", *some]  # fmt: skip
            herds.append(Command(command, folder / f"herd{start}.log", {}))
        joined = server.wait_for(JOINED.pattern, count)
        here = server.usage()
        server.wait_for("run folder:.*\n[^$]*run folder:")
        seconds = [record["seconds"] for record in RunFolder(folder / "run").read_metrics()]
    finally:
        for process in (*herds, server):
            process.end()
    return {"clients": count, "join_seconds": joined, "join_cpu": here["cpu"] - before["cpu"],
            "round_seconds": sorted(seconds[1:])[len(seconds[1:]) // 2], **here}  # fmt: skip


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """What grows with the number of clients, each in a panel; docs/pictures has a copy."""
    panels = {
        "until all have joined, s": ("join_seconds", "join_cpu"),
        "memory of the server, MB": ("megabytes",),
        "open files and threads": ("files", "threads"),
    }
    names = {"join_seconds": "on the clock", "join_cpu": "of the server's CPU"}
    figure = new_figure(13, 3.6)
    for panel, (title, keys) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for key, colour in zip(keys, COLOURS, strict=False):
            points = [(result["clients"], result[key]) for result in results]
            panel.plot(*zip(*points, strict=True), "o-", color=colour, label=names.get(key, key))
        panel.set_title(title)
        style_axes(panel)
        panel.set_ylim(0, 1.15 * panel.get_ylim()[1])
        panel.set_xlabel("clients", color=INK)
        if len(keys) > 1:
            panel.legend(fontsize=8, labelcolor=INK, framealpha=0.85, edgecolor="none")
    figure.savefig(path, format="png")


def main() -> None:
    """Measures all, prints a table, writes the JSON and draws it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 300])
    results = []
    for count in parser.parse_args().clients:
        with tempfile.TemporaryDirectory(prefix="orch") as temporary:
            folder = Path(temporary)
            make_photos(folder, {"photos": 16})
            results.append(measure(folder, count))
            print(results[-1], flush=True)
    head = ("clients", "join, s", "server's CPU s", "round of 10, s", "MB", "files", "threads")
    rows = [
        (r["clients"], *(f"{r[key]:.1f}" for key in ("join_seconds", "join_cpu", "round_seconds")),
         *(f"{r[key]:,.0f}" for key in ("megabytes", "files", "threads")))
        for r in results
    ]  # fmt: skip
    table(head, rows)
    write("many_clients", {"clients": results})
    draw(results, RESULTS / "many_clients.png")


if __name__ == "__main__":
    main()
