import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra_flwr.config import ConfigError, PartitionConfig
from orchestra_flwr.data import class_counts, partition
from orchestra_flwr.data.partition import _balanced_shares, _rounded_down


def _dirichlet(alpha: float) -> PartitionConfig:
    return PartitionConfig(name="dirichlet", alpha=alpha)


IID = PartitionConfig(name="iid")


def _balanced_labels(classes: int, count: int = 50_000) -> torch.Tensor:
    order = np.random.default_rng(3).permutation(count)
    return torch.from_numpy(order % classes)


def _held(counts: np.ndarray, least: float) -> float:
    """Mean number of classes of which a client holds at least one image and a share `least`."""
    enough = (counts >= 1) & (counts >= least * counts.sum(axis=1, keepdims=True))
    return float(enough.sum(axis=1).mean())


# Orchestra paper, Table 4 (100 clients), and what its published sampler gives.
@pytest.mark.parametrize(
    ("classes", "alpha", "any_share", "one_percent"),
    [(10, 0.1, 4.69, 3.75), (10, 1e-3, 1.08, 1.06), (100, 0.1, 29.30, 17.92)],
)
def test_seed_0_gives_the_published_split(
    classes: int, alpha: float, any_share: float, one_percent: float
):
    sizes = np.full(classes, 50_000 // classes)
    published = _rounded_down(
        _balanced_shares(classes, 100, alpha, 0, sizes / sizes.sum()), sizes
    ).T
    assert _held(published, 0) == pytest.approx(any_share, abs=1e-9)
    assert _held(published, 0.01) == pytest.approx(one_percent, abs=1e-9)

    labels = _balanced_labels(classes)
    counts = class_counts(partition(_dirichlet(alpha), labels, 50_000, 100, 0), labels, classes)
    assert _held(counts, 0) == pytest.approx(any_share, abs=1e-9)
    assert _held(counts, 0.01) == pytest.approx(one_percent, abs=0.04)


def test_published_client_sizes():
    sizes = np.full(10, 5000)
    for alpha, smallest, largest in ((0.1, 494, 499), (1e-3, 433, 732)):
        shares = _balanced_shares(10, 100, alpha, 0, sizes / sizes.sum())
        clients = _rounded_down(shares, sizes).sum(axis=0)
        assert (clients.min(), clients.max()) == (smallest, largest)


def test_clients_of_the_published_split_are_equal_in_size():
    labels = _balanced_labels(10)
    sizes = [len(part) for part in partition(_dirichlet(0.1), labels, 50_000, 100, 0)]

    assert min(sizes) >= 499
    assert max(sizes) <= 501


def test_a_client_gets_a_run_of_each_class_in_file_order():
    labels = _balanced_labels(10, 5000)
    starts = {}
    for part in partition(_dirichlet(0.5), labels, 5000, 10, 0):
        for label in range(10):
            members = np.flatnonzero(labels.numpy() == label)
            own = np.flatnonzero(np.isin(members, part))
            if len(own):
                assert np.array_equal(own, np.arange(own[0], own[0] + len(own)))
                starts.setdefault(label, []).append(own[0])
    assert all(values == sorted(values) for values in starts.values())


@pytest.mark.parametrize("config", [IID, _dirichlet(0.1)], ids=["iid", "dirichlet"])
def test_the_seed_decides_the_split(config: PartitionConfig):
    labels = _balanced_labels(10, 2000)
    first, again, other = (partition(config, labels, 2000, 20, seed) for seed in (4, 4, 5))

    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_smaller_alpha_is_more_skewed():
    labels = _balanced_labels(10, 5000)
    held = [
        _held(class_counts(partition(_dirichlet(alpha), labels, 5000, 20, 1), labels, 10), 0.01)
        for alpha in (1e-3, 0.1, 1.0, 1e4)
    ]

    assert held == sorted(held)
    assert held[0] < 2
    assert held[-1] == 10


def test_iid_deals_evenly_and_at_random():
    labels = _balanced_labels(10, 5003)
    parts = partition(IID, labels, 5003, 10, 0)

    assert {len(part) for part in parts} == {500, 501}
    assert class_counts(parts, labels, 10).min() > 20  # 50 expected, sd 6.4
    assert not np.array_equal(parts[0], np.arange(501))


def test_iid_needs_no_labels():
    assert sum(len(part) for part in partition(IID, None, 30, 7, 0)) == 30


@settings(max_examples=150, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=120),
    share=st.floats(0, 1),
    alpha=st.one_of(st.sampled_from([1e-300, 1e-6, 1e6, 1e300]), st.floats(1e-4, 100)),
    seed=st.integers(0, 2**40),
    name=st.sampled_from(["iid", "dirichlet"]),
)
def test_every_image_has_one_client_and_every_client_an_image(labels, share, alpha, seed, name):
    clients = 1 + int(share * (len(labels) - 1))
    config = PartitionConfig(name=name, alpha=alpha)
    parts = partition(config, torch.tensor(labels), len(labels), clients, seed)

    assert len(parts) == clients
    assert all(len(part) > 0 and np.all(np.diff(part) > 0) for part in parts)
    assert all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))


def test_class_counts_by_hand():
    parts = [np.array([0, 3]), np.array([1, 2, 4])]

    counts = class_counts(parts, torch.tensor([2, 0, 0, 2, 1]), 4)
    assert counts.tolist() == [[0, 0, 2, 0], [2, 1, 0, 0]]


def test_more_clients_than_images_is_refused():
    with pytest.raises(ConfigError, match=r"^federation\.clients=5: .*3 images$"):
        partition(IID, None, 3, 5, 0)


def test_dirichlet_without_labels_is_refused():
    with pytest.raises(ConfigError, match=r"^partition=dirichlet: needs labels.*partition=iid$"):
        partition(_dirichlet(0.1), None, 30, 5, 0)
