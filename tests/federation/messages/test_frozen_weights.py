"""The store of frozen weights by itself; whole runs with them: tests/federation/runs."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from orchestra_flwr.federation.messages.frozen_weights import FrozenStore, FrozenWeights, digest_of

VALUES = np.arange(5, dtype=np.float32)
DIGEST = hashlib.sha256(VALUES.tobytes()).hexdigest()


def test_a_digest_is_that_of_the_float32_values():
    assert digest_of(VALUES) == digest_of(VALUES.astype(np.float64)) == DIGEST
    assert digest_of(np.repeat(VALUES, 2)[::2]) == DIGEST


def test_what_is_saved_is_loaded_by_its_digest(tmp_path):
    store = FrozenStore(tmp_path / "a" / "frozen")
    assert store.digest == "" and store.load(DIGEST) is None
    assert store.save(VALUES) == store.digest == DIGEST
    np.testing.assert_array_equal(store.load(DIGEST), VALUES)
    (file,) = (tmp_path / "a" / "frozen").iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == (f"{DIGEST}.float32", 0o600)
    assert store.save(VALUES) == DIGEST and file.exists()


def test_other_weights_take_the_place_of_the_first(tmp_path):
    (tmp_path / "note.txt").touch()
    store = FrozenStore(tmp_path)
    store.save(VALUES)
    second = store.save(VALUES + 1)
    assert {file.name for file in tmp_path.iterdir()} == {f"{second}.float32", "note.txt"}


@pytest.mark.parametrize("text", ["", "../note", DIGEST.upper(), DIGEST + "0", DIGEST + "\n"])
def test_a_name_that_is_no_digest_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match="^frozen=.*: must be a SHA-256 in hexadecimal$"):
        FrozenStore(tmp_path).load(text)


def test_damaged_weights_are_none(tmp_path):
    (tmp_path / f"{DIGEST}.float32").write_bytes((VALUES + 1).tobytes())
    assert FrozenStore(tmp_path).load(DIGEST) is None
    (tmp_path / f"{DIGEST}.float32").write_bytes(b"")
    assert FrozenStore(tmp_path).load(DIGEST) is None


def test_a_task_names_the_folder_only_where_the_disk_is_shared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert FrozenWeights(VALUES, DIGEST, None).entries == {"frozen": DIGEST}
    assert FrozenWeights(VALUES, DIGEST, Path()).entries == {
        "frozen": DIGEST,
        "frozen_folder": str(tmp_path.resolve()),
    }
