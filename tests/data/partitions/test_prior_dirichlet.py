import numpy as np
import pytest
import torch

from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data import class_counts, partition


def _counts(classes: int, clients: int, count: int, alpha: float, seed: int) -> np.ndarray:
    labels = torch.from_numpy(np.random.default_rng(3).permutation(count) % classes)
    config = PartitionConfig(name="prior_dirichlet", alpha=alpha)
    return class_counts(partition(config, labels, count, clients, seed), labels, classes)


def _statistics(counts: np.ndarray) -> tuple[float, ...]:
    """Of the MI paper's page, 2.4: classes a client (any, >= 1 %), the largest class's share,
    clients of more than 99 % one class, and the information of the client about the class.
    """
    share = counts / counts.sum(axis=1, keepdims=True)
    joint = counts / counts.sum()
    held = joint > 0
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    information = (joint[held] * np.log(joint[held] / independent[held])).sum()
    largest = share.max(axis=1)
    any_, one_percent = (counts > 0).sum(axis=1).mean(), (share >= 0.01).sum(axis=1).mean()
    return any_, one_percent, largest.mean(), (largest > 0.99).mean(), information


@pytest.mark.parametrize(
    ("classes", "clients", "expected"),
    [
        (10, 100, (1.64, 1.47, 0.93, 0.60, 2.13)),  # CIFAR-10
        (100, 500, (1.64, 1.64, 0.91, 0.54, 4.40)),  # CIFAR-100
    ],
)
def test_statistics_of_a_draw(classes, clients, expected):
    """The expected values are means of three draws of another implementation."""
    draws = np.array([_statistics(_counts(classes, clients, 50_000, 0.1, s)) for s in range(6)])
    error = draws.std(axis=0, ddof=1) * np.sqrt(1 / 3 + 1 / len(draws))
    rounding = 0.005
    assert np.all(np.abs(draws.mean(axis=0) - expected) < 3 * error + rounding)


def test_a_client_of_more_images_than_a_class_has_takes_two_or_more():
    """As with TinyImageNet. Shares that underflow a float would give 3.6 classes, not 3.1."""
    counts = _counts(200, 100, 100_000, 0.1, 0)
    assert counts.max() <= 500 and counts.sum(axis=1).tolist() == [1000] * 100
    held, _, largest, single, information = _statistics(counts)
    assert 2 <= held < 3.4 and single == 0
    assert largest == pytest.approx(0.49, abs=0.01) and information == pytest.approx(4.39, abs=0.1)


@pytest.mark.slow
def test_the_shares_concentration_is_alpha_times_the_prior():
    """E sum q^2 = (alpha / C + 1) / (alpha + 1) for C even classes: .918 here."""
    counts = np.array([_counts(10, 20, 10_000, 0.1, seed)[0] for seed in range(400)])
    squares = ((counts / 500) ** 2).sum(axis=1)
    expected = 0.918 + (1 - 0.918) / 500  # of shares, and of the images drawn by them
    assert abs(squares.mean() - expected) < 3 * squares.std() / np.sqrt(400)


def _log_dirichlet(alpha: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Logarithms of shares, which never underflow: Gamma(a) = Gamma(a + 1) U^(1 / a)."""
    gamma = random.standard_gamma(alpha + 1)
    logs = np.log(gamma) + np.log(random.random(len(alpha))) / alpha
    return logs - np.logaddexp.reduce(logs)


def _one_by_one(alpha, left, size, random) -> np.ndarray:
    """The same draw in the most literal way, image by image."""
    logs, left = _log_dirichlet(alpha, random), left.copy()
    taken = np.zeros_like(left)
    for _ in range(size):
        open_logs = np.where(left > 0, logs, -np.inf)
        shares = np.exp(open_logs - np.logaddexp.reduce(open_logs))
        label = random.choice(len(left), p=shares / shares.sum())
        taken[label] += 1
        left[label] -= 1
    return taken


@pytest.mark.parametrize("concentration", [0.05, pytest.param(5e-4, marks=pytest.mark.slow)])
def test_a_clients_draw_is_that_of_images_one_by_one(concentration):
    """Also where a class runs out and where shares are too small for a float."""
    alpha, left, random = np.full(12, concentration), np.full(12, 15), np.random.default_rng(1)
    literal = [_one_by_one(alpha, left, 45, random) for _ in range(250)]
    ours = [_counts(12, 4, 12 * 15, 12 * concentration, seed)[0] for seed in range(250)]
    sides = []
    for taken in map(np.array, (ours, literal)):
        assert np.all(taken.sum(axis=1) == 45)
        assert np.all(taken <= left)
        held = (taken > 0).sum(axis=1)
        sides.append((held.mean(), held.std() / np.sqrt(250), np.sort(taken)[:, ::-1].mean(0)))
    (mean, error, sorted_), (other, other_error, other_sorted) = sides
    assert abs(mean - other) < 3 * np.hypot(error, other_error)
    assert np.allclose(sorted_[:3], other_sorted[:3], atol=1)


def test_sizes_are_equal_to_one_image():
    sizes = _counts(7, 9, 1003, 0.1, 0).sum(axis=1)
    assert sorted(sizes) == [111] * 5 + [112] * 4


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-12])
def test_alpha_near_0_gives_one_class_to_a_client(alpha):
    counts = _counts(10, 20, 2000, alpha, 5)
    assert np.all((counts > 0).sum(axis=1) == 1)


@pytest.mark.parametrize("alpha", [1e12, 1e300])
def test_a_large_alpha_is_iid(alpha):
    counts = _counts(10, 5, 50_000, alpha, 5)
    # Binomial: 1,000 expected, standard deviation at most 30.
    assert np.abs(counts - 1000).max() < 4 * 30


def test_rare_classes_have_a_smaller_concentration():
    """The prior counts: of a class with 1 % of all images few clients have most."""
    labels = torch.tensor([0] * 9900 + [1] * 100)
    config = PartitionConfig(name="prior_dirichlet", alpha=1.0)
    first = [
        class_counts(partition(config, labels, 10_000, 100, seed), labels, 2)[0, 1]
        for seed in range(40)
    ]
    # Beta(.01, .99) of 100 images: at least one with probability 1 - B(.01, 100.99) / B(.01, .99).
    assert 0.0 < np.mean(np.array(first) > 0) < 0.2
