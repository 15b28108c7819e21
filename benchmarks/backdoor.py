"""How often a patch makes kNN answer the class of the attacker's image (`attack=backdoor`).

    python benchmarks/backdoor.py outputs/experiments/*/

For each complete run it prints the percentage of the test images of other classes that kNN puts
into that class, without and with the patch. With several attackers the most successful one counts.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import torch

from orchestra_flwr import load_encoder
from orchestra_flwr.config import load_config
from orchestra_flwr.evaluation.knn import knn_accuracy, voters
from orchestra_flwr.federation.attacks import attackers
from orchestra_flwr.federation.attacks.backdoor import stamped
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.models import extract_features

SUMMARY, BATCH = "summary.json", 256


def success(run: Path) -> tuple[str, float, float]:
    """The run's aggregation and attackers, and the shares of images without and with the patch."""
    config = load_config([f"resume={run}"])
    population = load_population(config)
    train, test = population.dataset.train, population.dataset.test
    assert train.labels is not None and test is not None and test.labels is not None
    encoder = load_encoder(run)
    bank = extract_features(encoder, train.images, BATCH)
    shares = []
    for client in sorted(attackers(config, list(population.parts))):
        target = train.labels[population.parts[client][0]]
        images = test.images[test.labels != target]
        patched = stamped(images, config.attack.settings.patch)
        shares.append(
            [
                knn_accuracy(
                    bank,
                    train.labels,
                    extract_features(encoder, inputs, BATCH),
                    target.expand(len(inputs)),
                    k=voters(config.evaluation.knn_k, len(bank)),
                )
                for inputs in (images, patched)
            ]
        )
    without, with_patch = max(shares, key=lambda both: both[1] - both[0])
    checked = "" if config.federation.max_update is None else ", checked"
    return (
        f"{config.aggregation.name}{checked}, attackers {config.attack.clients}",
        without,
        with_patch,
    )


def is_backdoored(run: Path) -> bool:
    """Whether clients of the run taught the encoder a patch."""
    return load_config([f"resume={run}"]).attack.name == "backdoor"


def main(folders: list[str]) -> None:
    """Prints a line for each setting, with mean and standard deviation over its runs."""
    by_setting = defaultdict(list)
    for folder in map(Path, folders):
        if (folder / SUMMARY).is_file() and is_backdoored(folder):
            name, *shares = success(folder)
            by_setting[name].append(shares)
    print("setting: as they are -> with the patch, % taken for the attacker's class")
    for name, runs in sorted(by_setting.items()):
        columns = torch.tensor(runs).T.mul(100).tolist()
        texts = [f"{mean(c):.1f} ± {stdev(c) if len(c) > 1 else 0:.1f}" for c in columns]
        print(f"{name}: {texts[0]} -> {texts[1]}  ({len(runs)} runs)")


if __name__ == "__main__":
    main(sys.argv[1:])
