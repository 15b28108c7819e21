"""Linear probes on a frozen encoder with a fraction of the labels, and which labels these are."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from orchestra_flwr.evaluation.linear_probe import linear_accuracy
from orchestra_flwr.seeding import torch_generator

FRACTIONS: Mapping[str, float] = {"linear_10": 0.1, "linear_1": 0.01}  # of the labels, by protocol

Features = tuple[Tensor, Tensor]  # (N, dim), and their classes (N,)


def over_seeds(runs: list[float]) -> dict[str, Any]:
    """`mean`, sample deviation `std` (None for a single run) and `runs`: test accuracies."""
    deviation = statistics.stdev(runs) if len(runs) > 1 else None
    return {"mean": statistics.mean(runs), "std": deviation, "runs": runs}


def labelled_subset(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """Indices of ceil(fraction * n_c) images of each class c, drawn from the seed.

    Args:
        labels: (N,) classes, integers.
        fraction: of the labels, above 0 and at most 1.
        seed: another one draws another subset.

    Returns:
        Ascending indices, int64, on the CPU.
    """
    labels = labels.cpu()
    generator = torch_generator(seed, "labels", str(fraction))
    order = torch.randperm(len(labels), generator=generator)
    chosen = []
    for label in torch.unique(labels):
        members = order[labels[order] == label]
        # Rounded first: in floats .01 * 700 is a little more than 7.
        chosen.append(members[: math.ceil(round(fraction * len(members), 6))])
    return torch.cat(chosen).sort().values


def probe_accuracies(
    bank: Features,
    queries: Features,
    fraction: float,
    seeds: Sequence[int],
    penalty: float | None = None,
) -> dict[str, Any]:
    """Linear probes on some of the training features; returns their :func:`over_seeds`.

    Args:
        bank: training features and their classes.
        queries: all test features and their classes.
        fraction: of the labels, the same of every class; each class has at least one.
        seeds: each draws other labels.
        penalty: as in :func:`~orchestra_flwr.evaluation.linear_probe.fit_linear_probe`.
    """
    features, labels = bank
    runs = []
    for seed in seeds:
        chosen = labelled_subset(labels, fraction, seed)
        few = features[chosen.to(features.device)], labels[chosen.to(labels.device)]
        runs.append(linear_accuracy(*few, *queries, penalty))
    return over_seeds(runs)
