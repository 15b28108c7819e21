"""Whether a federation that runs for long grows: memory, files, sockets, threads, disk.

    python benchmarks/soak.py minutes=60

A server and four clients over TLS train on a few images, round after round, with a pause in each
round so that other work finds a machine. Rounds end with three of them; the last client pauses
twice as long, so that it is late in turns. All have pages for programs and people, which are
fetched every ten seconds, and every tenth round the clients are sent the encoder. Every ten seconds
each long-lived process is measured; processes of Flower that live for one message are not. After
the warm-up, a sixth of the time, a line is fitted to the means of the minutes. The verdict is
`growing` where the line rises by more than three standard errors and would add, in 24 hours, more
than a tenth of the present level and more than LEAST of the quantity. The standard error takes into
account that one minute is like the next.

Written: results/soak.json (fits and minutes), results/soak.png, and while it runs the samples, to
the file that is named at the start. Options: minutes, pause (seconds in each round), clients.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from common import RESULTS, free_port, run_client, table, write
from faults.federation import make_keys, make_photos, quiet_environment
from faults.invariants import TERMINATED
from faults.processes import Command, role_of, wait_for
from flwr.app import RecordDict
from proc import descendants, status

from orchestra_flwr.reporting.plots import COLOURS, INK, QUIET, new_figure, style_axes

EVERY = 10.0  # seconds
SAMPLES = "soak-samples.jsonl"
MODEL = (
    "model.width=8",
    "model.projector_dim=16",
    "data.image_size=16",
    "federation.rounds=100000",
    "training.local_epochs=1",
    "training.batch_size=16",
    "training.threads=1",
    "clustering.global_clusters=4",
    "clustering.local_clusters=2",
    "clustering.memory=32",
    "federation.enough=0.75",
    "share.every=10",
    "logging.progress=plain",
    "device=cpu",
)
PAGES = ("/", "/status", "/metrics")
MIB = 2**20
# Quantities of a process, then of a folder; in 24 hours less than this is nothing.
LEAST = {"rss": 20 * MIB, "pss": 20 * MIB, "files": 5, "sockets": 5, "threads": 5, "disk": 20 * MIB}
UNITS = {"rss": "MiB", "pss": "MiB", "disk": "MiB"}
Samples = dict[str, dict[str, list[tuple[float, float]]]]  # quantity -> who -> (minute, value)


# ---- what is fitted


@dataclass(frozen=True)
class Fit:
    """A line through a quantity after the warm-up.

    Attributes:
        level: mean of the last ten minutes.
        per_hour: its rise.
        error: standard error of the rise, per hour.
        in_24_hours: the level that the line reaches a day later, not below 0.
        verdict: "flat" or "growing"; "too short" for fewer than five minutes.
    """

    level: float
    per_hour: float
    error: float
    in_24_hours: float
    verdict: str


def fit(minutes: Sequence[float], values: Sequence[float], least: float) -> Fit:
    """Fits a line by least squares.

    Args:
        minutes: times.
        values: the quantity, one value a minute.
        least: a rise in 24 hours that does not matter.
    """
    x, y = np.asarray(minutes, float) / 60, np.asarray(values, float)
    level = float(y[-10:].mean()) if len(y) else math.nan
    if len(y) < 5:
        return Fit(level, math.nan, math.nan, math.nan, "too short")
    slope, start = np.polyfit(x, y, 1)
    rest = y - (slope * x + start)
    error = float(np.sqrt(rest @ rest / (len(y) - 2) / np.sum((x - x.mean()) ** 2)))
    error *= math.sqrt(_inflation(rest))
    rise = 24 * float(slope)
    grows = slope > 3 * error and rise > max(0.1 * level, least)
    verdict = "growing" if grows else "flat"
    return Fit(level, float(slope), error, max(level + rise, 0.0), verdict)


def _inflation(rest: np.ndarray) -> float:
    """By how much the variance of a slope grows as neighbouring residuals are alike."""
    spread = float(rest @ rest)
    if spread <= 1e-12 * len(rest):
        return 1.0
    alike = min(max(float(rest[1:] @ rest[:-1]) / spread, 0.0), 0.9)
    return (1 + alike) / (1 - alike)


def by_minute(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means of (minute, value) pairs over whole minutes, at the middle of each."""
    minutes: dict[int, list[float]] = defaultdict(list)
    for minute, value in points:
        minutes[int(minute)].append(value)
    return [(number + 0.5, statistics.fmean(values)) for number, values in sorted(minutes.items())]


# ---- what is measured


