"""What Flower and Ray cost when nobody trains: seconds a round and the server's memory.

    python benchmarks/overhead.py

100 clients, 20 of them a round, on 2 workers; each sends back at once the 94 MB that it got. Ours
is the whole server as run_sim.py starts it (Orchestra with a ResNet-18, without evaluation);
stock is Flower's own FedAvg on Flower's own grid with the same bytes in 124 float32 arrays. Each
side runs in a process of its own, in turn; figures are medians over rounds and repetitions.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from common import table, write
from idle_clients import Clock, in_own_process, print_json

from orchestra_flwr.reporting import RunFolder

CLIENTS, COHORT, WORKERS, ARRAYS = 100, 20, 2, 124
STOCK_BYTES = 94_000_000


def ours(rounds: int, folder: Path) -> dict[str, Any]:
    """The whole server loop."""
    from dataclasses import replace

    from idle_clients import app

    from orchestra_flwr.config import load_config
    from orchestra_flwr.federation import simulation
    from orchestra_flwr.federation.engines import ray
    from orchestra_flwr.federation.population import Population, load_population

    config = load_config([
        "model=resnet18", "model.width=64", "device=cpu", f"federation.clients={CLIENTS}",
        f"federation.participation={COHORT / CLIENTS}", f"federation.rounds={rounds}",
        "partition=iid", f"engine.workers={WORKERS}", f"run_dir={folder / 'run'}",
    ])  # fmt: skip
    population = load_population(config)
    unlabelled = replace(population.dataset.train, labels=None)  # nothing to evaluate with
    population = Population(replace(population.dataset, train=unlabelled), population.parts)
    ray.client_app = app
    clock = Clock(rounds)
    engine = simulation.check_resources(config)
    run = RunFolder.create(config)
    simulation.simulate(config, population, run, clock, engine)
    trained = run.read_metrics()[1:]
    assert all(record["clients"]["ok"] == COHORT for record in trained)
    return {
        **clock.summary(),
        "exchange": [record["seconds"] for record in trained],
        "mb_down": trained[-1]["bytes_down"] / COHORT / 1e6,
    }


def step_seconds() -> float:
    """Seconds of one local step of the same model, batch 16, on one thread."""
    import torch

    from orchestra_flwr.config import load_config
    from orchestra_flwr.seeding import ClientSeed
    from orchestra_flwr.training import build_learner, torch_threads, train_round

    config = load_config(["data=cifar10", "device=cpu", "training.local_epochs=1"])
    images = torch.zeros(16 * 6, 3, 32, 32, dtype=torch.uint8)
    learner = build_learner(config, 3)
    with torch_threads(1):
        seconds = []
        for count in (16, 16 * 6):
            started = time.perf_counter()
            train_round(learner, images[:count], config, ClientSeed(0, 1, "0"))
            seconds.append(time.perf_counter() - started)
    return (seconds[1] - seconds[0]) / 5  # without what a round costs once


def stock(rounds: int, folder: Path) -> dict[str, Any]:
    """Flower as it comes."""
    import numpy as np
    from flwr.app import ArrayRecord, Context, MetricRecord
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation
    from stock_clients import app

    size = STOCK_BYTES // 4 // ARRAYS
    arrays = [np.full(size, i, np.float32) for i in range(ARRAYS)]
    clock, server = Clock(rounds), ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord:
            clock.tick()  # after every round; before the first one as round 0
            return MetricRecord()

        strategy = FedAvg(COHORT / CLIENTS, 0.0, min_available_nodes=CLIENTS)
        strategy.start(grid, ArrayRecord(arrays), num_rounds=rounds, evaluate_fn=evaluate)

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    init = {"num_cpus": WORKERS, "include_dashboard": False, "log_to_driver": False}
    run_simulation(server, app, CLIENTS, "ray", {"client_resources": resources, "init_args": init})
    readings = clock.summary()
    # The first round waits for Ray's workers to start; ours has its round 0 for that.
    return {
        **{k: v[1:] if isinstance(v, list) else v for k, v in readings.items()},
        "mb_down": STOCK_BYTES / 1e6,
    }


def figures(results: list[dict[str, Any]], side: str) -> dict[str, float]:
    """Medians of one side over all rounds of all repetitions; the worst memory."""
    runs = [result for result in results if result["side"] == side]

    def median(name: str) -> float:
        return statistics.median(value for run in runs for value in run[name])

    return {
        "overhead_s": median("exchange" if side == "ours" else "wall"),
        "round_s": median("wall"),
        "server_cpu_s": median("server_cpu"),
        "all_cpu_s": median("all_cpu"),
        "rss_gb": max(run["rss_gb"] for run in runs),
        "mb_down": runs[-1]["mb_down"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--side", choices=("ours", "stock"))
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.side and arguments.folder:
        side = ours if arguments.side == "ours" else stock
        print_json(side(arguments.rounds, arguments.folder))
        return
    sides = [arguments.side] if arguments.side else ["stock", "ours"]
    results = [
        {"side": side, **in_own_process(__file__, side=side, rounds=arguments.rounds)}
        for _ in range(arguments.repeat)
        for side in sides
    ]
    measured = {side: figures(results, side) for side in sides}
    keys = ("overhead_s", "round_s", "server_cpu_s", "all_cpu_s", "rss_gb")
    table(
        ("side", "MB down a client", "s a round", "with checkpoint", "CPU s, server", "CPU s, all",
         "server RSS, GB"),
        [(side, f"{one['mb_down']:.1f}", *(f"{one[key]:.2f}" for key in keys))
         for side, one in measured.items()],
    )  # fmt: skip
    if arguments.side:
        return
    written = {
        "overhead_s": measured["ours"]["overhead_s"],
        "server_rss_gb": measured["ours"]["rss_gb"],
        "stock_overhead_s": measured["stock"]["overhead_s"],
        "stock_rss_gb": measured["stock"]["rss_gb"],
        "step_s": step_seconds(),
        "sides": measured,
        "results": results,
    }
    write("overhead", written, arguments.output)


if __name__ == "__main__":
    main()
