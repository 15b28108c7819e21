import gc
import weakref

import numpy as np
import pytest
import torch
from flwr.app import Array, RecordDict

from orchestra_flwr.federation.messages.arrays import ARRAYS, from_record, payload_bytes, to_record
from orchestra_flwr.federation.messages.schema import Schema, Schemas, pack_state, unpack_state
from orchestra_flwr.methods import Role


def randomised(method, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for role in (Role.SHARED, Role.SERVER):
            for tensor in method.state(role).values():
                tensor.copy_(torch.rand(tensor.shape, generator=generator))
    return method


def test_state_survives_the_journey_bit_for_bit(tiny):
    sender, receiver = randomised(build_learner(tiny(), 1)), build_learner(tiny(), 1)
    record = pack_state(sender, Schemas.of(sender))
    assert set(record) == {"shared", "server"}
    unpack_state(from_record(record), receiver, Schemas.of(receiver))
    for role in (Role.SHARED, Role.SERVER):
        for name, tensor in sender.state(role).items():
            assert torch.equal(tensor, receiver.state(role)[name])


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_with_fewer_bits_everybody_knows_what_arrives(tiny, wire):
    """The server works out, to the bit, the state that clients start from; centroids are exact."""
    sender, receiver = randomised(build_learner(tiny(), 1)), build_learner(tiny(), 1)
    schemas = Schemas.of(sender, wire)
    record = pack_state(sender, schemas)
    assert list(record) == schemas.down
    unpack_state(from_record(record), receiver, schemas)
    sent = schemas.shared.pack(sender.state(Role.SHARED))
    arrived = schemas.shared.pack(receiver.state(Role.SHARED))
    np.testing.assert_array_equal(arrived, schemas.as_received(sent))
    assert 0 < np.abs(arrived - sent).max() <= 0.5 / 127
    assert torch.equal(sender.global_centroids, receiver.global_centroids)


@pytest.mark.parametrize("wire", ["float32", "float16", "int8"])
def test_what_was_trained_comes_back(tiny, wire, generator):
    schemas = Schemas.of(build_learner(tiny(), 1), wire)
    rng = np.random.default_rng(0)
    received = rng.normal(size=schemas.shared.size).astype(np.float32)
    change = (1e-3 * rng.normal(size=schemas.shared.size)).astype(np.float32)
    arrays = schemas.pack_trained(received + change, received, generator)
    assert {n: (a.dtype, len(a)) for n, a in arrays.items()} == schemas.codec.form(schemas.reply)
    trained = schemas.unpack_trained(arrays, received)
    bound = {"float32": 0, "float16": 2.0**-11, "int8": 1 / 127}[wire]
    # ... of the largest change, beside float32's own rounding of values near 4.
    limit = bound * np.abs(change).max() + (0 if wire == "float32" else 2.0**-22)
    assert np.abs(trained - (received + change)).max() <= limit


def test_private_state_has_no_schema(tiny):
    with pytest.raises(ValueError, match="never travels"):
        Schema.of(build_learner(tiny(), 1), Role.PRIVATE)


def test_no_counters_and_no_memory_travel(tiny):
    names = [name for name, _ in Schemas.of(build_learner(tiny(), 1)).shared.entries]
    assert not any("num_batches_tracked" in n or "memory" in n for n in names)
    assert any("running_var" in n for n in names)


def test_the_fingerprint_tells_models_apart(tiny):
    def fingerprint(*overrides):
        return Schemas.of(build_learner(tiny(*overrides), 1)).fingerprint

    base = fingerprint()
    assert base == fingerprint("seed=7", "training.lr=1")
    wires = {Schemas.of(build_learner(tiny(), 1), w).fingerprint for w in ("float16", "int8")}
    assert len({*wires, base}) == 3
    others = {
        fingerprint("model.width=16"),
        fingerprint("model.norm=group"),
        fingerprint("clustering.global_clusters=5"),
        Schemas.of(build_learner(tiny(), 3)).fingerprint,
    }
    assert len(others) == 4 and base not in others


def test_arrays_of_another_size_are_refused(tiny):
    method = build_learner(tiny(), 1)
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