def look(pid: int) -> dict[str, float] | None:
    """A process's memory in bytes, open files, sockets among them, and threads; None: it ended."""
    folder = Path(f"/proc/{pid}")
    try:
        numbers = status(pid)
        rollup = (folder / "smaps_rollup").read_text().splitlines()
        files = [str(link.readlink()) for link in (folder / "fd").iterdir() if link.is_symlink()]
        pss = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
        return {
            "rss": 1024 * numbers["VmRSS"],
            "pss": 1024 * pss,
            "files": len(files),
            "sockets": sum(name.startswith("socket:") for name in files),
            "threads": numbers["Threads"],
        }
    except (OSError, KeyError, StopIteration):
        return None


def disk_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except OSError:  # it has gone meanwhile
            continue
    return total


def sample(server: Command, clients: Sequence[Command], folder: Path) -> dict[str, dict]:
    """Quantity by who: means over the processes of a kind, and the folders."""
    by_role: dict[str, list[dict[str, float]]] = defaultdict(list)
    for side, roots in (("server", [server]), ("client", clients)):
        for root in roots:
            for pid in (root.pid, *descendants(root.pid)):
                role = side if pid == root.pid else role_of(pid)
                if role is None or (seen := look(pid)) is None:
                    continue
                by_role[role].append(seen)
    values: dict[str, dict] = defaultdict(dict)
    for who, readings in by_role.items():
        for quantity in readings[0]:
            values[quantity][who] = statistics.fmean(one[quantity] for one in readings)
    for who in ("run", "state", "tmp"):
        values["disk"][who] = disk_bytes(folder / who)
    return values


