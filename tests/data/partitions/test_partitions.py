"""What holds for every partition, and a partition of a user's own."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data import (
    ImageSet,
    class_counts,
    earth_movers_distance,
    partition,
    partition_by_name,
)

IID = PartitionConfig(name="iid")
DIRICHLET = PartitionConfig(name="dirichlet", alpha=0.1)


PRIOR = PartitionConfig(name="prior_dirichlet", alpha=0.1)
SKEW = PartitionConfig(name="skew", beta=0.1)


@pytest.mark.parametrize("config", [IID, DIRICHLET, PRIOR, SKEW], ids=lambda c: c.name)
def test_the_seed_decides_the_split(config: PartitionConfig):
    labels = torch.arange(2000) % 10
    first, again, other = (partition(config, labels, 2000, 20, seed) for seed in (4, 4, 5))

    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@settings(max_examples=150, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=120),
    share=st.floats(0, 1),
    alpha=st.one_of(st.sampled_from([1e-300, 1e-6, 1e6, 1e300]), st.floats(1e-4, 100)),
    seed=st.integers(0, 2**40),
    name=st.sampled_from(["iid", "dirichlet", "prior_dirichlet", "skew"]),
)
@example(labels=[0, 1, 2, 3], share=0.0, alpha=1e-4, seed=2460, name="dirichlet")  # shares: inf
def test_every_image_has_one_client_and_every_client_an_image(labels, share, alpha, seed, name):
    clients = 1 + int(share * (len(labels) - 1))
    options = {"iid": {}, "skew": {"beta": min(alpha, 1)}}.get(name, {"alpha": alpha})
    config = PartitionConfig(name=name, **options)
    parts = partition(config, torch.tensor(labels), len(labels), clients, seed)

    assert len(parts) == clients
    assert all(len(part) > 0 and np.all(np.diff(part) > 0) for part in parts)
    assert all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))


def test_class_counts_by_hand():
    parts = [np.array([0, 3]), np.array([1, 2, 4])]

    counts = class_counts(parts, torch.tensor([2, 0, 0, 2, 1]), 4)
    assert counts.tolist() == [[0, 0, 2, 0], [2, 1, 0, 0]]


def test_emd_by_hand():
    """Shares 3/4, 1/4 and 0, 1 against 3/8, 5/8: twice 3/8 each, for both clients."""
    assert earth_movers_distance(np.array([[3, 1], [0, 4]])) == pytest.approx(0.75)
    uneven = np.array([[2, 0], [2, 4]])  # 1, 0 and 1/3, 2/3 against 1/2, 1/2
    assert earth_movers_distance(uneven) == pytest.approx((1 + 1 / 3) / 2)
    assert earth_movers_distance(np.array([[3, 6], [1, 2]])) == pytest.approx(0)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "by_class"])
def test_a_share_of_every_clients_images(name):
    labels = torch.arange(1000) % 4
    whole, most, least = (
        partition(PartitionConfig(name=name, share=share), labels, 1000, 4, 3)
        for share in (1, 0.3, 0.001)
    )
    assert [len(part) for part in most] == [round(0.3 * len(part)) for part in whole]
    assert [len(part) for part in least] == [1] * 4
    for all_, some, one in zip(whole, most, least, strict=True):
        assert set(one) < set(some) < set(all_)
        assert np.all(np.diff(some) > 0)
    assert most[0].max() > whole[0][len(most[0])]  # not the first ones


@pytest.mark.parametrize("name", ["iid", "dirichlet"])
def test_a_cut_by_class_leaves_out_the_last_classes(name):
    """The released code of Dec-SSL trains on the first 80 % of a client's list, class by class."""
    labels = torch.arange(1000) % 4
    whole, cut = (
        partition(PartitionConfig(name=name, share=share, cut="by_class"), labels, 1000, 4, 3)
        for share in (1, 0.8)
    )
    for all_, kept in zip(whole, cut, strict=True):
        assert len(kept) == round(0.8 * len(all_)) and np.all(np.diff(kept) > 0)
        lost = np.setdiff1d(all_, kept)
        assert labels[kept].max() <= labels[lost].min()
    if name == "iid":  # about 250 images, 62 of the last class: 50 are lost
        assert all((labels[kept] == 3).sum() < 25 for kept in cut)


@pytest.mark.parametrize("share", [0, 1.1])
def test_a_share_is_above_0_and_at_most_1(share):
    with pytest.raises(ValidationError, match="share"):
        PartitionConfig(name="iid", share=share)


def test_more_clients_than_images_is_refused():
    with pytest.raises(ConfigError, match=r"^federation\.clients=5: .*3 images$"):
        partition(IID, None, 3, 5, 0)


def test_dirichlet_without_labels_is_refused():
    with pytest.raises(ConfigError, match=r"^partition=dirichlet: needs labels.*partition=iid$"):
        partition(DIRICHLET, None, 30, 5, 0)


