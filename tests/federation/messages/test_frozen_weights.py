"""The store of frozen weights by itself; whole runs with them: tests/federation/runs."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.frozen_weights import (
    KEPT,
    FrozenStore,
    FrozenWeights,
    digest_of,
)

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


def test_the_latest_few_stay(tmp_path):
    """So that a client which takes part in two runs in turns is sent each one's once."""
    (tmp_path / "note.txt").touch()
    store, digests = FrozenStore(tmp_path), []
    for turn in range(KEPT + 2):
        digests.append(store.save(VALUES + turn))
        os.utime(tmp_path / f"{digests[-1]}.float32", (turn, turn))  # the clock may be coarse
    stay = digests[-KEPT:]
    names = {f"{digest}.float32" for digest in stay}
    assert {file.name for file in tmp_path.iterdir()} == {*names, "note.txt"}
    assert store.digest == stay[-1]
    np.testing.assert_array_equal(store.load(stay[0]), VALUES + 2)


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


@pytest.mark.parametrize(
    "code, had_them, has_them",
    [
        (None, False, True),
        (Failure.OUT_OF_MEMORY.code, False, True),  # it stored them before it failed
        (Failure.FAILED.code, True, True),
        (Failure.WEIGHTS_MISSING.code, True, False),
        (Failure.DISK_FULL.code, True, False),
        (1, False, False),  # Flower's: nobody knows
        (1, True, True),
    ],
)
def test_who_has_them_is_known_from_the_answer(code, had_them, has_them):
    frozen = FrozenWeights(VALUES, DIGEST, None, {"a"} if had_them else set())
    frozen.heard_from("a", code)
    assert frozen.holders == ({"a"} if has_them else set())