def measure(
    folder: Path, minutes: float, pause: float, names: Sequence[str]
) -> tuple[Samples, int]:
    """Runs the federation for so long; its samples and the rounds it finished."""
    make_photos(folder / "photos", dict.fromkeys(names, 20))
    make_keys(folder / "security", f"client={','.join(names)}")
    (folder / "tmp").mkdir()
    environment = {
        "TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }  # fmt: skip
    port, *watched = (free_port() for _ in ["server", "watch", *names])
    server = Command(
        ["run_server.py", f"port={port}", f"security={folder / 'security'}", *MODEL,
         f"watch.port={watched[0]}",
         f"federation.min_clients={len(names)}", f"run_dir={folder / 'run'}"],
        folder / "server.log", environment,
    )  # fmt: skip
    clients = [
        Command(
            [Path(__file__).resolve(), "--client", pause * (2 if name == names[-1] else 1),
             f"server=127.0.0.1:{port}", f"watch.port={watch_port}",
             f"security={folder / 'security' / 'bundles' / name}", "device=cpu",
             f"data.root={folder / 'photos' / name}", f"state={folder / 'state'}",
             "training.threads=1"],
            folder / f"{name}.log", environment,
        )
        for name, watch_port in zip(names, watched[1:], strict=True)
    ]  # fmt: skip
    try:
        if not wait_for(lambda: server.has("round 1/") or server.code is not None, 300):
            raise SystemExit("error: no round within 300 s")
        return _follow(server, clients, folder, minutes, watched)
    finally:
        codes = {
            "server": server.end(),
            **{n: c.end() for n, c in zip(names, clients, strict=True)},
        }
        if codes != {"server": TERMINATED, **dict.fromkeys(names, 0)}:
            print(f"exit codes after SIGTERM: {codes}; of the server {TERMINATED}, of others 0")


def _fetch_pages(ports: Sequence[int]) -> None:
    """As a browser and a program that collects metrics do."""
    for port in ports:
        for page in PAGES:
            with urlopen(f"http://127.0.0.1:{port}{page}", timeout=60) as answer:
                answer.read()


def _follow(
    server: Command,
    clients: Sequence[Command],
    folder: Path,
    minutes: float,
    watched: Sequence[int],
) -> tuple[Samples, int]:
    started, samples = time.monotonic(), defaultdict(lambda: defaultdict(list))
    file = RESULTS / SAMPLES
    file.unlink(missing_ok=True)
    while (elapsed := time.monotonic() - started) < 60 * minutes:
        ended = [command.log.name for command in (server, *clients) if command.code is not None]
        if ended:
            raise SystemExit(f"error: ended after {elapsed / 60:.0f} minutes: {', '.join(ended)}")
        _fetch_pages(watched)
        values = sample(server, clients, folder)
        with file.open("a") as output:
            output.write(json.dumps({"minute": elapsed / 60, **values}) + "\n")
        for quantity, by_role in values.items():
            for who, value in by_role.items():
                samples[quantity][who].append((elapsed / 60, value))
        time.sleep(max(0.0, EVERY - (time.monotonic() - started - elapsed)))
    rounds = len((folder / "run" / "metrics.jsonl").read_text().splitlines())
    return samples, rounds


def train_after(
    pause: float, train: Callable[[RecordDict], RecordDict], content: RecordDict
) -> RecordDict:
    """Training that begins so many seconds late."""
    time.sleep(pause)
    return train(content)


# ---- what is shown


def draw(minutes: Samples, fits: dict[str, dict[str, Fit]], path: Path) -> None:
    """A panel for each quantity, a line for each kind of process, dashed where it was fitted."""
    figure = new_figure(13, 7.5)
    colours = (*COLOURS, INK, QUIET)
    everyone = list(dict.fromkeys(who for by_role in minutes.values() for who in by_role))
    for panel, (quantity, by_role) in zip(figure.subplots(2, 3).flat, minutes.items(), strict=True):
        scale = MIB if quantity in UNITS else 1
        for who, points in by_role.items():
            times, values = np.array(points).T
            colour = colours[everyone.index(who) % len(colours)]
            panel.plot(times, values / scale, color=colour, linewidth=1.4, label=who)
            line = fits[quantity][who]
            if line.verdict == "growing":
                ends = times[[0, -1]]
                drawn = line.level + line.per_hour * (ends - times[-10:].mean()) / 60
                panel.plot(ends, drawn / scale, color=colour, linestyle="--", linewidth=1)
        panel.set_title(f"{quantity}, {UNITS[quantity]}" if quantity in UNITS else quantity)
        style_axes(panel)
        panel.set_ylim(0, 1.15 * panel.get_ylim()[1])
        panel.set_xlabel("minutes", color=INK)
        if quantity in ("rss", "disk"):  # the panels between have the first one's colours
            panel.legend(fontsize=7, labelcolor=INK, framealpha=0.85, edgecolor="none", ncols=2)
    figure.savefig(path, format="png")


def report(samples: Samples, rounds: int, minutes: float, pause: float, clients: int) -> None:
    """Prints and writes the verdict on every quantity."""
    means = {q: {who: by_minute(p) for who, p in roles.items()} for q, roles in samples.items()}
    warm_up = minutes / 6
    fits: dict[str, dict[str, Fit]] = defaultdict(dict)
    for quantity, by_role in means.items():
        for who, points in by_role.items():
            late = [(minute, value) for minute, value in points if minute > warm_up]
            fits[quantity][who] = fit([m for m, _ in late], [v for _, v in late], LEAST[quantity])
    rows: list[tuple[object, ...]] = []
    for quantity, by_role in fits.items():
        scale = MIB if quantity in UNITS else 1
        for who, line in by_role.items():
            name = f"{quantity}, {UNITS[quantity]}" if quantity in UNITS else quantity
            rise = f"{line.per_hour / scale:.2f} ± {line.error / scale:.2f}"
            day = f"{line.in_24_hours / scale:.0f} ± {24 * line.error / scale:.0f}"
            rows.append((name, who, f"{line.level / scale:.2f}", rise, day, line.verdict))
    table(("quantity", "of", "level", "per hour", "in 24 hours", "verdict"), rows)
    result = {
        "minutes": minutes,
        "clients": clients,
        "pause_seconds": pause,
        "rounds": rounds,
        "load": os.getloadavg(),
        "fits": {q: {who: _finite(line) for who, line in f.items()} for q, f in fits.items()},
        "by_minute": {
            q: {who: " ".join(f"{value:.0f}" for _, value in points) for who, points in f.items()}
            for q, f in means.items()
        },
    }
    write("soak", result)
    draw(means, fits, RESULTS / "soak.png")
    print(f"\n{rounds} rounds in {minutes:g} minutes; {RESULTS / 'soak.json'}, soak.png")


def _finite(line: Fit) -> dict[str, object]:
    values = asdict(line).items()
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in values}


def main() -> None:
    chosen = {"minutes": 60.0, "pause": 20.0, "clients": 4.0}
    for argument in sys.argv[1:]:
        key, _, value = argument.partition("=")
        if key not in chosen or not value:
            raise SystemExit(
                f"error: {argument}: must be one of {', '.join(chosen)}, as KEY=NUMBER"
            )
        chosen[key] = float(value)
    quiet_environment()
    RESULTS.mkdir(exist_ok=True)
    print(f"samples: {RESULTS / SAMPLES}", flush=True)
    names = [f"client-{number}" for number in range(1, int(chosen["clients"]) + 1)]
    with tempfile.TemporaryDirectory(prefix="os", ignore_cleanup_errors=True) as folder:
        samples, rounds = measure(Path(folder), chosen["minutes"], chosen["pause"], names)
    report(samples, rounds, chosen["minutes"], chosen["pause"], len(names))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        seconds = float(sys.argv[2])
        del sys.argv[1:3]
        run_client(partial(train_after, seconds))
    else:
        main()
