import numpy as np
import pytest
import torch

from orchestra_flwr.data import (
    Dataset,
    ImageSet,
    balanced_subset,
    beyond_limit,
    limited,
    limited_dataset,
)


def _labels(*sizes: int) -> np.ndarray:
    return np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))


@pytest.mark.parametrize("limit", [1, 3, 10, 11, 57, 100])
def test_equal_classes_get_equal_shares(limit: int):
    labels = _labels(50, 50, 50)
    chosen = balanced_subset(labels, 150, limit)

    counts = np.bincount(labels[chosen], minlength=3)
    assert counts.sum() == limit
    assert counts.max() - counts.min() <= 1


def test_a_small_class_gives_all_it_has_and_others_fill_up():
    labels = _labels(5, 100, 100)
    counts = np.bincount(labels[balanced_subset(labels, 205, 65)])

    assert counts.tolist() == [5, 30, 30]


def test_file_order_is_kept_and_subsets_are_nested():
    labels = _labels(40, 40)
    small, large = (balanced_subset(labels, 80, limit) for limit in (11, 30))

    assert np.all(np.diff(small) > 0)
    assert set(small) < set(large)


def test_without_labels_it_is_a_plain_random_subset():
    chosen = balanced_subset(None, 1000, 100)

    assert len(np.unique(chosen)) == 100
    assert 400 < chosen.mean() < 600
    assert not np.array_equal(chosen, np.arange(100))


@pytest.mark.parametrize("limit", [None, 80, 1000])
def test_no_limit_takes_all(limit: int | None):
    assert np.array_equal(balanced_subset(_labels(40, 40), 80, limit), np.arange(80))


def test_a_limited_set_keeps_images_and_labels_together():
    labels = torch.arange(12) % 3
    images = torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1).expand(12, 1, 4, 4)
    chosen = limited(ImageSet(images, labels, ("a", "b", "c")), 6)

    assert chosen.labels.bincount().tolist() == [2, 2, 2]
    assert (chosen.images[:, 0, 0, 0] % 3).tolist() == chosen.labels.tolist()
    assert len(limited(ImageSet(images), 5)) == 5
    assert len(limited(ImageSet(images), None)) == 12


def test_a_limited_data_set_keeps_what_is_known_of_each_image():
    labels = torch.arange(60) % 3
    images = torch.arange(60, dtype=torch.uint8).view(60, 1, 1, 1).expand(60, 3, 8, 8)
    train, test = (ImageSet(images, labels, ("a", "b", "c")) for _ in range(2))
    dataset = Dataset("plain", train, test, shown=labels == 0)
    few = limited_dataset(dataset, 12)
    for part in (few.train, few.test):
        assert part.labels.bincount().tolist() == [4, 4, 4]
        assert torch.equal(part.images[:, 0, 0, 0] % 3, part.labels)
    assert torch.equal(few.shown, few.train.labels == 0)
    assert limited_dataset(dataset, None) is dataset


@pytest.mark.parametrize("limit", [2, 12, 40, 60])
def test_images_with_shown_labels_beyond_a_limit(limit):
    """Up to the limit none is left out."""
    labels = torch.arange(60) % 3
    images = torch.arange(60, dtype=torch.uint8).view(60, 1, 1, 1).expand(60, 3, 8, 8)
    shown = torch.zeros(60, dtype=torch.bool)
    shown[::4] = True
    dataset = Dataset("plain", ImageSet(images, labels, ("a", "b", "c")), None, shown=shown)
    few, further = limited_dataset(dataset, limit), beyond_limit(dataset, limit)
    kept = few.train.images[few.shown, 0, 0, 0].tolist()
    beyond = [] if further is None else further.images[:, 0, 0, 0].tolist()
    assert not {*kept} & {*beyond} and all(image % 4 == 0 for image in kept + beyond)
    assert len(kept) + len(beyond) == min(limit, 15)
    assert beyond_limit(dataset, None) is None
