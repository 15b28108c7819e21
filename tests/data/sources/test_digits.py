import pytest
import torch
from sklearn.datasets import load_digits

from orchestra_flwr.config import DataConfig
from orchestra_flwr.data import load_dataset
from orchestra_flwr.data.images import ImageSet


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


def test_image_sets_select_and_move():
    images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 1, 4, 4)
    chosen = ImageSet(images, torch.tensor([0, 1, 0, 1, 0]), ("a", "b")).select(
        torch.tensor([3, 0])
    )

    assert chosen.images[:, 0, 0, 0].tolist() == [3, 0]
    assert chosen.labels.tolist() == [1, 0]
    assert len(chosen) == 2
    assert chosen.to("meta").images.device.type == "meta"
    assert chosen.to("meta").labels.device.type == "meta"


@pytest.mark.parametrize(
    ("shape", "dtype", "labels"),
    [
        ((2, 3, 4, 5), torch.uint8, None),
        ((2, 3, 4), torch.uint8, None),
        ((2, 3, 4, 4), torch.float32, None),
        ((2, 3, 4, 4), torch.uint8, torch.tensor([1])),
        ((2, 3, 4, 4), torch.uint8, torch.tensor([1.0, 2.0])),
    ],
)
def test_misshapen_image_sets_are_refused(shape, dtype, labels):
    with pytest.raises(ValueError, match="must be"):
        ImageSet(torch.zeros(shape, dtype=dtype), labels)
