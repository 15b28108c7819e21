import numpy as np
import pytest
from PIL import Image

from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.data import load_dataset, partition
from orchestra_flwr.experiments.planning.classes_held import classes_held_by_clients


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
    emd = held.pop("emd")
    assert held == {"any": np.mean(any_), "one_percent": np.mean(one_percent)}
    overall = np.bincount(labels) / len(labels)
    fractions = [np.bincount(labels[part], minlength=10) / len(part) for part in parts]
    assert emd == pytest.approx(np.mean([np.abs(shares - overall).sum() for shares in fractions]))
    assert held["any"] > held["one_percent"]


def test_groups_that_are_no_classes_need_the_images(tmp_path):
    """The published shortcut would spread the classes instead."""
    groups = [
        "data=cifar10", "partition=groups", f"data.root={tmp_path}", f"data.cache={tmp_path}",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"^data=cifar10: cannot be downloaded"):
        classes_held_by_clients(load_config(groups))


def test_images_without_a_label_are_of_no_class(tmp_path):
    for number, place in enumerate(["a", "b", "b", "."]):
        (tmp_path / place).mkdir(exist_ok=True)
        picture = Image.new("RGB", (8, 8), (60 * number, 0, 0))
        picture.save(tmp_path / place / f"{number}.png")
    some = [
        "data=image_folder", f"data.root={tmp_path}", "data.image_size=8", "partition=iid",
        "federation.clients=1",
    ]  # fmt: skip
    assert classes_held_by_clients(load_config(some)) == {"any": 2, "one_percent": 2, "emd": 0}


def test_images_without_labels_are_refused_in_a_line(tmp_path):
    for number in range(4):
        Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(tmp_path / f"{number}.png")
    unlabelled = [
        "data=image_folder", f"data.root={tmp_path}", "data.image_size=8", "partition=iid",
        "federation.clients=2",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="^data=image_folder: the images have no labels"):
        classes_held_by_clients(load_config(unlabelled))
