"""Training time and bytes until the linear probe on photographs passes 50, 55, 60 and 65 %.

    python benchmarks/time_to_accuracy.py

The number of images is that of the first record in docs/results whose probe is as high: of a small
convnet from random weights, of the same with a teacher, and of a pretrained network. Seconds of a
core for an image are measured here, ours and the published recipe's steps in turns; evaluations and
the server's part are left out on both sides. The published recipe has the same rounds with the same
images and sends the same arrays in float32, as ours did. A teacher looks once at each image.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from common import in_turns, table, write
from published import PublishedClient, PublishedSimCLR, client_images

from orchestra_flwr.config import Config, load_config
from orchestra_flwr.methods.orchestra import Orchestra
from orchestra_flwr.methods.simclr import SimCLR
from orchestra_flwr.methods.teacher import teacher_of
from orchestra_flwr.process_memory import keep_freed_memory
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round

RECORDS = Path(__file__).parents[1] / "docs" / "results"
RUNS = {
    "SimCLR, 10,000 photographs": "medium/simclr-100-rounds",
    "SimCLR, 50,000 photographs": "medium/simclr-all-photographs",
    "Orchestra, 10,000 photographs": "medium/orchestra-100-rounds",
    "Orchestra, 50,000 photographs": "medium/orchestra-all-photographs",
    "SimCLR's network from a teacher, 10,000 photographs": "medium/distill",
    "SimCLR from a pretrained network, 2,000 photographs": "pretrained/simclr-norms",
}
PRETRAINED = ("medium/distill", "pretrained/simclr-norms")  # those that need --weights
TARGETS = (0.5, 0.55, 0.6, 0.65)
PUBLISHED = {SimCLR: PublishedSimCLR, Orchestra: PublishedClient}
Cost = dict[str, float]  # images trained on, bytes of all clients both ways


def costs(
    records: Iterable[Mapping[str, Any]], epochs: int, targets: Iterable[float]
) -> dict[float, Cost | None]:
    """What a run had cost when its probe was first seen at or above each target.

    Args:
        records: lines of `metrics.jsonl`, in the order of the rounds.
        epochs: local epochs of a round.
        targets: accuracies, as fractions.

    Returns:
        None for a target that was not reached.
    """
    reached: dict[float, Cost | None] = dict.fromkeys(targets)
    images = sent = 0
    for record in records:
        if record["round"] > 0:  # before it clients of Orchestra only cluster
            images += record["clients"]["examples"] * epochs
        sent += record["bytes_up"] + record["bytes_down"]
        # Of the backbones, the first one is saved.
        for scores in [*(record.get("scores") or {}).values()][:1]:
            for target, cost in reached.items():
                if cost is None and scores["linear"] >= target:
                    reached[target] = {"images": images, "bytes": sent}
    return reached


def settings(run: Path, weights: str | None) -> Config:
    """What decides the time of a step, as the run had it."""
    record = yaml.safe_load((run / "config.yaml").read_text())
    training, model = record["training"], record["model"]
    overrides = [
        f"method={record['method']['name']}",
        f"model={model['name']}",
        f"training.batch_size={training['batch_size']}",
        f"training.lr={training['lr']}",
        "training.local_epochs=1",
        "data=cifar10",
        f"data.image_size={record['data']['image_size']}",
    ]
    if record["method"]["name"] == "distill":
        method = record["method"]
        overrides += [f"method.teacher={method['teacher']}", f"method.teacher_weights={weights}"]
        overrides += [f"method.teacher_size={method['teacher_size']}"]
    if model["name"] == "timm":
        overrides += [f"model.timm={model['timm']}", f"model.weights={weights}"]
        overrides += [f"adaptation={record['adaptation']['name']}"]
    else:
        overrides.append(f"model.width={model['width']}")
    return load_config(overrides)


def seconds_an_image(config: Config, count: int, repeats: int) -> dict[str, float]:
    """Of ours and, where there is one, of the published recipe; median of the repeats."""
    images = client_images(config, count)
    learner = build_learner(config, config.data.channels).train()
    seed = ClientSeed(config.seed, 1, "0")
    tasks: dict[str, Callable[[], object]] = {
        "ours": lambda: train_round(learner, images, config, seed, contribute=False)
    }
    method = build_learner(config, config.data.channels).train().method
    if config.model.name != "timm" and type(method) in PUBLISHED:
        client = PUBLISHED[type(method)](method, images, config)
        steps = count // config.training.batch_size
        tasks["published"] = lambda: [client.step() for _ in range(steps)]
    seconds = in_turns(tasks, repeats, warm_up=1, clock=time.process_time)
    return {name: duration / count for name, duration in seconds.items()}


def teacher_seconds(config: Config, images: int, count: int, repeats: int) -> float:
    """What a run's teacher takes to look at all images once; 0 where there is none."""
    if config.method.name != "distill":
        return 0.0
    teacher, some = teacher_of(config, "0"), client_images(config, count)
    look = partial(teacher.encode, some, config.training.batch_size)
    seconds = in_turns({"teacher": look}, repeats, warm_up=1, clock=time.process_time)
    return seconds["teacher"] / count * images


def row(
    label: str, reached: Mapping[float, Cost | None], seconds: float, once: float = 0
) -> tuple[object, ...]:
    return (label, *(cell(cost, seconds, once) for cost in reached.values()))


def cell(cost: Cost | None, seconds: float, once: float = 0) -> str:
    """Minutes and megabytes, `seconds` an image and `once` for all."""
    if cost is None:
        return "-"
    if not cost["images"]:
        return "at the start"
    minutes = (cost["images"] * seconds + once) / 60
    return f"{minutes:.1f} min, {cost['bytes'] / 1e6:,.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=192, help="of one measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--weights", help="file of tf_efficientnet_lite0; without it: not measured")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    rows, result = [], {}
    for name, folder in RUNS.items():
        run = RECORDS / folder
        if folder in PRETRAINED and arguments.weights is None:
            continue
        config = settings(run, arguments.weights)
        record = yaml.safe_load((run / "config.yaml").read_text())
        epochs, count = record["training"]["local_epochs"], record["data"]["train_limit"]
        reached = costs(RunFolder(run).read_metrics(), epochs, TARGETS)
        seconds = seconds_an_image(config, arguments.images, arguments.repeats)
        once = teacher_seconds(config, count, arguments.images, arguments.repeats)
        rows += [
            row(f"{name}, {side}", reached, duration, once) for side, duration in seconds.items()
        ]
        result[name] = {
            "run": folder, "seconds_an_image": seconds, "seconds_once": once, "reached": reached
        }  # fmt: skip
    table(("minutes of a core", *(f"{target:.0%}" for target in TARGETS)), rows)
    write("time_to_accuracy", {"runs": result})


if __name__ == "__main__":
    main()
