"""The demo with methods that users of other libraries expect: rows of docs/results/README.md.

    python benchmarks/demo_methods.py                       # about 50 minutes of one core
    python benchmarks/demo_methods.py --methods swav dino

Each method's learning rate is the one with the best linear probe on a quarter of the training
digits, both drawings of each, which are held back: seed 0, 8 rounds. With it the demo runs as it
is (data=affine_digits), for each seed. Interrupted, it goes on with the runs that are missing.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import torch
from common import table, write
from PIL import Image
from torch import Tensor

from orchestra_flwr import Result, simulate
from orchestra_flwr.config import load_config
from orchestra_flwr.data import load_dataset

METHODS = ("mocov2", "barlow_twins", "vicreg", "swav", "dino")
RATES = ("0.1", "0.03", "0.01", "0.003")
ONE_CORE = ("engine=inline", "device=cpu", "evaluation.every=1000")
LIKE_THE_DEMO = (
    "model=convnet_16", "federation=demo", "data.image_size=16", "data.augmentation.flip=false",
)  # fmt: skip

Pairs = list[tuple[Image.Image, int]]


def below_minimum() -> tuple[Pairs, Pairs]:
    """Training digits, and the quarter of them that learning rates are chosen by."""
    train = load_dataset(load_config(["data=affine_digits"]).data).train
    assert train.labels is not None
    digits = len(train) // 2  # all of them are drawn, and then all once more
    draw = torch.Generator().manual_seed(1)
    chosen = torch.zeros(digits, dtype=torch.bool)
    chosen[torch.randperm(digits, generator=draw)[: digits // 4]] = True
    chosen = chosen.repeat(2)

    def pairs(which: Tensor) -> Pairs:
        images, labels = train.images[which, 0].numpy(), train.labels[which].tolist()
        return [(Image.fromarray(i), label) for i, label in zip(images, labels, strict=True)]

    return pairs(~chosen), pairs(chosen)


def run(folder: Path, overrides: Sequence[str], dataset: object = None) -> dict[str, float]:
    """Accuracies of a run's kept encoder, in per cent; a finished run is only read."""
    if not (folder / "summary.json").exists():
        begun = (folder / "checkpoint/state.safetensors").exists()
        chosen = [f"resume={folder}"] if begun else [*overrides, f"run_dir={folder}"]
        simulate(chosen, dataset=None if begun else dataset)
    summary = Result(folder).summary
    return {key: 100 * summary[key] for key in ("knn", "linear")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--rates", nargs="+", default=RATES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("outputs/demo-methods"))
    parser.add_argument("overrides", nargs="*", help="of all runs, after --")
    arguments = parser.parse_args()
    common, pairs, results, rows = [*ONE_CORE, *arguments.overrides], below_minimum(), {}, []
    for method in arguments.methods:
        tried = {
            rate: run(
                arguments.folder / f"{method}-below_minimum-{rate}",
                [*LIKE_THE_DEMO, f"method={method}", f"training.lr={rate}",
                 "federation.rounds=8", *common],
                pairs,
            )
            for rate in arguments.rates
        }  # fmt: skip
        best = max(tried, key=lambda rate: tried[rate]["linear"])
        accuracies = [
            run(
                arguments.folder / f"{method}-{best}-{seed}",
                [f"method={method}", f"training.lr={best}", f"seed={seed}", *common],
            )
            for seed in arguments.seeds
        ]
        results[method] = {"below_minimum": tried, "rate": best, "seeds": accuracies}
        means = [f"{mean(scores[key] for scores in accuracies):.1f}" for key in ("knn", "linear")]
        rows.append((method, best, *means, ", ".join(map(str, arguments.seeds))))
        write("demo_methods", {"methods": results})
    table(("method", "learning rate", "kNN", "linear probe", "seeds"), rows)


if __name__ == "__main__":
    main()
