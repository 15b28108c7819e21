"""The original archives' layout, made small; what cannot be downloaded; what is left behind."""

import hashlib
import pickle
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10, CIFAR100

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.data import load_dataset

PER_FILE = 20


def _batch(seed: int, label_key: str, classes: int) -> bytes:
    values = np.random.default_rng(seed).integers(0, 256, (PER_FILE, 3072), dtype=np.uint8)
    labels = [i % classes for i in range(PER_FILE)]
    return pickle.dumps({"data": values, label_key: labels})


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.fixture(params=["cifar10", "cifar100"])
def archive(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A small archive in the original layout, whose checksums torchvision is told to expect."""
    source = {"cifar10": CIFAR10, "cifar100": CIFAR100}[request.param]
    ten = source is CIFAR10
    key, meta_key = ("labels", "label_names") if ten else ("fine_labels", "fine_label_names")
    classes = 10 if ten else 100
    lists = {"train_list": [], "test_list": []}
    folder = tmp_path / "made" / source.base_folder
    folder.mkdir(parents=True)
    for attribute, files in lists.items():
        for seed, (name, _) in enumerate(getattr(source, attribute)):
            content = _batch(seed + 10 * (attribute == "test_list"), key, classes)
            (folder / name).write_bytes(content)
            files.append([name, _md5(content)])
        monkeypatch.setattr(source, attribute, files)
    meta = pickle.dumps({meta_key: [f"class {i}" for i in range(classes)]})
    (folder / source.meta["filename"]).write_bytes(meta)
    monkeypatch.setattr(
        source, "meta", {"filename": source.meta["filename"], "key": meta_key, "md5": _md5(meta)}
    )
    file = tmp_path / source.filename
    with tarfile.open(file, "w:gz") as tar:
        tar.add(folder, source.base_folder)
    monkeypatch.setattr(source, "tgz_md5", _md5(file.read_bytes()))
    return request.param, source, file


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args, **_options):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


def _config(name: str, tmp_path: Path, **changes) -> DataConfig:
    return DataConfig(name=name, cache=str(tmp_path / "cache"), **changes)


def _offline_line(config: DataConfig) -> str:
    with pytest.raises(ConfigError) as error:
        load_dataset(config)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_archive_in_the_root_is_unpacked_and_read(archive, tmp_path: Path):
    name, source, file = archive
    dataset = load_dataset(_config(name, tmp_path, root=str(tmp_path)))

    files = len(source.train_list)
    assert len(dataset.train) == files * PER_FILE
    assert len(dataset.test) == PER_FILE
    assert dataset.train.classes[1] == "class 1"
    expected = pickle.loads(_batch(0, "x", 10))["data"].reshape(-1, 3, 32, 32)
    assert np.array_equal(dataset.train.images[:PER_FILE].numpy(), expected)
    assert dataset.train.labels[:3].tolist() == [0, 1, 2]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name not in ("made", "cache")) == sorted(
        [source.base_folder, file.name]
    )


def test_an_unpacked_folder_needs_no_archive(archive, tmp_path: Path):
    name, _, _ = archive
    config = _config(
        name, tmp_path, root=str(tmp_path / "made"), train_limit=6, test_limit=3, image_size=16
    )
    first, second = load_dataset(config), load_dataset(config)

    assert first.train.images.shape == (6, 3, 16, 16)
    assert len(first.test) == 3
    assert torch.equal(first.train.images, second.train.images)


def test_a_broken_folder_is_mended_from_the_archive(archive, tmp_path: Path):
    name, source, file = archive
    folder = tmp_path / source.base_folder
    folder.mkdir()
    (folder / source.train_list[0][0]).write_bytes(b"half writ")

    assert len(load_dataset(_config(name, tmp_path, root=str(tmp_path))).test) == PER_FILE
    assert file.is_file()


def test_offline_one_line_says_what_to_do(tmp_path: Path):
    line = _offline_line(_config("cifar10", tmp_path))

    folder = tmp_path / "cache" / "cifar10"
    assert line.startswith("data=cifar10: cannot be downloaded (")
    assert f"place cifar-10-python.tar.gz in {folder}, " in line
    assert "data.root=" in line
    assert "data=image_folder" in line
    assert list(folder.iterdir()) == []


def test_a_file_is_no_folder_of_the_archive(tmp_path: Path):
    """It was said to be a failed download, for which the archive should lie in that file."""
    (tmp_path / "photos.zip").touch()
    with pytest.raises(ConfigError, match=r"photos.zip: must be a folder for data=cifar10; a zip"):
        load_dataset(_config("cifar10", tmp_path, root=str(tmp_path / "photos.zip")))


def test_offline_with_a_damaged_archive(archive, tmp_path: Path):
    name, _, file = archive
    whole = file.read_bytes()
    file.write_bytes(whole[:-50])
    config = _config(name, tmp_path, root=str(tmp_path))

    assert "(the one there is damaged)" in _offline_line(config)
    file.write_bytes(whole)
    assert len(load_dataset(config).test) == PER_FILE


def test_a_download_that_breaks_off_leaves_nothing(
    archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name, _, file = archive
    whole = file.read_bytes()
    file.unlink()
    for content, ends_well in ((whole[: len(whole) // 2], False), (whole, True)):
        served = tmp_path / "served"
        served.write_bytes(content)
        monkeypatch.setattr(
            "torchvision.datasets.utils._urlretrieve",
            lambda _url, target, *_, served=served, **__: Path(target).write_bytes(
                served.read_bytes()
            ),
        )
        monkeypatch.setattr("torchvision.datasets.utils._get_redirect_url", lambda url, **_: url)
        config = _config(name, tmp_path)
        if ends_well:
            assert len(load_dataset(config).test) == PER_FILE
        else:
            _offline_line(config)
            assert list((tmp_path / "cache" / name).iterdir()) == []
