import errno
import json
import os

import numpy as np
import pytest
import torch

from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.checkpoint import (
    KEY_FILE,
    Position,
    forget_noise_key,
    load_checkpoint,
    noise_key,
    save_checkpoint,
)
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.methods import Role
from orchestra_flwr.reporting.kept_checkpoints import LATEST
from orchestra_flwr.tensor_files import save_tensors
from orchestra_flwr.training import build_learner


def models(config, *names):
    learner = build_learner(config, 1)
    return Models(config, learner, Schemas.of(learner, config), names or ("model",))


def travelling(models):
    return {n: t for r in (Role.SHARED, Role.SERVER) for n, t in models.learner.state(r).items()}


def test_state_and_position_come_back_bit_for_bit(tiny, tmp_path):
    ours, other = models(tiny()), models(tiny("seed=1"))
    ours.learner.method.global_centroids.normal_()
    position = Position(
        3, 12.5, 100, 200, 4, [[10, 5, 3]], ["b", "a"], {"groups": [0, 1]}, counted=["b"]
    )
    save_checkpoint(tmp_path / "checkpoint", ours, position)
    assert load_checkpoint(tmp_path / "checkpoint", other) == position
    for name, tensor in travelling(ours).items():
        assert torch.equal(tensor, travelling(other)[name])


def test_an_exchanges_arrays_come_back_bit_for_bit(tiny, tmp_path):
    """As tensors, not as text: they may be as large as models."""
    ours = models(tiny())
    arrays = {"a/b": np.float16([1, 2]), "c": np.arange(3.0)}
    state = {"sketches": arrays, "groups": [0, 1], "members": {"a": 1}}
    save_checkpoint(tmp_path, ours, Position(1, exchange=state))
    assert "sketches" in state and state["sketches"] is arrays  # the run goes on with it
    loaded = load_checkpoint(tmp_path, ours).exchange
    assert loaded["groups"] == [0, 1] and loaded["members"] == {"a": 1}
    assert list(loaded["sketches"]) == list(arrays)
    for name, array in arrays.items():
        assert loaded["sketches"][name].dtype == array.dtype
        np.testing.assert_array_equal(loaded["sketches"][name], array)


def randomise(models, *names, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for name in names:
        for role in (Role.SHARED, Role.SERVER):
            for tensor in models.load(name).state(role).values():
                tensor.copy_(torch.rand(tensor.shape, generator=generator))


def everything(models):
    return {name: tensor.clone() for name, tensor in models.tensors().items()}


def test_all_models_and_moments_come_back_bit_for_bit(tiny, tmp_path):
    config = tiny("server_optimizer=adam")
    ours, other = models(config, "a", "b", "c"), models(config, "a", "b", "c")
    randomise(ours, "c", "a", "b")
    for step, name in enumerate(("b", "a", "b")):
        mean = np.full(ours.schemas.shared.size, step / 3, np.float32)
        ours.update(name, mean)
    saved = everything(ours)
    save_checkpoint(tmp_path, ours, Position(1))
    load_checkpoint(tmp_path, other)
    again = everything(other)
    assert saved.keys() == again.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in saved.items())
    for name in "abc":
        np.testing.assert_array_equal(ours.shared(name), other.shared(name))
        assert ours.optimizers[name].steps == other.optimizers[name].steps == "bab".count(name)
    assert len({ours.shared(name).tobytes() for name in "abc"}) == 3


@pytest.mark.parametrize(
    ("override", "names", "says"),
    [
        ("seed=0", ("a", "c"), "other models"),
        ("seed=0", ("a",), "other models"),
        ("server_optimizer=momentum", ("a", "b"), "moments"),
        ("server_optimizer=mean", ("a", "b"), "moments"),
    ],
)
def test_other_models_and_optimizers_are_refused_and_nothing_changed(
    tiny, tmp_path, override, names, says
):
    save_checkpoint(tmp_path, models(tiny("server_optimizer=adam"), "a", "b"), Position(1))
    other = models(tiny("server_optimizer=adam", override), *names)
    randomise(other, *names)
    before = everything(other)
    with pytest.raises(FederationError, match=says):
        load_checkpoint(tmp_path, other)
    after = everything(other)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_checkpoint_of_an_earlier_version_is_read(tiny, tmp_path):
    """Its position knew less, and called one thing otherwise."""
    ours, other = models(tiny("seed=1")), models(tiny())
    position = {"round": 2, "seconds": 1.0, "bytes_up": 3, "bytes_down": 4,
                "smallest_cluster": 5, "drawn": [], "clients": ["a", "b"],
                "known": {"a": {"reply": 2}}}  # fmt: skip
    save_tensors(tmp_path / LATEST, travelling(ours), {"position": json.dumps(position)})
    assert load_checkpoint(tmp_path, other) == Position(
        2, 1.0, 3, 4, 5, clients=["a", "b"], last_used={"a": {"reply": 2}}, counted=["a", "b"]
    )
    assert all(torch.equal(t, travelling(other)[n]) for n, t in travelling(ours).items())


def test_no_checkpoint_yet(tiny, tmp_path):
    assert load_checkpoint(tmp_path, models(tiny())) is None


def test_a_full_disk_leaves_the_old_checkpoint(tiny, tmp_path, monkeypatch):
    ours = models(tiny())
    save_checkpoint(tmp_path, ours, Position(1))

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FederationError, match="cannot write the checkpoint.*No space left"):
        save_checkpoint(tmp_path, ours, Position(2))
    assert load_checkpoint(tmp_path, ours).round == 1
    latest, round_state = tmp_path / LATEST, tmp_path / "state-1.safetensors"
    assert {*tmp_path.iterdir()} == {latest, round_state} and latest.samefile(round_state)


@pytest.mark.parametrize("damage", [lambda b: b[:1000], lambda b: b"", lambda b: b"x" * 100])
def test_a_damaged_file_is_told(tiny, tmp_path, damage):
    ours = models(tiny())
    save_checkpoint(tmp_path, ours, Position(1))
    (tmp_path / LATEST).write_bytes(damage((tmp_path / LATEST).read_bytes()))
    with pytest.raises(FederationError, match="cannot resume from"):
        load_checkpoint(tmp_path, ours)


def test_another_model_is_refused_and_nothing_changed(tiny, tmp_path):
    save_checkpoint(tmp_path, models(tiny()), Position(1))
    other = models(tiny("model.width=16"))
    before = {n: t.clone() for n, t in travelling(other).items()}
    with pytest.raises(FederationError, match="another model"):
        load_checkpoint(tmp_path, other)
    assert all(torch.equal(before[n], t) for n, t in travelling(other).items())


def test_the_key_is_made_once_read_by_its_owner_only_and_forgotten(tmp_path):
    folder = tmp_path / "checkpoint"
    key = noise_key(folder)
    assert len(key) == 32 and noise_key(folder) == key
    assert (folder / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [p.name for p in folder.iterdir()] == [KEY_FILE]
    forget_noise_key(folder)
    forget_noise_key(folder)
    assert noise_key(folder) != key


@pytest.mark.parametrize("damage", ["", "abcd", "no key"])
def test_a_damaged_key_is_told(tmp_path, damage):
    (tmp_path / KEY_FILE).write_text(damage)
    with pytest.raises(FederationError, match="cannot use the key of the noise"):
        noise_key(tmp_path)