# Those of version 0.1: 97 images of 6 classes, seed 3.
@pytest.mark.parametrize(
    ("config", "clients", "digest"),
    [
        (IID, 5, "7a172a9b3830"),
        (DIRICHLET, 5, "3e5197c19548"),
        (PartitionConfig(name="by_class"), 6, "031539f58da9"),
    ],
    ids=["iid", "dirichlet", "by_class"],
)
def test_splits_stay_as_they_are(config, clients, digest):
    parts = partition(config, torch.arange(97) ** 2 % 13 % 7, 97, clients, 3)

    text = ";".join(",".join(map(str, part)) for part in parts)
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == digest


def _images(labels: list[int] | None, *classes: str) -> ImageSet:
    count = 6 if labels is None else len(labels)
    images = torch.zeros(count, 1, 8, 8, dtype=torch.uint8)
    return ImageSet(images, None if labels is None else torch.tensor(labels), classes)


@pytest.mark.parametrize("config", [IID, DIRICHLET], ids=["iid", "dirichlet"])
def test_clients_are_numbered(config):
    assert list(partition_by_name(config, _images([0, 1] * 3, "a", "b"), 3, 0)) == ["0", "1", "2"]


MINE = """
    import numpy as np
    from pydantic import Field

    from orchestra_flwr.config import Section
    from orchestra_flwr.data import Partition


    class Halves(Partition):
        needs_labels = False

        class Settings(Section):
            first: int = Field(1, ge=1)

        def split(self, labels, count, clients, seed):
            return [np.arange(self.settings.first), np.arange(self.settings.first, count)]

        def names(self, classes, labels, clients):
            return ["small", "large"]
"""


def _mine(**options) -> PartitionConfig:
    config = PartitionConfig.model_validate({"name": "halves", **options})
    config.look_in(("my_package",))
    return config


def test_a_partition_of_a_users_own(user_package):
    user_package({"partitions/halves.py": MINE})

    parts = partition_by_name(_mine(first=2), _images(None), 2, 0)
    assert {name: part.tolist() for name, part in parts.items()} == {
        "small": [0, 1],
        "large": [2, 3, 4, 5],
    }


def test_its_options_are_checked(user_package):
    user_package({"partitions/halves.py": MINE})

    with pytest.raises(ConfigError, match=r"^partition\.first=0: input should be greater than"):
        partition(_mine(first=0), None, 6, 2, 0)
    with pytest.raises(ConfigError) as error:
        partition(_mine(alpha=3), None, 6, 2, 0)
    assert str(error.value) == (
        "partition.alpha: unknown option of partition=halves, which has share, cut, first "
        "(partition=dirichlet, partition=features, partition=prior_dirichlet have it)"
    )


def test_names_and_options_that_do_not_exist_are_refused(user_package):
    user_package({"partitions/halves.py": MINE})

    with pytest.raises(ConfigError) as error:
        partition(PartitionConfig(name="halfs"), None, 6, 2, 0)
    known = "by_class, dirichlet, features, flwr_datasets, groups, iid, prior_dirichlet, skew"
    assert str(error.value) == f"partition=halfs: must be one of {known}"
    with pytest.raises(ConfigError, match=f"must be one of {known}, halves .did you mean halves"):
        config = PartitionConfig(name="halfs")
        config.look_in(("my_package",))
        partition(config, None, 6, 2, 0)
    with pytest.raises(ConfigError, match=r"alpha: unknown option of partition=iid, which has s"):
        partition(PartitionConfig(name="iid", alpha=1), None, 6, 2, 0)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("[np.arange(count)]", "must give the images of 2 clients, not of 1"),
        ("[np.arange(count), np.arange(0)]", "must give every client an image"),
        ("[np.arange(3), np.arange(2, 5)]", "must not give an image twice"),
        ("[[0, 1, 2], [3, 4]]", "must give an array of indices for each client, not a list"),
        ("[np.arange(3), np.arange(3, 7)]", "must give indices from 0 to 5, int64"),
        ("[np.array([0.0]), np.array([1.0])]", "must give indices from 0 to 5, int64"),
    ],
)
def test_a_split_that_breaks_the_contract_is_refused(user_package, result, problem):
    text = MINE.replace("[np.arange(self.settings.first), ", "")
    text = text.replace("np.arange(self.settings.first, count)]", result)
    user_package({"partitions/halves.py": text})

    with pytest.raises(ConfigError) as error:
        partition(_mine(), None, 6, 2, 0)
    assert str(error.value) == f"partition=halves: Halves.split {problem}"


def test_images_may_be_left_out(user_package):
    text = MINE.replace("self.settings.first, count", "self.settings.first, count - 1")
    user_package({"partitions/halves.py": text})

    assert [len(part) for part in partition(_mine(), None, 6, 2, 0)] == [1, 4]


def test_two_clients_of_one_name_are_refused(user_package):
    user_package({"partitions/halves.py": MINE.replace("large", "small")})

    with pytest.raises(ConfigError, match="Halves.names must give 2 different names"):
        partition_by_name(_mine(), _images(None), 2, 0)
