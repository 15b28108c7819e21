import sys

import numpy as np
import pytest
import torch

from orchestra_flwr.federation.messages import codec
from orchestra_flwr.federation.messages.schema import (
    Schema,
    Schemas,
    for_models,
    names_down,
    pack_state,
    received_state,
    unpack_state,
)
from orchestra_flwr.flower.arrays import from_record, to_record
from orchestra_flwr.methods import Role
from orchestra_flwr.training import build_learner

COARSE = (1 + 2.0**-7) / 6  # the largest step of int4, for values up to 1
WIRES = ("float32", "float16", "int8", "int4")


@pytest.fixture(autouse=True)
def _no_small_matrices(monkeypatch):
    """Matrices of any size travel in int4; a ResNet-18 has few that do not."""
    monkeypatch.setattr(codec, "SMALL", 0)


def randomised(learner, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for role in (Role.SHARED, Role.SERVER):
            for tensor in learner.state(role).values():
                tensor.copy_(torch.rand(tensor.shape, generator=generator))
    return learner


def schemas_of(config, channels=1):
    return Schemas.of(build_learner(config, channels), config)


def journey(arrays):
    return from_record(to_record(arrays))


def test_state_survives_the_journey_bit_for_bit(tiny):
    sender, receiver = randomised(build_learner(tiny(), 1)), build_learner(tiny(), 1)
    arrays = pack_state(sender, Schemas.of(sender, tiny()))
    assert set(arrays) == {"shared", "server"}
    unpack_state(journey(arrays), receiver, Schemas.of(receiver, tiny()))
    for role in (Role.SHARED, Role.SERVER):
        for name, tensor in sender.state(role).items():
            assert torch.equal(tensor, receiver.state(role)[name])


@pytest.mark.parametrize("wire", WIRES[1:])
def test_with_fewer_bits_everybody_knows_what_arrives(tiny, wire):
    """The server works out, to the bit, the state that clients start from; centroids are exact."""
    sender, receiver = randomised(build_learner(tiny(), 1)), build_learner(tiny(), 1)
    schemas = Schemas.of(sender, tiny(f"federation.wire={wire}"))
    arrays = pack_state(sender, schemas)
    assert list(arrays) == schemas.down
    unpack_state(journey(arrays), receiver, schemas)
    sent = schemas.shared.pack(sender.state(Role.SHARED))
    arrived = schemas.shared.pack(receiver.state(Role.SHARED))
    np.testing.assert_array_equal(arrived, schemas.as_received(sent))
    assert 0 < np.abs(arrived - sent).max() <= 0.5 * {"int4": COARSE}.get(wire, 1 / 127)
    assert torch.equal(sender.method.global_centroids, receiver.method.global_centroids)


@pytest.mark.parametrize("wire", WIRES)
def test_the_tensors_of_a_message_can_be_read_without_a_learner(tiny, wire):
    sender, receiver = randomised(build_learner(tiny(), 1)), build_learner(tiny(), 1)
    schemas = Schemas.of(sender, tiny(f"federation.wire={wire}"))
    arrays = journey(pack_state(sender, schemas))
    unpack_state(arrays, receiver, schemas)
    wanted = {**receiver.state(Role.SHARED), **receiver.state(Role.SERVER)}
    state = received_state(arrays, schemas)
    assert list(state) == list(wanted)
    assert all(torch.equal(state[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("wire", WIRES)
def test_several_models_travel_in_one_message(tiny, wire):
    config = tiny(f"federation.wire={wire}")
    senders = {name: randomised(build_learner(config, 1), seed) for seed, name in enumerate("ab")}
    schemas = schemas_of(config)
    packed = {name: pack_state(sender, schemas) for name, sender in senders.items()}
    arrays = journey(for_models(packed))
    assert list(arrays) == names_down(schemas, "ab")
    assert len(arrays) == 2 * len(schemas.down)
    for model, sender in senders.items():
        receiver = build_learner(config, 1)
        part = {name: arrays[f"{model}/{name}"] for name in schemas.down}
        unpack_state(part, receiver, schemas)
        sent = schemas.as_received(schemas.shared.pack(sender.state(Role.SHARED)))
        np.testing.assert_array_equal(schemas.shared.pack(receiver.state(Role.SHARED)), sent)
        assert torch.equal(sender.method.global_centroids, receiver.method.global_centroids)


def test_a_single_model_travels_without_its_name(tiny):
    schemas = schemas_of(tiny())
    assert names_down(schemas, ["any"]) == schemas.down
    assert list(for_models({"any": {"shared": np.zeros(2)}})) == ["shared"]


@pytest.mark.parametrize("wire", WIRES)
def test_what_was_trained_comes_back(tiny, wire, generator):
    schemas = schemas_of(tiny(f"federation.wire={wire}"))
    rng = np.random.default_rng(0)
    received = rng.normal(size=schemas.shared.size).astype(np.float32)
    change = (1e-3 * rng.normal(size=schemas.shared.size)).astype(np.float32)
    arrays = schemas.pack_trained(received + change, received, generator)
    assert {n: (a.dtype, len(a)) for n, a in arrays.items()} == schemas.codec.form(schemas.reply)
    trained = schemas.unpack_trained(arrays, received)
    bound = {"float32": 0, "float16": 2.0**-11, "int8": 1 / 127, "int4": COARSE}[wire]
    # ... of the largest change, beside float32's own rounding of values near 4.
    limit = bound * np.abs(change).max() + (0 if wire == "float32" else 2.0**-22)
    assert np.abs(trained - (received + change)).max() <= limit


@pytest.mark.parametrize("role", [Role.TRANSIENT, Role.LOCAL])
def test_the_clients_own_state_has_no_schema(tiny, role):
    with pytest.raises(ValueError, match="never travels"):
        Schema.of(build_learner(tiny(), 1), role)


def test_no_counters_and_no_memory_travel(tiny):
    names = [name for name, _ in schemas_of(tiny()).shared.entries]
    assert not any("num_batches_tracked" in n or "memory" in n for n in names)
    assert any("running_var" in n for n in names)


def test_the_fingerprint_tells_models_apart(tiny):
    def fingerprint(*overrides):
        return schemas_of(tiny(*overrides)).fingerprint

    base = fingerprint()
    assert base == fingerprint("seed=7", "training.lr=1")
    wires = {fingerprint(f"federation.wire={wire}") for wire in WIRES[1:]}
    assert len({*wires, base}) == 4
    others = {
        fingerprint("model.width=16"),
        fingerprint("model.norm=group"),
        fingerprint("clustering.global_clusters=5"),
        schemas_of(tiny(), 3).fingerprint,
    }
    assert len(others) == 4 and base not in others


def test_the_fingerprint_tells_versions_of_a_users_package_apart(tiny, user_package):
    user_package({"methods/mine.py": "A = 1"})
    config = tiny("plugins=[my_package]")
    without, first = schemas_of(tiny()).fingerprint, schemas_of(config).fingerprint
    assert first == schemas_of(config).fingerprint
    user_package({"methods/mine.py": "A = 2"})
    del sys.modules["my_package"]  # another process imports it anew
    assert len({without, first, schemas_of(config).fingerprint}) == 3


def test_arrays_of_another_size_are_refused(tiny):
    learner = build_learner(tiny(), 1)
    schema = Schemas.of(learner, tiny()).shared
    with pytest.raises(ValueError, match="expected"):
        schema.unpack(np.zeros(schema.size + 1, np.float32), learner.state(Role.SHARED))
    with pytest.raises(ValueError, match="no shared"):
        unpack_state({}, learner, Schemas.of(learner, tiny()))
