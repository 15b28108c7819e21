"""What all clients of a sum must have been sent alike."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, FROZEN
from orchestra_flwr.federation.secure_aggregation.basis import basis_of
from orchestra_flwr.flower.arrays import to_record

TASK = {"config": "{}", "schema": "s", "round": 2, "train": True, "client": "0", "index": 0,
        "population": 6, FROZEN: "digest", "contribute": True}  # fmt: skip


def message(array=(1.0, 2.0), weights=None, **entries):
    arrays = {"shared": np.array(array, np.float32)}
    if weights is not None:
        arrays[FROZEN] = np.array(weights, np.float32)
    return RecordDict({CONFIG: ConfigRecord({**TASK, **entries}), ARRAYS: to_record(arrays)})


@pytest.mark.parametrize("other", [
    {"array": (1.0, 2.5)}, {"array": (1.0, 2.0, 0.0)}, {"config": '{"training":{"lr":1e-30}}'},
    {"round": 3}, {"train": False}, {"population": 7}, {FROZEN: "another"}, {"schema": "t"},
    {"stage": 1},
])  # fmt: skip
def test_another_model_or_other_settings_are_another_basis(other):
    assert basis_of(message(**other)) != basis_of(message())


@pytest.mark.parametrize("own", [
    {"client": "1"}, {"index": 4}, {"contribute": False}, {"weights": (3.0,)},
])  # fmt: skip
def test_what_is_a_clients_own_is_not_in_it(own):
    """Frozen weights are sent to those that lack them, and known by their digest."""
    assert basis_of(message(**own)) == basis_of(message())
