"""Images a second of local training: ours beside the published recipe, in turns in one process.

    python benchmarks/local_step.py
    python benchmarks/local_step.py --device cuda

ResNet-18, batch 16, augmentation included; ours is `train_round` as clients run it.
"""

import argparse
from collections.abc import Callable

import torch
from common import in_turns, table, write
from published import PublishedClient, client_images

from orchestra_flwr.config import Config, load_config
from orchestra_flwr.heap import keep_freed_memory
from orchestra_flwr.methods import build_method
from orchestra_flwr.methods.orchestra import Orchestra
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import resolve_device, train_round, usable_cpus


def method(config: Config, device: torch.device) -> Orchestra:
    built = build_method(config, config.data.channels)
    assert isinstance(built, Orchestra)
    return built.train().to(device)


def ours(config: Config, images: torch.Tensor) -> Callable[[], object]:
    model = method(config, images.device)
    seed = ClientSeed(config.seed, 1, "0")

    def steps() -> object:
        augmentation = config.data.augmentation
        return train_round(model, images, config.training, augmentation, seed, contribute=False)

    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--steps", type=int, default=4, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=7, help="measurements; the median counts")
    parser.add_argument("--model", default="resnet18")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    device = resolve_device(given.device)
    fixed = ["data=cifar10", f"model={given.model}", "training.local_epochs=1"]
    config = load_config(fixed)
    count = given.steps * config.training.batch_size
    images = client_images(config, count).to(device)
    published = PublishedClient(method(config, device), images.cpu(), config.training)
    tasks: dict[str, Callable[[], object]] = {
        "published": lambda: [published.step() for _ in range(given.steps)],
        "float32": ours(config, images),
    }
    # Where a processor has no instructions for it, bfloat16 takes minutes a step.
    if device.type == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        tasks["bfloat16"] = ours(load_config([*fixed, "training.precision=bfloat16"]), images)
    seconds = in_turns(tasks, given.rounds)
    rates = {name: count / each for name, each in seconds.items()}
    ratios = {name: rate / rates["published"] for name, rate in rates.items()}
    table(
        ("recipe", "images / s", "ms / step", "ratio"),
        [
            (name, f"{rate:.1f}", f"{1e3 * seconds[name] / given.steps:.1f}", f"{ratios[name]:.2f}")
            for name, rate in rates.items()
        ],
    )
    result = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "model": given.model,
        "threads": given.threads,
        "images_per_second": rates,
        "step_ms": {name: 1e3 * each / given.steps for name, each in seconds.items()},
        "step_fp32_ratio": ratios["float32"],
        "step_bf16_ratio": ratios.get("bfloat16"),
    }
    write("local_step" if device.type == "cpu" else "local_step_gpu", result)


if __name__ == "__main__":
    main()
