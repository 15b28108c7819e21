import numpy as np
import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data import class_counts, earth_movers_distance, partition

LABELS = torch.from_numpy(np.random.default_rng(3).permutation(50_000) % 10)


def _split(beta: float, clients: int, labels=LABELS, seed: int = 0) -> list[np.ndarray]:
    config = PartitionConfig(name="skew", beta=beta)
    return partition(config, labels, len(labels), clients, seed)


def _counts(beta: float, clients: int) -> np.ndarray:
    return class_counts(_split(beta, clients), LABELS, 10)


@pytest.mark.parametrize("beta", [0, 0.1, 0.3, 0.5, 0.7, 1])
def test_emd_falls_with_beta(beta):
    """A client of five has two of ten classes: sum |1/2 - 1/10| * 2 + 8/10 = 1.6."""
    assert earth_movers_distance(_counts(beta, 5)) == pytest.approx(1.6 * (1 - beta), abs=0.03)
    assert earth_movers_distance(_counts(beta, 10)) == pytest.approx(1.8 * (1 - beta), abs=0.05)


@pytest.mark.parametrize(("beta", "trains_as"), [(0.1, 0), (0.2, 0), (0.3, 0.125), (0.5, 0.375)])
def test_a_cut_by_class_takes_the_images_of_any_class(beta, trains_as):
    """A fifth less, all of it of the beta that is of any class: (beta - .2) / .8 of it is left."""
    config = PartitionConfig(name="skew", beta=beta, share=0.8, cut="by_class")
    parts = partition(config, LABELS, len(LABELS), 5, 0)
    assert [len(part) for part in parts] == [8000] * 5
    counts = class_counts(parts, LABELS, 10)
    assert earth_movers_distance(counts) == pytest.approx(1.6 * (1 - trains_as), abs=0.03)


@pytest.mark.parametrize("beta", [0, 0.1, 0.55, 1])
@pytest.mark.parametrize(("count", "clients"), [(997, 5), (1000, 7), (100, 33)])
def test_sizes_are_equal_to_one_image(beta, count, clients):
    sizes = [len(part) for part in _split(beta, clients, torch.arange(count) ** 2 % 11)]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == count


def test_beta_0_with_a_client_for_each_class_is_by_class():
    by_class = partition(PartitionConfig(name="by_class"), LABELS, 50_000, 10, 0)
    parts = _split(0, 10)
    assert all(np.array_equal(a, b) for a, b in zip(parts, by_class, strict=True))


def test_more_clients_than_classes_share_a_class():
    counts = _counts(0, 20)
    assert np.all((counts > 0).sum(axis=1) == 1)
    assert np.all(counts.sum(axis=1) == 2500)
    assert np.all(_counts(0, 5)[0] == [5000, 5000, *[0] * 8])


def test_the_common_part_and_the_choice_of_images_are_random():
    first, other = _split(0.5, 5), _split(0.5, 5, seed=1)
    assert not np.array_equal(first[0], other[0])
    indices = first[0][np.isin(LABELS[first[0]], [0, 1])]
    # Half of classes 0 and 1 is the client's own, a fifth of the other half comes to it: 6 of 10.
    assert len(indices) == pytest.approx(6000, abs=150)


@pytest.mark.parametrize("beta", [-0.1, 1.1])
def test_beta_is_a_share(beta):
    with pytest.raises(ConfigError, match=r"^partition\.beta="):
        _split(beta, 5)
