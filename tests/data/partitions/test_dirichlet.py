import numpy as np
import pytest
import torch

from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data import class_counts, earth_movers_distance, partition


def _dirichlet(alpha: float) -> PartitionConfig:
    return PartitionConfig(name="dirichlet", alpha=alpha)


def _balanced_labels(classes: int, count: int = 50_000) -> torch.Tensor:
    order = np.random.default_rng(3).permutation(count)
    return torch.from_numpy(order % classes)


def _held(counts: np.ndarray, least: float) -> float:
    """Mean number of classes of which a client holds at least one image and a share `least`."""
    enough = (counts >= 1) & (counts >= least * counts.sum(axis=1, keepdims=True))
    return float(enough.sum(axis=1).mean())


def _published(classes: int, alpha: float, clients: int = 100, count: int = 50_000) -> np.ndarray:
    """The published sampler for classes of equal size and seed 0: images by client and class.

    Rounding down, it loses some.
    """
    shares = np.random.RandomState(0).dirichlet([alpha] * clients, size=classes)
    shares /= shares.sum()
    for _ in range(100):  # to equal columns and to equal rows, by sums from before both
        columns, rows = shares.sum(axis=0) * clients, shares.sum(axis=1) * classes
        shares = shares / columns / rows[:, None]
    quotas = np.floor(shares * count)
    for row in np.flatnonzero(quotas.sum(axis=1) > count / classes):
        quotas[row] = np.floor(shares[row] / shares[row].sum() * count / classes)
    return quotas.T


# Orchestra paper, Table 4 (100 clients), and what its published sampler gives.
@pytest.mark.parametrize(
    ("classes", "alpha", "any_share", "one_percent"),
    [(10, 0.1, 4.69, 3.75), (10, 1e-3, 1.08, 1.06), (100, 0.1, 29.30, 17.92)],
)
def test_seed_0_gives_the_published_split(
    classes: int, alpha: float, any_share: float, one_percent: float
):
    published = _published(classes, alpha)
    assert _held(published, 0) == pytest.approx(any_share, abs=1e-9)
    assert _held(published, 0.01) == pytest.approx(one_percent, abs=1e-9)

    labels = _balanced_labels(classes)
    counts = class_counts(partition(_dirichlet(alpha), labels, 50_000, 100, 0), labels, classes)
    assert _held(counts, 0) == pytest.approx(any_share, abs=1e-9)
    assert _held(counts, 0.01) == pytest.approx(one_percent, abs=0.04)
    assert (counts >= published).all()


@pytest.mark.parametrize(("alpha", "smallest", "largest"), [(0.1, 494, 499), (1e-3, 433, 732)])
def test_the_published_sampler_gives_the_published_client_sizes(alpha, smallest, largest):
    sizes = _published(10, alpha).sum(axis=1)
    assert (sizes.min(), sizes.max()) == (smallest, largest)


def test_clients_of_the_published_split_are_equal_in_size():
    labels = _balanced_labels(10)
    sizes = [len(part) for part in partition(_dirichlet(0.1), labels, 50_000, 100, 0)]

    assert min(sizes) >= 499
    assert max(sizes) <= 501


@pytest.mark.parametrize("count", [52, 55, 100])
def test_as_many_clients_as_images_of_one_class_get_one_each(count):
    parts = partition(_dirichlet(0.1), torch.zeros(count, dtype=torch.int64), count, count, 0)
    assert sorted(part.tolist() for part in parts) == [[image] for image in range(count)]


def test_a_client_gets_a_run_of_each_class_in_file_order():
    labels = _balanced_labels(10, 5000)
    starts = {}
    for part in partition(_dirichlet(0.5), labels, 5000, 10, 0):
        for label in range(10):
            members = np.flatnonzero(labels.numpy() == label)
            places = np.flatnonzero(np.isin(members, part))
            if len(places):
                assert np.array_equal(places, np.arange(places[0], places[0] + len(places)))
                starts.setdefault(label, []).append(places[0])
    assert all(values == sorted(values) for values in starts.values())


def test_a_smaller_alpha_is_more_skewed():
    labels = _balanced_labels(10, 5000)
    held = [
        _held(class_counts(partition(_dirichlet(alpha), labels, 5000, 20, 1), labels, 10), 0.01)
        for alpha in (1e-3, 0.1, 1.0, 1e4)
    ]

    assert held == sorted(held)
    assert held[0] < 2
    assert held[-1] == 10


@pytest.mark.parametrize(
    ("alpha", "mean", "deviation"),
    [(5, 0.34, 0.03), (1, 0.67, 0.08), (0.5, 0.88, 0.11), (0.1, 1.36, 0.08), (0.01, 1.58, 0.02)],
)
def test_as_uneven_as_the_released_dealer_of_dec_ssl(alpha, mean, deviation):
    """Means and deviations of ten of its draws for 5 clients of CIFAR-10, which caps capacities.

    Ours has the same EMD within its noise, and sizes that differ far less than by a half.
    """
    labels = _balanced_labels(10)
    splits = [partition(_dirichlet(alpha), labels, 50_000, 5, seed) for seed in range(10)]
    emd = [earth_movers_distance(class_counts(parts, labels, 10)) for parts in splits]
    assert abs(np.mean(emd) - mean) < 3 * max(deviation, np.std(emd, ddof=1))
    if alpha >= 0.1:
        assert max(abs(len(part) - 10_000) for parts in splits for part in parts) < 50
