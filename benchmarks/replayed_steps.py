"""Steps replayed by clients in threads, and the kernels that a step is made of.

    python benchmarks/replayed_steps.py --device cuda
    python benchmarks/replayed_steps.py --model convnet --clients 1 2 --steps 5

Orchestra, batches of 16. Each client has a learner and a CUDA graph of its own and replays it;
on a CPU it takes plain steps. Milliseconds are of a step of all clients together. The kernels are
those of plain steps, by torch.profiler: their number, and the milliseconds that they take. On a
GPU views are made ahead, as in a run, before what is measured.
"""

import argparse
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import torch
from common import table, write
from local_step import learner
from published import client_images

from orchestra_flwr.config import load_config
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import client_threads, resolve_device
from orchestra_flwr.training.cuda_graph import CapturedStep
from orchestra_flwr.training.step import BatchMaker, LocalStep
from orchestra_flwr.training.views_ahead import ViewsAhead

BATCHES, BATCH = 32, 16
KINDS = {  # the first that a kernel's name fits
    "BatchNorm": r"batch_?norm|for_multi_outputs|OnSelf_add<long>",
    "convolutions": r"[fdw]prop|[dw]grad|[Cc]onv|workspace|AddPadding|[Rr]educeSplitK",
    "optimizer and moving average": r"multi_tensor",
    "casts and copies": r"copy",
}
Step = Callable[[torch.Tensor], None]


def made_step(overrides: list[str], device: torch.device, client: int) -> Step:
    """A client's step after its first ones; on a GPU a captured one."""
    config = load_config(["data=cifar10", *overrides])
    images = client_images(config, BATCHES * BATCH).to(device)
    model = learner(config, device)
    make = ViewsAhead if device.type == "cuda" else BatchMaker
    batches = make(model.method, images, None, config, ClientSeed(0, 1, str(client)))
    step = LocalStep(model, batches, config)
    taken = CapturedStep(step, batches.generators) if config.training.cuda_graphs else step
    for rows in [*batches.in_steps(rows_of(device))][:3]:
        taken(rows)
    return taken


def rows_of(device: torch.device) -> list[torch.Tensor]:
    return list(torch.arange(BATCHES * BATCH, device=device).split(BATCH))


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def milliseconds(overrides: list[str], device: torch.device, clients: int, steps: int) -> float:
    """Of a step, when so many clients take theirs at the same time."""
    together, rows = threading.Barrier(clients), rows_of(device)

    def take(client: int) -> tuple[float, float]:
        step = made_step(overrides, device, client)
        wait_for(device)
        together.wait()
        started = time.perf_counter()
        for number in range(steps):
            step(rows[number % BATCHES])
        wait_for(device)
        return started, time.perf_counter()

    with client_threads(clients, device) as threads:
        times = list(threads.map(take, range(clients)))
    first, last = min(s for s, _ in times), max(e for _, e in times)
    return 1e3 * (last - first) / steps / clients


def kernels(overrides: list[str], device: torch.device) -> dict[str, tuple[float, float]]:
    """Number of kernels of a plain step, and their milliseconds, by kind."""
    from torch.profiler import ProfilerActivity, profile

    step, steps = made_step(overrides, device, 0), 5
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for rows in rows_of(device)[:steps]:
            step(rows)
        torch.cuda.synchronize(device)
    by_kind: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for event in recorded.events() or ():
        fits = (kind for kind, pattern in KINDS.items() if re.search(pattern, event.name))
        kind = next(fits, "everything else")
        count, spent = by_kind[kind]
        by_kind[kind] = count + 1 / steps, spent + event.time_range.elapsed_us() / 1e3 / steps
    return dict(by_kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 16], metavar="N")
    parser.add_argument("--steps", type=int, default=150, help="of each client")
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    on_gpu, model = device.type == "cuda", f"model={arguments.model}"
    precisions = ("float32", "bfloat16") if on_gpu else ("float32",)
    spent, made_of = {}, {}
    for precision in precisions:
        plain = [model, f"training.precision={precision}"]
        chosen = [*plain, f"training.cuda_graphs={str(on_gpu).lower()}"]
        spent[precision] = {
            count: milliseconds(chosen, device, count, arguments.steps)
            for count in arguments.clients
        }
        if on_gpu:
            made_of[precision] = kernels(plain, device)
    table(
        ("clients", *precisions),
        [(n, *(f"{spent[p][n]:.2f}" for p in precisions)) for n in arguments.clients],
    )
    for precision, kinds in made_of.items():
        table(
            (precision, "kernels", "ms"),
            [(k, f"{n:.0f}", f"{t:.2f}") for k, (n, t) in kinds.items()],
        )
    write(
        "replayed_steps_gpu" if on_gpu else "replayed_steps",
        {
            "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
            "model": arguments.model,
            "milliseconds": spent,
            "kernels": made_of,
        },
    )


if __name__ == "__main__":
    main()
