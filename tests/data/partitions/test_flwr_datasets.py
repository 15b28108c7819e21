"""Flower's partitioners: the clients' images are those that the library itself gives."""

import numpy as np
import pytest
import torch

from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data import UNLABELLED, partition

partitioners = pytest.importorskip(
    "flwr_datasets.partitioner", reason="needs the extra huggingface"
)
LABELS = torch.arange(200) % 10


def config(partitioner, **options):
    values = {"name": "flwr_datasets", "partitioner": partitioner, "options": options}
    return PartitionConfig.model_validate(values)


def test_they_are_the_librarys_own():
    from datasets import Dataset

    parts = partition(
        config("PathologicalPartitioner", num_classes_per_partition=2), LABELS, 200, 5, 3
    )
    theirs = partitioners.PathologicalPartitioner(
        num_partitions=5, partition_by="label", num_classes_per_partition=2, seed=3
    )
    theirs.dataset = Dataset.from_dict({"image": range(200), "label": LABELS.numpy()})
    for client, part in enumerate(parts):
        assert part.tolist() == sorted(theirs.load_partition(client)["image"])
        assert len(LABELS[part].unique()) == 2


FITTING = {
    "DirichletPartitioner": {"alpha": 1.0},
    "DistributionPartitioner": None,  # a table of shares for each class: tested below
    "ExponentialPartitioner": {},
    "GroupedNaturalIdPartitioner": {"group_size": 2},
    "IidPartitioner": {},
    "InnerDirichletPartitioner": {"partition_sizes": [40] * 5, "alpha": 1.0},
    "LinearPartitioner": {},
    "NaturalIdPartitioner": None,  # one partition for each class
    "PathologicalPartitioner": {"num_classes_per_partition": 4},
    "ShardPartitioner": {"num_shards_per_partition": 2},
    "SizePartitioner": {"partition_sizes": [40] * 5},
    "SquarePartitioner": {},
}


@pytest.mark.parametrize("name", [name for name, options in FITTING.items() if options is not None])
def test_every_fitting_one_divides_the_images(name):
    parts = partition(config(name, **FITTING[name]), LABELS, 200, 5, 0)
    images = np.concatenate(parts)
    assert len(parts) == 5 and len(np.unique(images)) == len(images) >= 100


@pytest.mark.parametrize(
    ("name", "options"),
    [("NaturalIdPartitioner", {}), ("PathologicalPartitioner", {"num_classes_per_partition": 2})],
)
def test_images_without_a_label_are_no_class(name, options):
    labels = LABELS.clone()
    labels[:7] = UNLABELLED
    with pytest.raises(ConfigError, match=rf"^partition.partitioner={name}: needs labels, and 7 "):
        partition(config(name, **options), labels, 200, 11, 0)
    parts = partition(config("IidPartitioner"), labels, 200, 5, 0)  # which does not see labels
    assert sum(map(len, parts)) == 200


def test_one_client_for_each_class():
    parts = partition(config("NaturalIdPartitioner"), LABELS, 200, 10, 0)
    assert sorted(int(LABELS[part].unique()) for part in parts) == list(range(10))
    with pytest.raises(ConfigError, match="it makes 10 partitions, and federation.clients is 5"):
        partition(config("NaturalIdPartitioner"), LABELS, 200, 5, 0)


def test_the_library_has_no_others():
    from orchestra_flwr.data.partitions.flwr_datasets import UNFIT

    assert {*FITTING, *UNFIT, "Partitioner"} == {*partitioners.__all__}


def test_the_runs_seed_decides():
    draws = [
        partition(config("DirichletPartitioner", alpha=0.5), LABELS, 200, 5, s) for s in (1, 1, 2)
    ]
    assert all(np.array_equal(a, b) for a, b in zip(draws[0], draws[1], strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(draws[0], draws[2], strict=True))


def test_images_without_labels():
    assert len(partition(config("IidPartitioner"), None, 50, 5, 0)) == 5
    with pytest.raises(ConfigError, match="needs labels"):
        partition(config("DirichletPartitioner", alpha=1), None, 50, 5, 0)


def test_on_a_command_line():
    run = load_config([
        "partition=flwr_datasets",
        "partition.partitioner=DirichletPartitioner",
        "partition.options={alpha:0.3,min_partition_size:1}",
    ])  # fmt: skip
    assert run.partition.settings.options == {"alpha": 0.3, "min_partition_size": 1}


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("Dirichlet", {}, "partition.partitioner=Dirichlet: must be one of DirichletPartitioner"),
        ("VerticalEvenPartitioner", {}, "divides columns, not images"),
        ("DirichletPartitioner", {"alhpa": 1}, "partition.options.alhpa: unknown option of"),
        ("DirichletPartitioner", {}, "partition.partitioner=DirichletPartitioner: "),
        ("DirichletPartitioner", {"alpha": -1}, "partition.partitioner=DirichletPartitioner: "),
        ("GroupedNaturalIdPartitioner", {"group_size": 0}, "by zero"),
        ("IidPartitioner", {"num_partitions": 3}, "is set by federation.clients"),
    ],
)
def test_what_does_not_fit_is_one_line(name, options, says):
    with pytest.raises(ConfigError) as error:
        partition(config(name, **options), LABELS, 200, 5, 0)
    assert says in str(error.value) and "\n" not in str(error.value)
