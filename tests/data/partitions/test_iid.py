import numpy as np
import torch

from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data import class_counts, partition

IID = PartitionConfig(name="iid")


def test_iid_deals_evenly_and_at_random():
    labels = torch.arange(5003) % 10
    parts = partition(IID, labels, 5003, 10, 0)

    assert {len(part) for part in parts} == {500, 501}
    assert class_counts(parts, labels, 10).min() > 20  # 50 expected, sd 6.4
    assert not np.array_equal(parts[0], np.arange(501))


def test_iid_needs_no_labels():
    assert sum(len(part) for part in partition(IID, None, 30, 7, 0)) == 30
