import numpy as np
import pytest

from orchestra_flwr.config import load_config
from orchestra_flwr.data import load_dataset, partition
from orchestra_flwr.experiments import classes_held_by_clients


@pytest.mark.parametrize(
    ("data", "alpha", "any_", "one_percent"),
    [
        ("cifar10", 0.1, 4.69, 3.75),
        ("cifar10", 1e-3, 1.08, 1.06),
        ("cifar10", 1e5, 10, 10),
        ("cifar100", 0.1, 29.30, 17.89),
    ],
)
def test_published_splits_without_their_images(data, alpha, any_, one_percent):
    held = classes_held_by_clients(load_config([f"data={data}", f"partition.alpha={alpha}"]))
    assert held["any"] == pytest.approx(any_, abs=0.005)
    assert held["one_percent"] == pytest.approx(one_percent, abs=0.005)


def test_counted_one_by_one_on_real_labels():
    config = load_config(["data=digits", "federation.clients=7"])
    labels = load_dataset(config.data).train.labels
    parts = partition(config.partition, labels, len(labels), 7, 0)
    any_, one_percent = [], []
    for part in parts:
        names, counts = np.unique(labels.numpy()[part], return_counts=True)
        any_.append(len(names))
        one_percent.append(sum(count >= len(part) / 100 for count in counts))
    held = classes_held_by_clients(config)
    assert held == {"any": np.mean(any_), "one_percent": np.mean(one_percent)}
    assert held["any"] > held["one_percent"]
