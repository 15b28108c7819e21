"""Seconds of one evaluation, and the share of the passes that make the features.

    python benchmarks/evaluation_share.py

A ResNet-18, 2,000 photographs for training and 500 for testing: kNN, linear probe and spread by
`evaluate`, beside the forward passes alone, in turns, in float32 and, where the processor has it,
in bfloat16. The ratio is to the passes of the same precision.
"""

import argparse
from functools import partial

import torch
from common import bfloat16_is_fast, in_turns, table, write
from published import client_images

from orchestra_flwr.config import load_config
from orchestra_flwr.evaluation import evaluate
from orchestra_flwr.models import Encoder, EncoderSpec, build_backbone, extract_features

CLASSES, TRAIN, TEST = 10, 2000, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    arguments = parser.parse_args()
    config = load_config(["data=cifar10", "model=resnet18", f"model.width={arguments.width}"])
    encoder = Encoder(EncoderSpec.of(config), build_backbone(config.model, 3)).eval()
    images = client_images(config, TRAIN + TEST)
    labels = torch.arange(TRAIN + TEST) % CLASSES
    train, test = zip(images.split([TRAIN, TEST]), labels.split([TRAIN, TEST]), strict=True)
    precisions = ["float32", *["bfloat16"] * bfloat16_is_fast()]
    tasks = {}
    for precision in precisions:
        settings = config.evaluation.model_copy(update={"precision": precision})
        size = settings.batch_size
        tasks[f"passes, {precision}"] = partial(
            extract_features, encoder, images, size, precision=precision
        )
        tasks[f"evaluation, {precision}"] = partial(
            evaluate, encoder, train, test, config=settings, augmentation=config.data.augmentation
        )
    seconds = in_turns(tasks, arguments.rounds, warm_up=1)
    ratios = {
        dtype: seconds[f"evaluation, {dtype}"] / seconds[f"passes, {dtype}"] for dtype in precisions
    }
    table(
        ("precision", "s of the passes", "s of the evaluation", "ratio"),
        [
            (dtype, f"{seconds[f'passes, {dtype}']:.2f}", f"{seconds[f'evaluation, {dtype}']:.2f}",
             f"{ratios[dtype]:.2f}")
            for dtype in precisions
        ],
    )  # fmt: skip
    write("evaluation_share", {"seconds": seconds, "evaluation_ratio": ratios[precisions[-1]]})


if __name__ == "__main__":
    main()
