"""Clients that are trained side by side on one device: steps a second of all of them together.

    python benchmarks/side_by_side.py --device cuda
    python benchmarks/side_by_side.py --model convnet --epochs 1

Each client has 500 images and goes through whole rounds: ResNet-18, batch 16, 10 epochs of 31
steps. It is a process of its own that trains, as in a simulation on Ray; or a thread, as with
`engine=inline engine.side_by_side=N`, from the model as it was received to the reply. Minutes are
those of all steps of the paper's device run, in whichever is faster; what Flower and Ray add is
measured by `overhead.py`.
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
from orchestra_flwr.data.batches import batch_sizes
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.process_memory import keep_freed_memory
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import client_threads, resolve_device, torch_threads, train_round

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


def seconds_in_threads(
    count: int, overrides: list[str], device: torch.device, rounds: int
) -> float:
    """Seconds of the same work in threads of one process, after one round to warm up."""
    config = load_config(overrides)
    images = client_images(config, IMAGES).to(device)
    untrained = learner(config, device)
    received = [*pack_state(untrained, Schemas.of(untrained, config)).values()]

    def client_round(number: int, k: int) -> None:
        client = OrchestraClient(config, str(k), images, untrained=untrained)
        client.fit(received, {"round": number, "train": True})

    with torch_threads(1), client_threads(count, device) as threads:
        list(threads.map(partial(client_round, 0), range(count)))
        started = time.perf_counter()
        clients = [(number, k) for number in range(1, rounds + 1) for k in range(count)]
        list(threads.map(client_round, *zip(*clients, strict=True)))
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    fastest = list(recipes(device).values())[-1]
    overrides = [
        "data=cifar10",
        f"model={arguments.model}",
        f"training.local_epochs={arguments.epochs}",
    ]
    config = load_config(overrides)
    of_an_epoch = len(batch_sizes(IMAGES, config.training.batch_size))
    steps = arguments.rounds * arguments.epochs * of_an_epoch
    rates = {
        count: count * steps / seconds_of(count, [*overrides, *fastest], device, arguments.rounds)
        for count in arguments.clients
    }
    chosen = [*overrides, *fastest]
    threads = {
        count: count * steps / seconds_in_threads(count, chosen, device, arguments.rounds)
        for count in arguments.clients
    }
    best = {count: max(rates[count], threads[count]) for count in rates}
    minutes = {count: PAPER_EPOCHS * of_an_epoch / rate / 60 for count, rate in best.items()}
    table(
        (
            "clients",
            "steps / s, processes",
            "steps / s, threads",
            "ms a step, together",
            "minutes of the paper's run",
        ),
        [
            (
                count,
                f"{rates[count]:.1f}",
                f"{threads[count]:.1f}",
                f"{1e3 / rate:.3f}",
                f"{minutes[count]:.1f}",
            )
            for count, rate in best.items()
        ],
    )
    on_gpu = device.type == "cuda"
    write(
        "side_by_side_gpu" if on_gpu else "side_by_side",
        {
            "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
            "model": arguments.model,
            "recipe": fastest,
            "steps_per_second": rates,
            "steps_per_second_in_threads": threads,
            **({"gpu_paper_minutes": min(minutes.values())} if on_gpu else {}),
        },
    )


if __name__ == "__main__":
    main()
