import json
import logging
import pwd
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from orchestra_flwr.data.image_files.decoded_cache import cache_dir, cache_key, cached
from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.tensor_files import save_tensors


def _dataset(labelled: bool = True, count: int = 50) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
    if not labelled:
        return Dataset("plain", ImageSet(images), None, (("x.png", "broken"),))
    labels = torch.arange(count) % 3
    test = ImageSet(images[:5].clone(), labels[:5].clone(), ("a", "b", "c"))
    return Dataset("plain", ImageSet(images, labels, ("a", "b", "c")), test)


def _equal(a: ImageSet | None, b: ImageSet | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.labels is None or b.labels is None:
        return a.labels is b.labels and torch.equal(a.images, b.images)
    return (
        torch.equal(a.images, b.images)
        and torch.equal(a.labels, b.labels)
        and a.classes == b.classes
    )


def _same(a: Dataset, b: Dataset) -> bool:
    return (
        _equal(a.train, b.train)
        and _equal(a.test, b.test)
        and (a.name, a.skipped) == (b.name, b.skipped)
    )


def _never() -> Dataset:
    raise AssertionError("made again")


@pytest.mark.parametrize("labelled", [True, False])
def test_what_is_stored_comes_back(tmp_path: Path, labelled: bool):
    made = cached(tmp_path / "new", "plain", "key", lambda: _dataset(labelled))
    dataset = cached(tmp_path / "new", "plain", "key", _never)

    assert _same(made, _dataset(labelled))
    assert _same(dataset, made)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["plain-key.safetensors"]


@pytest.mark.parametrize("side", [None, 480])
def test_the_size_before_resizing_comes_back(tmp_path: Path, side: int | None):
    made = replace(_dataset(), shorter_side=side)
    cached(tmp_path, "plain", "key", lambda: made)
    assert cached(tmp_path, "plain", "key", _never).shorter_side == side


def test_a_file_of_an_earlier_version_is_read_without_it(tmp_path: Path):
    facts = {"name": "plain", "classes": [], "skipped": []}
    images = {"train.images": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}
    save_tensors(tmp_path / "plain-key.safetensors", images, {"facts": json.dumps(facts)})
    assert cached(tmp_path, "plain", "key", _never).shorter_side is None


def test_views_of_one_tensor_can_be_stored(tmp_path: Path):
    whole = torch.zeros(10, 1, 8, 8, dtype=torch.uint8)
    labels = torch.zeros(10, dtype=torch.int64)
    halves = [ImageSet(whole[part], labels[part], ("a",)) for part in (slice(6), slice(6, 10))]
    dataset = cached(tmp_path, "plain", "key", lambda: Dataset("plain", *halves))

    assert (len(dataset.train), len(dataset.test)) == (6, 4)
    assert _same(cached(tmp_path, "plain", "key", _never), dataset)


def _damage_cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def _damage_flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3000] ^= 1
    file.write_bytes(content)


def _damage_empty(file: Path) -> None:
    file.write_bytes(b"")


def _damage_text(file: Path) -> None:
    file.write_text("something else entirely")


@pytest.mark.parametrize("damage", [_damage_cut, _damage_flip, _damage_empty, _damage_text])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage, caplog: pytest.LogCaptureFixture):
    cached(tmp_path, "plain", "key", _dataset)
    damage(tmp_path / "plain-key.safetensors")
    with caplog.at_level(logging.WARNING, "orchestra_flwr.data"):
        repaired = cached(tmp_path, "plain", "key", _dataset)

    assert "plain-key.safetensors is damaged: " in caplog.text and "; made anew" in caplog.text
    assert _same(repaired, _dataset())
    assert _same(cached(tmp_path, "plain", "key", _never), _dataset())


def test_no_byte_changes_unnoticed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Names of classes, labels and the list of files left out are as much as pixels."""
    small = Dataset(
        "plain",
        ImageSet(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1]), ("cat", "dog")),
        None,
        (("x.png", "broken"),),
    )
    cached(tmp_path, "plain", "key", lambda: small)
    file = tmp_path / "plain-key.safetensors"
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        caplog.clear()
        assert _same(cached(tmp_path, "plain", "key", lambda: small), small)
        assert caplog.text.count("made anew") == 1, f"byte {place} of {len(whole)}"


def test_a_cache_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING, "orchestra_flwr.data"):
        dataset = cached(tmp_path / "file" / "cache", "plain", "key", _dataset)

    assert _same(dataset, _dataset())
    assert "data.cache=" in caplog.text


def test_a_cache_that_may_not_be_entered_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", forbidden)  # root may enter any folder
    with caplog.at_level(logging.WARNING, "orchestra_flwr.data"):
        assert _same(cached(tmp_path, "plain", "key", _dataset), _dataset())
    assert "cannot be used" in caplog.text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_costs_a_warning_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(
        "orchestra_flwr.tensor_files.save_file",
        lambda *_, **__: Path("/dev/full").write_bytes(b"x" * 100_000),
    )
    with caplog.at_level(logging.WARNING, "orchestra_flwr.data"):
        dataset = cached(tmp_path, "plain", "key", _dataset)

    assert _same(dataset, _dataset())
    assert "No space left" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_many_may_store_at_once(tmp_path: Path):
    """Threads, not processes, for speed: they race for the same files all the same."""
    start = threading.Barrier(4)

    def store(_: int) -> bool:
        same = True
        for i in range(10):
            start.wait()
            same &= _same(cached(tmp_path, "plain", f"key{i}", _dataset), _dataset())
        return same

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(store, range(4))) == [True] * 4
    assert len(list(tmp_path.iterdir())) == 10


def test_the_key_depends_on_every_fact():
    base = cache_key("a", [("b", 1)], None)

    assert base == cache_key("a", [("b", 1)], None)
    assert len({base, cache_key("a", [("b", 2)], None), cache_key("a", [("b", 1)], 3)}) == 3


def test_the_folder_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir(None) == tmp_path / "orchestra_flwr"
    assert cache_dir("/elsewhere") == Path("/elsewhere")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_dir(None) == Path("/home/someone/.cache/orchestra_flwr")
    assert cache_dir("~/here") == Path("/home/someone/here")


def test_a_user_without_a_home_has_it_here(monkeypatch: pytest.MonkeyPatch):
    """As in a container with a number for a user that no file of users knows."""

    def unknown(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert cache_dir(None) == Path(".cache/orchestra_flwr")
