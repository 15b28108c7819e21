import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data import ImageSet, partition, partition_by_name

BY_CLASS = PartitionConfig(name="by_class")


def test_a_client_has_all_images_of_a_class_and_its_name():
    labels = torch.tensor([2, 0, 2, 0, 3])
    images = ImageSet(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), labels, ("a", "b", "c", "d"))

    parts = partition_by_name(BY_CLASS, images, 3, 0)
    assert {name: part.tolist() for name, part in parts.items()} == {
        "a": [1, 3],
        "c": [0, 2],
        "d": [4],
    }


def test_another_number_of_clients_is_refused():
    with pytest.raises(ConfigError) as error:
        partition(BY_CLASS, torch.tensor([0, 1, 1]), 3, 3, 0)
    assert str(error.value) == (
        "federation.clients=3: partition=by_class has one client for each of the 2 classes"
    )


def test_images_without_labels_are_refused():
    with pytest.raises(ConfigError, match=r"^partition=by_class: needs labels"):
        partition(BY_CLASS, None, 3, 3, 0)
