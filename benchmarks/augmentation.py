"""Augmentation of a batch's three views: ours, PIL one by one, torchvision v2, kornia.

    python benchmarks/augmentation.py
    python benchmarks/augmentation.py --device cuda

Batches of 16 CIFAR-sized images, as in the paper's cross-device setting. torchvision's transforms
draw once for a whole batch, so that they have to be called image by image. kornia draws for each
image as ours does; it is measured where it is installed (pip install 'orchestra-flwr[bench]'),
compiled where there is a C++ compiler.
"""

import argparse
import shutil
from collections.abc import Callable
from functools import partial

import torch
from common import in_turns, table, write
from published import ThreeViews, client_images
from torchvision.transforms import InterpolationMode, v2

from orchestra_flwr.config import load_config
from orchestra_flwr.data import augment
from orchestra_flwr.methods.orchestra import RECIPES
from orchestra_flwr.models import normalise
from orchestra_flwr.process_memory import keep_freed_memory
from orchestra_flwr.training import resolve_device

BATCH = 16
View = Callable[[torch.Tensor], torch.Tensor]


def torchvision_views() -> list[View]:
    def view(blur_p: float, solarize_p: float) -> v2.Compose:
        bicubic = InterpolationMode.BICUBIC
        return v2.Compose(
            [
                v2.RandomResizedCrop(32, scale=(0.5, 1.0), interpolation=bicubic),
                v2.RandomHorizontalFlip(),
                v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
                v2.RandomGrayscale(p=0.2),
                v2.RandomApply([v2.GaussianBlur(3, (0.1, 2.0))], p=blur_p),
                v2.RandomSolarize(128, p=solarize_p),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 3, [0.5] * 3),
            ]
        )

    def turned(image: torch.Tensor) -> torch.Tensor:
        return view_1(image).rot90(int(torch.randint(4, ())), dims=(1, 2))

    view_1, view_2 = view(0.5, 0.0), view(0.1, 0.2)
    one_by_one: list[View] = [view_1, view_2, turned]
    return [lambda images, f=f: torch.stack([f(image) for image in images]) for f in one_by_one]


def kornia_views(*, compiled: bool) -> list[View]:
    from kornia import augmentation as K

    def view(blur_p: float, solarize_p: float, *more: torch.nn.Module) -> View:
        change = K.AugmentationSequential(
            K.RandomResizedCrop((32, 32), scale=(0.5, 1.0), resample="bicubic"),
            K.RandomHorizontalFlip(),
            K.ColorJiggle(0.4, 0.4, 0.2, 0.1, p=0.8),
            K.RandomGrayscale(p=0.2),
            K.RandomGaussianBlur((3, 3), (0.1, 2.0), p=blur_p),
            K.RandomSolarize(thresholds=0.5, additions=0.0, p=solarize_p),
            *more,
            data_keys=["input"],
        )
        change = torch.compile(change) if compiled else change
        return lambda images: normalise(change(images.float() / 255), "half")

    return [view(0.5, 0.0), view(0.1, 0.2), view(0.5, 0.0, K.RandomRotation90((0, 3), p=1.0))]


def each(views: list[View], images: torch.Tensor) -> list[torch.Tensor]:
    return [view(images) for view in views]


def contenders(device: torch.device) -> dict[str, Callable[[], object]]:
    images = client_images(load_config(["data=cifar10"]), BATCH)
    published = ThreeViews(images)
    on_device = images.to(device)
    draw = torch.Generator(device).manual_seed(0)

    def ours() -> object:
        return [normalise(view, "half") for view in augment(on_device, RECIPES, draw).images]

    tasks: dict[str, Callable[[], object]] = {
        "published (PIL)": lambda: [published[i] for i in range(BATCH)],
        "torchvision v2": partial(each, torchvision_views(), images),
        "ours": ours,
    }
    try:
        tasks["kornia"] = partial(each, kornia_views(compiled=False), on_device)
        if shutil.which("g++"):
            tasks["kornia, compiled"] = partial(each, kornia_views(compiled=True), on_device)
    except ImportError:
        print("kornia is not installed and left out")
    return tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # for all of them, as in a client's round
    device = resolve_device(arguments.device)
    seconds = in_turns(contenders(device), arguments.rounds)
    base = seconds["published (PIL)"]
    table(
        ("augmentation", "ms a batch", "ratio"),
        [
            (name, f"{1e3 * duration:.2f}", f"{base / duration:.1f}")
            for name, duration in seconds.items()
        ],
    )
    on_gpu = device.type == "cuda"
    figure = (
        {"gpu_augment_ms": 1e3 * seconds["ours"]}
        if on_gpu
        else {"augment_ratio": base / seconds["ours"]}
    )
    write(
        "augmentation_gpu" if on_gpu else "augmentation",
        {
            **figure,
            "ms": {name: 1e3 * duration for name, duration in seconds.items()},
            "threads": arguments.threads,
        },
    )


if __name__ == "__main__":
    main()
