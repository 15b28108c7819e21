"""Seconds from a command to its first training step, and of a worker's start.

    python benchmarks/start.py

`run_sim.py data=digits` with clients in the server's process and on Ray: until the loss of the
first batch, so the evaluation of the untrained encoder and the first clustering are included. A
worker: a process that imports what a client needs, loads the run's images, builds the learner and
takes a step. Each is measured in processes of its own, in turns, after one that fills the caches.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import table, write

from orchestra_flwr.config import load_config

HERE = Path(__file__).parent
RUN = ["data=digits", "plugins=[timed_plugins]", "method=timed_orchestra", "federation.rounds=1"]
GOALS = {"first_step_inline_s": 6, "first_step_ray_s": 12, "worker_start_s": 4}
WORKER = """if True:
    import sys
    from orchestra_flwr.federation.client import client_app
    from orchestra_flwr.seeding import ClientSeed
    from orchestra_flwr.training import build_learner, torch_threads, train_round
    config, population, images, labels = client_app._loaded(sys.argv[1])
    batch = images[: config.training.batch_size]
    with torch_threads(config.training.threads):
        train_round(build_learner(config, images.shape[1]), batch, config, ClientSeed(0, 1, "0"))
"""


def until_first_step(folder: Path, command: list[str | Path]) -> float:
    """Seconds from the start of a process to the first step that it, or a worker of it, takes."""
    stamp = Path(tempfile.mkdtemp(dir=folder)) / "first_step"
    paths = os.pathsep.join(map(str, (HERE, HERE.parent)))  # of the plug-in and this checkout
    environment = os.environ | {"ORCHESTRA_FIRST_STEP": str(stamp), "PYTHONPATH": paths}
    started = time.time()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[1]} failed:\n{done.stdout}{done.stderr}")
    return float(stamp.read_text()) - started


def of_a_run(folder: Path, engine: str) -> float:
    run = tempfile.mkdtemp(dir=folder)
    command = [sys.executable, HERE.parent / "run_sim.py", *RUN, f"engine={engine}"]
    return until_first_step(folder, [*command, f"run_dir={run}/run"])


def of_a_worker(folder: Path) -> float:
    command = [sys.executable, "-c", WORKER, load_config(RUN).to_json()]
    return until_first_step(folder, command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="of each; the median counts")
    arguments = parser.parse_args()
    sides: dict[str, Callable[[Path], float]] = {
        "first_step_inline_s": lambda folder: of_a_run(folder, "inline"),
        "first_step_ray_s": lambda folder: of_a_run(folder, "ray"),
        "worker_start_s": of_a_worker,
    }
    runs: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory(prefix="start", ignore_cleanup_errors=True) as folder:
        os.environ |= {"RAY_TMPDIR": folder}  # short paths, which Ray's sockets need
        for turn in range(arguments.repeats + 1):
            for name, side in sides.items():
                seconds = side(Path(folder))
                if turn:
                    runs[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in runs.items()}
    table(
        ("what", "s", "goal"),
        [(name, f"{median:.1f}", GOALS[name]) for name, median in medians.items()],
    )
    write("start", {**medians, "runs": runs})


if __name__ == "__main__":
    main()
