"""What a larger population costs when equally many clients take part in a round.

    python benchmarks/population.py

50 clients a round out of 100 and out of 1,000, each of 14 images and one small local epoch, on 2
workers: seconds a round and the server's memory. `population_ratio` is the worse of the two
ratios (1: no cost).
Each run is a process of its own, in turn; seconds are medians over rounds and repetitions.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from common import table, write
from idle_clients import Clock, in_own_process, print_json

from orchestra_flwr.reporting import RunFolder

COHORT, WORKERS, IMAGES, MOST = 50, 2, 14, 1000


def write_images(folder: Path) -> Path:
    """As many small images as the most clients hold, all in both populations; without labels."""
    import numpy as np
    from PIL import Image

    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(IMAGES * MOST):
        image = Image.frombytes("L", (8, 8), generator.bytes(64))
        image.save(folder / f"{number:05}.png")
    return folder


def run(clients: int, rounds: int, folder: Path) -> dict[str, Any]:
    """One federation of so many clients."""
    from orchestra_flwr.config import load_config
    from orchestra_flwr.federation.population import load_population
    from orchestra_flwr.federation.simulation import check_resources, simulate

    config = load_config([
        "model.width=8", "model.projector_dim=16", "device=cpu", f"federation.clients={clients}",
        f"federation.participation={COHORT / clients}", f"federation.rounds={rounds}",
        "clustering.global_clusters=4", "clustering.local_clusters=2", "clustering.memory=16",
        "data=image_folder", f"data.root={write_images(folder / 'images')}", "data.image_size=8",
        "training.local_epochs=1", "partition=iid", f"partition.share={clients / MOST}",
        f"engine.workers={WORKERS}", f"run_dir={folder / 'run'}",
    ])  # fmt: skip
    clock, engine, population = Clock(rounds), check_resources(config), load_population(config)
    assert {len(part) for part in population.parts.values()} == {IMAGES}
    target = RunFolder.create(config)
    simulate(config, population, target, clock, engine)
    trained = target.read_metrics()[1:]
    assert all(record["clients"]["ok"] == COHORT for record in trained)
    return {
        **clock.summary(),
        "exchange": [record["seconds"] for record in trained],
        "client_s": [record["clients"]["mean_seconds"] for record in trained],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.clients:
        print_json(run(arguments.clients, arguments.rounds, arguments.folder))
        return
    results = [
        {"clients": clients, **in_own_process(__file__, clients=clients, rounds=arguments.rounds)}
        for _ in range(arguments.repeat)
        for clients in (100, MOST)
    ]

    def figures(clients: int) -> dict[str, float]:
        runs = [one for one in results if one["clients"] == clients]
        measured = {
            name: statistics.median(value for one in runs for value in one[name])
            for name in ("exchange", "all_cpu", "server_cpu", "client_s")
        }
        return {**measured, "rss_gb": min(one["rss_gb"] for one in runs)}

    measured = {clients: figures(clients) for clients in (100, MOST)}
    keys = ("exchange", "server_cpu", "all_cpu")
    table(
        ("clients", "s a round", "CPU s, server", "CPU s, all", "server RSS, GB"),
        [(clients, *(f"{one[key]:.2f}" for key in keys), f"{one['rss_gb']:.3f}")
         for clients, one in measured.items()],
    )  # fmt: skip
    ratios = {name: measured[MOST][name] / measured[100][name] for name in ("exchange", "rss_gb")}
    written = {
        "population_ratio": max(ratios.values()),
        "ratios": ratios,
        "populations": measured,
        "results": results,
    }
    print(f"population_ratio {written['population_ratio']:.3f}")
    write("population", written, arguments.output)


if __name__ == "__main__":
    main()
