import errno
import os

import pytest
import torch

from orchestra_flwr.federation import checkpoint
from orchestra_flwr.federation.checkpoint import FILE, Position, load_checkpoint, save_checkpoint
from orchestra_flwr.federation.strategy import FederationError
from orchestra_flwr.methods import Role, build_method


def travelling(method):
    return {**method.state(Role.SHARED), **method.state(Role.SERVER)}


def test_state_and_position_come_back_bit_for_bit(tiny, tmp_path):
    method, other = build_method(tiny(), 1), build_method(tiny("seed=1"), 1)
    method.global_centroids.normal_()
    position = Position(3, 12.5, 100, 200, 4)
    save_checkpoint(tmp_path / "checkpoint", method, position)
    assert load_checkpoint(tmp_path / "checkpoint", other) == position
    for name, tensor in travelling(method).items():
        assert torch.equal(tensor, travelling(other)[name])


def test_no_checkpoint_yet(tiny, tmp_path):
    assert load_checkpoint(tmp_path, build_method(tiny(), 1)) is None


def test_a_full_disk_leaves_the_old_checkpoint(tiny, tmp_path, monkeypatch):
    method = build_method(tiny(), 1)
    save_checkpoint(tmp_path, method, Position(1))

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(FederationError, match="cannot write the checkpoint.*No space left"):
        save_checkpoint(tmp_path, method, Position(2))
    assert load_checkpoint(tmp_path, method).round == 1
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("damage", [lambda b: b[:1000], lambda b: b"", lambda b: b"x" * 100])
def test_a_damaged_file_is_told(tiny, tmp_path, damage):
    method = build_method(tiny(), 1)
    save_checkpoint(tmp_path, method, Position(1))
    (tmp_path / FILE).write_bytes(damage((tmp_path / FILE).read_bytes()))
    with pytest.raises(FederationError, match="cannot resume from"):
        load_checkpoint(tmp_path, method)


def test_another_model_is_refused_and_nothing_changed(tiny, tmp_path):
    save_checkpoint(tmp_path, build_method(tiny(), 1), Position(1))
    other = build_method(tiny("model.width=16"), 1)
    before = {n: t.clone() for n, t in travelling(other).items()}
    with pytest.raises(FederationError, match="another model"):
        load_checkpoint(tmp_path, other)
    assert all(torch.equal(before[n], t) for n, t in travelling(other).items())
