import pytest
import torch
from sklearn.datasets import load_digits

from orchestra_flwr.config import DataConfig
from orchestra_flwr.data import load_dataset


def _digits(**changes) -> DataConfig:
    return DataConfig(**({"name": "digits", "image_size": 8} | changes))


def test_digits_are_all_there_and_split_in_balance():
    dataset = load_dataset(_digits())
    train, test = dataset.train, dataset.test

    assert (len(train), len(test)) == (1438, 359)
    assert (dataset.name, dataset.channels, dataset.image_size) == ("digits", 1, 8)
    assert train.classes == test.classes == tuple("0123456789")
    counts = test.labels.bincount()
    assert counts.max() - counts.min() <= 1
    values = torch.cat([train.images, test.images])
    assert (values.min(), values.max()) == (0, 255)
    original = load_digits().images.sum() * 255 / 16
    assert values.double().sum() == pytest.approx(original, rel=1e-3)


def test_digits_keep_their_labels():
    """An eight is brighter in its middle than a zero."""
    train = load_dataset(_digits()).train
    middle = train.images[:, 0, 3:5, 3:5].double().mean(dim=(1, 2))

    assert middle[train.labels == 8].mean() > middle[train.labels == 0].mean() + 100


def test_digits_do_not_change_between_loads():
    first, second = load_dataset(_digits()), load_dataset(_digits())

    assert torch.equal(first.train.images, second.train.images)
    assert torch.equal(first.test.labels, second.test.labels)


def test_digits_can_be_limited_and_resized():
    dataset = load_dataset(_digits(image_size=16, train_limit=100, test_limit=20))

    assert dataset.train.images.shape == (100, 1, 16, 16)
    assert dataset.train.labels.bincount().tolist() == [10] * 10
    assert dataset.test.labels.bincount().tolist() == [2] * 10
