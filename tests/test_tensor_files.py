"""A file of tensors knows when a single bit of it has changed."""

import errno
import os

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from orchestra_flwr.tensor_files import DamagedFileError, load_tensors, read_values, save_tensors

TENSORS = {"a": torch.tensor([1.5, -2.0, float("nan")]), "b": torch.arange(5), "c": torch.zeros(0)}
VALUES = {"position": '{"round": 3, "checked": "\u00fc"}'}


@pytest.fixture
def path(tmp_path):
    save_tensors(tmp_path / "state", TENSORS, VALUES)
    return tmp_path / "state"


def same(found):
    return found.keys() == TENSORS.keys() and all(
        torch.equal(found[n].nan_to_num(), t.nan_to_num()) for n, t in TENSORS.items()
    )


def test_everything_comes_back(path):
    tensors, values = load_tensors(path)
    assert same(tensors) and values == VALUES == read_values(path)
    assert same(load_file(path))  # by any reader of safetensors


def test_the_same_contents_are_the_same_bytes(path):
    before = path.read_bytes()
    save_tensors(path, TENSORS, VALUES)
    assert path.read_bytes() == before


@pytest.mark.parametrize("bit", [1, 32, 128])
def test_no_flipped_bit_is_loaded(path, bit):
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        for read in (load_tensors, read_values):
            with pytest.raises(DamagedFileError) as error:
                read(path)
            assert str(error.value).startswith(f"{path} is damaged: ")
            assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-1], lambda b: b + b"x"])
def test_other_lengths_are_damage(path, damage):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedFileError, match="is damaged"):
        load_tensors(path)


def test_a_file_without_a_checksum_is_damaged(path):
    save_file(TENSORS, path, metadata=VALUES)
    with pytest.raises(DamagedFileError, match="it has no checksum"):
        load_tensors(path)


def test_a_missing_file_is_not_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_tensors(tmp_path / "state")


FULL = OSError(errno.ENOSPC, "No space left on device")
FULL_OF_SAFETENSORS = SafetensorError("I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("module", "raised"),
    [
        ("os.fsync", FULL),
        ("orchestra_flwr.tensor_files.save_file", FULL),
        ("orchestra_flwr.tensor_files.save_file", FULL_OF_SAFETENSORS),
    ],
)
def test_a_full_disk_leaves_the_old_file_and_names_it(path, monkeypatch, module, raised):
    def full(*_, **__):
        raise raised

    before = path.read_bytes()
    monkeypatch.setattr(module, full)
    with pytest.raises(OSError, match="No space left") as error:
        save_tensors(path, {"a": torch.ones(3)}, {})
    assert f"cannot be written (No space left on device): '{path}'" in str(error.value)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_private_file_is_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        save_tensors(tmp_path / "private", TENSORS, {}, mode=0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600
    with safe_open(tmp_path / "private", framework="pt") as file:
        assert sorted(file.keys()) == ["a", "b", "c"]
