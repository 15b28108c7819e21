"""What a backbone costs a client: weights, features, memory and processor time of a local step.

    python benchmarks/backbones.py
    python benchmarks/backbones.py adapt
    python benchmarks/backbones.py features

method=simclr, batches of 32 images of 32 x 32 pixels in colour, one thread. With `adapt`: networks
of timm, by the part that is trained, batches of 8 images of 224 x 224 pixels. With `features`:
passes without gradients, 256 such images at once or as many as `image_batches` takes. Each model
has a process of its own. Time is that of the processor, so other work on the machine hardly changes
it. Memory is the peak of the process (VmHWM) above its memory after images and model were loaded.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from common import table, write
from proc import memory

from orchestra_flwr.config import Config, load_config
from orchestra_flwr.methods import Role
from orchestra_flwr.models import image_batches
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import Learner, build_learner, train_round

MIB = 2**20
STEPS = 3
COMMON = (
    "method=simclr", "data=cifar10", "training.batch_size=32", "training.local_epochs=1",
    "training.lr=0.003",
)  # fmt: skip
LARGE = (
    *COMMON, "training.batch_size=8", "data.image_size=224", "model=timm",
)  # fmt: skip
NETWORKS = (
    "resnet18", "mobilenetv3_large_100", "vit_small_patch16_224", "vit_small_patch14_dinov2",
)  # fmt: skip
EVALUATED = ("tf_efficientnet_lite0", "resnet18", "vit_small_patch16_224")
MODELS = (
    ("model=resnet18",),
    ("model=resnet18", "model.width=32"),
    ("model=resnet18", "model.width=16"),
    ("model=convnet",),
    ("model=timm", "model.timm=mobilenetv3_small_100"),
    ("model=timm", "model.timm=resnet10t"),
)


def cost(work: Callable[[], object], images: int) -> dict[str, float]:
    """Of this process, which has done nothing else but a little of the same before."""
    before, started = memory("VmRSS"), time.process_time()
    work()
    return {
        "cpu_ms_per_image": 1000 * (time.process_time() - started) / images,
        "memory_mib": (memory("VmHWM") - before) / MIB,
    }


def cost_of_training(
    learner: Learner, config: Config, images: torch.Tensor, first: int
) -> dict[str, float]:
    """Of a round, after one with the first images, in which libraries choose kernels."""
    train_round(learner, images[:first], config, ClientSeed(0, 1, "0"))
    return cost(lambda: train_round(learner, images, config, ClientSeed(0, 2, "0")), len(images))


def pixels(*shape: int) -> torch.Tensor:
    """Images of noise."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)


def measure(overrides: tuple[str, ...]) -> dict[str, float]:
    """A small network."""
    config = load_config([*COMMON, *overrides])
    images = pixels(32 * STEPS, 3, 32, 32)
    learner = build_learner(config, 3)
    backbone = learner.method.backbone
    return {
        "parameters": sum(p.numel() for p in backbone.parameters()),
        "features": backbone.dim,
        **cost_of_training(learner, config, images, 4),
    }


def measure_adaptation(network: str, adaptation: str) -> dict[str, float]:
    """Bytes, and one step."""
    config = load_config([*LARGE, f"model.timm={network}", f"adaptation={adaptation}"])
    images = pixels(8, 3, 224, 224)
    learner = build_learner(config, 3)

    def mib(role: Role, part: str = "") -> float:
        state = learner.state(role).items()
        return 4 * sum(t.numel() for name, t in state if name.startswith(part)) / MIB

    return {
        "sent_mib": mib(Role.SHARED, "backbone"),
        "head_mib": mib(Role.SHARED, "projector"),
        "once_mib": mib(Role.FROZEN),
        **cost_of_training(learner, config, images, 2),
    }


def measure_features(network: str, at_once: bool) -> dict[str, float]:
    """256 images pass a network without gradients."""
    config = load_config([*LARGE, f"model.timm={network}"])
    backbone = build_learner(config, 3).method.backbone.eval()
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(256, 3, 224, 224, generator=draw)
    device = torch.device("cpu")
    batches = (images,) if at_once else image_batches(images, len(images), device)

    def look() -> None:
        for batch in batches:
            backbone(batch)

    with torch.no_grad():
        backbone(images[:2])  # libraries choose kernels
        return {"at_once": len(batches[0]), **cost(look, len(images))}


def in_own_process(function: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """A result of a process that has done nothing else, in one thread."""
    with multiprocessing.get_context("fork").Pool(1, torch.set_num_threads, (1,)) as process:
        return process.apply(function, arguments)


def main_adapt() -> None:
    """Networks of timm at the size that they are made for, whole and with adapters."""
    results = {
        f"{network} {adaptation}": in_own_process(measure_adaptation, network, adaptation)
        for network in NETWORKS
        for adaptation in ("full", "lora")
    }
    write("adaptations", {"networks": results})
    table(
        ("network, `adaptation=`", "each way", "head", "once", "CPU time of an image", "memory"),
        [
            (
                name,
                *(f"{of[key]:.2f} MiB" for key in ("sent_mib", "head_mib", "once_mib")),
                f"{of['cpu_ms_per_image'] / 1000:.2f} s",
                f"{of['memory_mib']:.0f} MiB",
            )
            for name, of in results.items()
        ],
    )


def main_features() -> None:
    """Networks of timm that describe images of 224 x 224 pixels."""
    results = {
        f"{network}, {'256' if at_once else 'few'} at once": in_own_process(
            measure_features, network, at_once
        )
        for network in EVALUATED
        for at_once in (True, False)
    }
    write("features", {"networks": results})
    table(
        ("network", "images at once", "CPU time of an image", "memory"),
        [
            (
                name.partition(",")[0],
                of["at_once"],
                f"{of['cpu_ms_per_image']:.0f} ms",
                f"{of['memory_mib']:.0f} MiB",
            )
            for name, of in results.items()
        ],
    )


def main() -> None:
    results = {" ".join(model): in_own_process(measure, model) for model in MODELS}
    write("backbones", {"models": results, "steps": STEPS})
    table(
        ("model", "parameters", "float32", "features", "CPU time of an image", "memory of a step"),
        [
            (
                f"`{name}`",
                f"{of['parameters']:,}",
                f"{4 * of['parameters'] / MIB:.1f} MiB",
                of["features"],
                f"{of['cpu_ms_per_image']:.1f} ms",
                f"{of['memory_mib']:.0f} MiB",
            )
            for name, of in results.items()
        ],
    )


if __name__ == "__main__":
    {"adapt": main_adapt, "features": main_features}.get("".join(sys.argv[1:]), main)()
