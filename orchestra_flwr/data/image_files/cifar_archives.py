"""CIFAR-10 and CIFAR-100 from the original archives, downloaded on first use."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.datasets.utils import check_integrity, extract_archive

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.data.cache import cache_dir, cached, fingerprint
from orchestra_flwr.data.fit import resize
from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.data.subset import balanced_subset

SETS: dict[str, type[CIFAR10]] = {"cifar10": CIFAR10, "cifar100": CIFAR100}
TIMEOUT_SECONDS = 30.0  # without it, a download from behind a silent firewall never ends
FAILURES = (OSError, RuntimeError, EOFError, tarfile.TarError, zlib.error)


def load_cifar(config: DataConfig) -> Dataset:
    """CIFAR-10 or CIFAR-100, from `data.root` or, without it, from the cache folder.

    Raises:
        ConfigError: the images are not there and cannot be downloaded.
    """
    source = SETS[config.name]
    cache = cache_dir(config.cache)
    root = Path(config.root).expanduser() if config.root else cache / config.name
    folder = root / source.base_folder
    key = fingerprint(_stamps(folder), config.image_size, config.train_limit, config.test_limit)
    if folder.is_dir():
        return cached(cache, config.name, key, lambda: _decode(config, source, root))
    _obtain(source, root, config.name)
    return load_cifar(config)


def _stamps(folder: Path) -> list[tuple[str, int, int]]:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _decode(config: DataConfig, source: type[CIFAR10], root: Path) -> Dataset:
    if not _is_whole(source, root):
        _obtain(source, root, config.name)
    train = _image_set(source(str(root), train=True), config.train_limit, config.image_size)
    test = _image_set(source(str(root), train=False), config.test_limit, config.image_size)
    return Dataset(config.name, train, test)


def _image_set(source: CIFAR10, limit: int | None, size: int) -> ImageSet:
    labels: Tensor = torch.tensor(source.targets)
    chosen = torch.from_numpy(balanced_subset(labels.numpy(), len(labels), limit))
    images = torch.from_numpy(source.data)[chosen].permute(0, 3, 1, 2)
    return ImageSet(resize(images.contiguous(), size), labels[chosen], tuple(source.classes))


def _is_whole(source: type[CIFAR10], root: Path) -> bool:
    files = [*source.train_list, *source.test_list]
    folder = root / source.base_folder
    return all(check_integrity(str(folder / name), md5) for name, md5 in files)


def _obtain(source: type[CIFAR10], root: Path, name: str) -> None:
    """Unpacks the archive in `root`, or downloads it; the folder appears only when it is whole."""
    archive = root / source.filename
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpack-", dir=root) as scratch:
            if check_integrity(str(archive), source.tgz_md5):
                extract_archive(str(archive), scratch)
            else:
                with _socket_timeout(TIMEOUT_SECONDS):
                    source(scratch, download=True)
            _put_in_place(source, Path(scratch), root)
    except FAILURES as error:
        found = " (the one there is damaged)" if archive.exists() else ""
        raise ConfigError(
            f"data={name}: cannot be downloaded ({' '.join(str(error).split())}); place "
            f"{source.filename}{found} in {root}, name the folder that holds it with "
            "data.root=..., or use data=image_folder"
        ) from None


def _put_in_place(source: type[CIFAR10], scratch: Path, root: Path) -> None:
    folder = root / source.base_folder
    if _is_whole(source, root):  # another process was faster
        return
    if folder.exists():
        shutil.rmtree(folder)
    (scratch / source.base_folder).rename(folder)


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
