import gc
import weakref

import numpy as np
import pytest
import torch
from flwr.app import Array, RecordDict

from orchestra_flwr.federation.wire import (
    ARRAYS,
    Schema,
    Schemas,
    from_record,
    pack_state,
    payload_bytes,
    to_record,
    unpack_state,
)
from orchestra_flwr.methods import Role, build_method


def randomised(method, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for role in (Role.SHARED, Role.SERVER):
            for tensor in method.state(role).values():
                tensor.copy_(torch.rand(tensor.shape, generator=generator))
    return method


def test_state_survives_the_journey_bit_for_bit(tiny):
    sender, receiver = randomised(build_method(tiny(), 1)), build_method(tiny(), 1)
    record = pack_state(sender, Schemas.of(sender))
    assert set(record) == {"shared", "server"}
    unpack_state(from_record(record), receiver, Schemas.of(receiver))
    for role in (Role.SHARED, Role.SERVER):
        for name, tensor in sender.state(role).items():
            assert torch.equal(tensor, receiver.state(role)[name])


def test_private_state_has_no_schema(tiny):
    with pytest.raises(ValueError, match="never travels"):
        Schema.of(build_method(tiny(), 1), Role.PRIVATE)


def test_no_counters_and_no_memory_travel(tiny):
    names = [name for name, _ in Schemas.of(build_method(tiny(), 1)).shared.entries]
    assert not any("num_batches_tracked" in n or "memory" in n for n in names)
    assert any("running_var" in n for n in names)


def test_the_fingerprint_tells_models_apart(tiny):
    def fingerprint(*overrides):
        return Schemas.of(build_method(tiny(*overrides), 1)).fingerprint

    base = fingerprint()
    assert base == fingerprint("seed=7", "training.lr=1")
    others = {
        fingerprint("model.width=16"),
        fingerprint("model.norm=group"),
        fingerprint("clustering.global_clusters=5"),
        Schemas.of(build_method(tiny(), 3)).fingerprint,
    }
    assert len(others) == 4 and base not in others


def test_arrays_of_another_size_are_refused(tiny):
    method = build_method(tiny(), 1)
    schema = Schemas.of(method).shared
    with pytest.raises(ValueError, match="expected"):
        schema.unpack(np.zeros(schema.size + 1, np.float32), method.state(Role.SHARED))
    with pytest.raises(ValueError, match="no shared"):
        unpack_state({}, method, Schemas.of(method))


def test_records_keep_names_and_values():
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.zeros(0, np.float32)}
    again = from_record(to_record(arrays))
    assert list(again) == ["a", "b"]
    np.testing.assert_array_equal(again["a"], arrays["a"])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(7, dtype=np.float32),
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.zeros((0, 4), np.float32),
        np.arange(4, dtype=np.int64),
    ],
    ids=["flat", "transposed", "empty", "integers"],
)
def test_arrays_are_encoded_as_flower_encodes_them(array):
    assert to_record({"a": array})["a"] == Array(np.ascontiguousarray(array))


def test_counting_bytes_holds_no_array():
    """A server counts the bytes of every reply: no garbage collection shall be needed after it."""
    content = RecordDict({ARRAYS: to_record({"a": np.zeros(6, np.float32)})})
    array = weakref.ref(content[ARRAYS]["a"])
    gc.disable()
    try:
        assert payload_bytes(content) == len(array().data)
        del content
        assert array() is None
    finally:
        gc.enable()
