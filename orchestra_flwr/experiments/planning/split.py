"""How many classes a client holds (the paper's Table 4)."""

from __future__ import annotations

import torch

from orchestra_flwr.config import Config
from orchestra_flwr.data import class_counts, load_dataset, partition

# Training images of each class. A split depends on nothing else, so none need to be there.
PUBLISHED = {"cifar10": (10, 5000), "cifar100": (100, 500)}
LEAST_SHARE = 0.01  # of a client's images, for a class to count in the second figure


def classes_held_by_clients(config: Config) -> dict[str, float]:
    """Means over the clients of a run's split.

    Returns:
        `any`: classes of which a client has an image; `one_percent`: classes that make up at
        least 1 % of its images.

    Raises:
        ConfigError: images that cannot be had or have no labels, or a split they do not allow.
    """
    if config.data.name in PUBLISHED and config.data.train_limit is None:
        classes, each = PUBLISHED[config.data.name]
        labels = torch.arange(classes).repeat_interleave(each)
    else:
        train = load_dataset(config.data).train
        classes, known = len(train.classes), train.labels
        if known is None:  # then partition tells what is wrong, unless it needs no labels
            known = torch.zeros(len(train), dtype=torch.long)
        labels = known
    clients = config.federation.clients
    parts = partition(config.partition, labels, len(labels), clients, config.seed)
    counts = class_counts(parts, labels, max(1, classes))
    share = counts / counts.sum(axis=1, keepdims=True)
    return {
        "any": float((counts > 0).sum(axis=1).mean()),
        "one_percent": float((share >= LEAST_SHARE).sum(axis=1).mean()),
    }
