import errno
import os

import pytest
import torch

from orchestra_flwr.federation.server.checkpoint import (
    FILE,
    KEY_FILE,
    Position,
    forget_noise_key,
    load_checkpoint,
    noise_key,
    save_checkpoint,
)
from orchestra_flwr.federation.server.round_report import FederationError
from orchestra_flwr.methods import Role


def travelling(method):
    return {**method.state(Role.SHARED), **method.state(Role.SERVER)}


def test_state_and_position_come_back_bit_for_bit(tiny, tmp_path):
    method, other = build_learner(tiny(), 1), build_learner(tiny("seed=1"), 1)
    method.global_centroids.normal_()
    position = Position(3, 12.5, 100, 200, 4, [[10, 5, 3]])
    save_checkpoint(tmp_path / "checkpoint", method, position)
    assert load_checkpoint(tmp_path / "checkpoint", other) == position
    for name, tensor in travelling(method).items():
        assert torch.equal(tensor, travelling(other)[name])


def test_no_checkpoint_yet(tiny, tmp_path):
    assert load_checkpoint(tmp_path, build_learner(tiny(), 1)) is None


def test_a_full_disk_leaves_the_old_checkpoint(tiny, tmp_path, monkeypatch):
    method = build_learner(tiny(), 1)
    save_checkpoint(tmp_path, method, Position(1))

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FederationError, match="cannot write the checkpoint.*No space left"):
        save_checkpoint(tmp_path, method, Position(2))
    assert load_checkpoint(tmp_path, method).round == 1
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("damage", [lambda b: b[:1000], lambda b: b"", lambda b: b"x" * 100])
def test_a_damaged_file_is_told(tiny, tmp_path, damage):
    method = build_learner(tiny(), 1)
    save_checkpoint(tmp_path, method, Position(1))
    (tmp_path / FILE).write_bytes(damage((tmp_path / FILE).read_bytes()))
    with pytest.raises(FederationError, match="cannot resume from"):
        load_checkpoint(tmp_path, method)


def test_another_model_is_refused_and_nothing_changed(tiny, tmp_path):
    save_checkpoint(tmp_path, build_learner(tiny(), 1), Position(1))
    other = build_learner(tiny("model.width=16"), 1)
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
