"""How many classes a client holds (the paper's Table 4), and how uneven a split is."""

import torch

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.data import (
    Partition,
    class_counts,
    earth_movers_distance,
    load_dataset,
    partition,
    partition_by_name,
)

# Training images, equally many of each class. A split by classes depends on nothing else.
PUBLISHED_IMAGES = {"cifar10": 50_000, "cifar100": 50_000}
MIN_SHARE = 0.01  # of a client's images, for a class to count in `one_percent`


def classes_held_by_clients(config: Config) -> dict[str, float]:
    """Means over the clients of a run's split.

    Returns:
        `any`: classes of which a client has an image; `one_percent`: classes that make up at
        least 1 % of its images; `emd`: :func:`earth_movers_distance` of the class shares, where
        images without a label count as a class.

    Raises:
        ConfigError: the images cannot be loaded, have no labels, or cannot be split like this.
    """
    images, classes = PUBLISHED_IMAGES.get(config.data.name), config.data.classes
    clients, plugin = config.federation.clients, config.partition.plugin
    by_classes = plugin.groups is Partition.groups
    if by_classes and images and classes and config.data.train_limit is None:
        labels = torch.arange(classes).repeat_interleave(images // classes)
        parts = partition(config.partition, labels, len(labels), clients, config.seed)
    else:
        train = load_dataset(config.data).train
        if train.labels is None:
            raise ConfigError(f"data={config.data.name}: the images have no labels to count")
        labels, classes = train.labels, len(train.classes)
        by_name = partition_by_name(config.partition, train, clients, config.seed)
        parts = list(by_name.values())
    counts = class_counts(parts, labels, classes)
    share = (counts / counts.sum(axis=1, keepdims=True))[:, :classes]  # no label is no class
    return {
        "any": float((share > 0).sum(axis=1).mean()),
        "one_percent": float((share >= MIN_SHARE).sum(axis=1).mean()),
        "emd": earth_movers_distance(counts),
    }
