"""Images a second of local training: ours beside the published recipe, in turns in one process.

    python benchmarks/local_step.py
    python benchmarks/local_step.py --device cuda

ResNet-18, batch 16, augmentation included; ours is `train_round` as clients run it. A recipe's
ceiling is the ratio of a step that consists of its convolutions alone, all as fast as this
machine's fastest matrix product in that precision.
"""

import argparse
from collections.abc import Callable

import torch
from ceiling import fastest_product, step_flops
from common import bfloat16_is_fast, in_turns, table, write
from published import PublishedClient, client_images

from orchestra_flwr.config import Config, load_config
from orchestra_flwr.machine_limits import usable_cpus
from orchestra_flwr.methods.orchestra import Orchestra
from orchestra_flwr.process_memory import keep_freed_memory
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import Learner, build_learner, resolve_device, train_round


def learner(config: Config, device: torch.device) -> Learner:
    return build_learner(config, config.data.channels).train().to(device)


def method(config: Config, device: torch.device) -> Orchestra:
    built = learner(config, device).method
    assert isinstance(built, Orchestra)
    return built


def ours(config: Config, images: torch.Tensor) -> Callable[[], object]:
    model = learner(config, images.device)
    seed = ClientSeed(config.seed, 1, "0")

    def steps() -> object:
        return train_round(model, images, config, seed, contribute=False)

    return steps


def recipes(device: torch.device) -> dict[str, list[str]]:
    """Ours, by what the configuration says of them."""
    bfloat16 = "training.precision=bfloat16"
    if device.type == "cuda":
        graphs = "training.cuda_graphs=true"
        return {
            "float32": [],
            "bfloat16": [bfloat16],
            "float32, graphs": [graphs],
            "bfloat16, graphs": [bfloat16, graphs],
        }
    return {"float32": [], **({"bfloat16": [bfloat16]} if bfloat16_is_fast() else {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--steps", type=int, help="of one measurement (4; a GPU: 310, a round's)")
    parser.add_argument("--rounds", type=int, default=7, help="measurements; the median counts")
    parser.add_argument("--model", default="resnet18")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    device = resolve_device(arguments.device)
    steps = arguments.steps or (310 if device.type == "cuda" else 4)
    fixed = ["data=cifar10", f"model={arguments.model}", "training.local_epochs=1"]
    config = load_config(fixed)
    images = client_images(config, steps * config.training.batch_size)
    published = PublishedClient(method(config, device), images, config)
    tasks: dict[str, Callable[[], object]] = {
        "published": lambda: [published.step() for _ in range(steps)]
    }
    for name, overrides in recipes(device).items():
        tasks[name] = ours(load_config([*fixed, *overrides]), images.to(device))
    seconds = {
        name: duration / steps for name, duration in in_turns(tasks, arguments.rounds).items()
    }
    ratios = {name: seconds["published"] / duration for name, duration in seconds.items()}
    flops = step_flops(published)
    peaks = {
        name: fastest_product(getattr(torch, name), device)
        for name in ("float32", "bfloat16")
        if name in tasks
    }
    ceilings = {name: seconds["published"] * peak / flops for name, peak in peaks.items()}
    table(
        ("recipe", "images / s", "ms / step", "ratio", "ceiling"),
        [
            (name, f"{config.training.batch_size / duration:.1f}", f"{1e3 * duration:.1f}",
             f"{ratios[name]:.2f}", f"{ceilings[name]:.2f}" if name in ceilings else "")
            for name, duration in seconds.items()
        ],
    )  # fmt: skip
    speeds = ", ".join(f"{name} {peak / 1e9:.0f}" for name, peak in peaks.items())
    print(f"{flops / 1e9:.0f} GFLOP a step; GFLOP/s of the fastest product: {speeds}")
    on_gpu = device.type == "cuda"
    figures = (
        {"gpu_step_ms": 1e3 * seconds["bfloat16, graphs"]}
        if on_gpu
        else {"step_fp32_ratio": ratios["float32"], "step_bf16_ratio": ratios.get("bfloat16")}
    )
    write(
        "local_step_gpu" if on_gpu else "local_step",
        {
            "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
            "model": arguments.model,
            "threads": arguments.threads,
            "steps": steps,
            "step_ms": {name: 1e3 * duration for name, duration in seconds.items()},
            "ratios": ratios,
            "step_gflop": flops / 1e9,
            "product_gflop_per_s": {name: peak / 1e9 for name, peak in peaks.items()},
            "ceilings": ceilings,
            **figures,
        },
    )


if __name__ == "__main__":
    main()
