"""Clients that are trained side by side on one device: steps a second of all of them together.

    python benchmarks/side_by_side.py --device cuda
    python benchmarks/side_by_side.py --model convnet --epochs 1

Each client is a process, as in a simulation on Ray, with 500 images, and goes through whole rounds
(`train_round`: ResNet-18, batch 16, 10 epochs of 32 steps). "As one" are as many clients in one
process whose steps are taken as one (`engine=inline engine.side_by_side=N`; without CUDA graphs).
Minutes are those of all steps of the paper's device run; what Flower and Ray add is measured by
`overhead.py`.
"""

import argparse
import multiprocessing
import time
from functools import partial
from multiprocessing.synchronize import Barrier

import torch
from common import table, write
from local_step import learner, recipes
from published import client_images

from orchestra_flwr.config import load_config
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import (
    keep_freed_memory,
    resolve_device,
    side_by_side,
    torch_threads,
    train_round,
    usable_cpus,
)

IMAGES = 500  # of a client: 50,000 over 100
PAPER_EPOCHS = 100 * 50 * 10  # rounds, clients in each, epochs of each


def client(overrides: list[str], device: torch.device, rounds: int, together: Barrier) -> None:
    """One client's rounds, after one to warm up; all clients begin and end them together."""
    try:
        torch.set_num_threads(1)
        keep_freed_memory()
        config = load_config(overrides)
        model = learner(config, device)
        images = client_images(config, IMAGES).to(device)
        for number in range(rounds + 1):
            if number == 1:
                together.wait()
            seed = ClientSeed(config.seed, number, "0")
            train_round(model, images, config, seed)
        together.wait()
    except BaseException:
        together.abort()  # nobody waits for this one
        raise


def seconds_of(count: int, overrides: list[str], device: torch.device, rounds: int) -> float:
    """Seconds from the first step of `count` clients to the last."""
    context = multiprocessing.get_context("spawn")  # a forked process cannot use a GPU
    together = context.Barrier(count + 1)
    arguments = (overrides, device, rounds, together)
    clients = [context.Process(target=client, args=arguments, daemon=True) for _ in range(count)]
    for process in clients:
        process.start()
    together.wait()
    started = time.perf_counter()
    together.wait()
    seconds = time.perf_counter() - started
    for process in clients:
        process.join()
    return seconds


def seconds_as_one(count: int, overrides: list[str], device: torch.device, rounds: int) -> float:
    """Seconds of the same work in one process, after one round to warm up."""
    config = load_config(overrides)
    images = client_images(config, IMAGES).to(device)
    models = [learner(config, device) for _ in range(count)]
    started = 0.0
    with torch_threads(min(count, usable_cpus())):
        for number in range(rounds + 1):
            if number == 1:
                started = time.perf_counter()
            seeds = [ClientSeed(config.seed, number, str(k)) for k in range(count)]
            side_by_side(
                [
                    partial(train_round, model, images, config, seed)
                    for model, seed in zip(models, seeds, strict=True)
                ]
            )
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    device = resolve_device(given.device)
    fastest = list(recipes(device).values())[-1]
    overrides = ["data=cifar10", f"model={given.model}", f"training.local_epochs={given.epochs}"]
    config = load_config(overrides)
    of_an_epoch = -(-IMAGES // config.training.batch_size)
    steps = given.rounds * given.epochs * of_an_epoch
    rates = {
        count: count * steps / seconds_of(count, [*overrides, *fastest], device, given.rounds)
        for count in given.clients
    }
    plain = [choice for choice in fastest if "cuda_graphs" not in choice]
    as_one = {
        count: count * steps / seconds_as_one(count, [*overrides, *plain], device, given.rounds)
        for count in given.clients
    }
    minutes = {count: PAPER_EPOCHS * of_an_epoch / rate / 60 for count, rate in rates.items()}
    table(
        (
            "clients",
            "steps / s",
            "ms a step, together",
            "minutes of the paper's run",
            "as one, steps / s",
        ),
        [
            (
                count,
                f"{rate:.1f}",
                f"{1e3 / rate:.3f}",
                f"{minutes[count]:.1f}",
                f"{as_one[count]:.1f}",
            )
            for count, rate in rates.items()
        ],
    )
    on_gpu = device.type == "cuda"
    write(
        "side_by_side_gpu" if on_gpu else "side_by_side",
        {
            "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
            "model": given.model,
            "recipe": fastest,
            "steps_per_second": rates,
            "steps_per_second_as_one": as_one,
            **({"gpu_paper_minutes": min(minutes.values())} if on_gpu else {}),
        },
    )


if __name__ == "__main__":
    main()
