"""CIFAR-10, from its original archive, which is downloaded on first use.

torchvision has the archives' addresses and checksums. It takes seconds to import, so only functions
import it.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data.image_files import FileOptions
from orchestra_flwr.data.image_files.decoded_cache import cache_dir, cache_key, cached
from orchestra_flwr.data.images import Dataset, ImageSet, check_memory_for
from orchestra_flwr.data.sources import Source
from orchestra_flwr.data.subset import balanced_subset
from orchestra_flwr.files import at_home
from orchestra_flwr.square_image import resize

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

TIMEOUT_SECONDS = 30.0  # a firewall may never answer
FAILURES = (OSError, RuntimeError, EOFError, tarfile.TarError, zlib.error)


class Cifar10(Source):
    """50,000 training and 10,000 test images of 32 x 32 pixels, 10 classes (Krizhevsky, 2009)."""

    classes = 10
    reader: ClassVar[str] = "CIFAR10"  # torchvision's class
    Settings = FileOptions

    def load(self) -> Dataset:
        """Reads them from the cache, an unpacked folder, its archive or the network.

        `data.root` holds the archive or the unpacked folder; without it that is a folder in the
        cache.

        Raises:
            ConfigError: the images are not there and cannot be downloaded.
        """
        from torchvision import datasets

        reader, data = getattr(datasets, self.reader), self.data
        cache = cache_dir(self.settings.cache)
        root = at_home(self.settings.root) if self.settings.root else cache / data.name
        folder = root / reader.base_folder
        if root.is_file():
            raise ConfigError(
                f"data.root={root}: must be a folder for data={data.name}; a zip of images is "
                "data=image_folder"
            )
        if not folder.is_dir():
            _obtain(reader, root, data.name)

        def decode() -> Dataset:
            if not _is_whole(reader, root):
                _obtain(reader, root, data.name)
            train = _image_set(reader(str(root), train=True), data.train_limit, data.image_size)
            test = _image_set(reader(str(root), train=False), data.test_limit, data.image_size)
            return Dataset(data.name, train, test)

        key = cache_key(_stamps(folder), data.image_size, data.train_limit, data.test_limit)
        return cached(cache, data.name, key, decode)


def _stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of each file, which differ when a file's content does."""
    files = sorted(folder.iterdir())
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _image_set(images: CIFAR10, limit: int | None, size: int) -> ImageSet:
    labels: Tensor = torch.tensor(images.targets)
    chosen = torch.from_numpy(balanced_subset(labels.numpy(), len(labels), limit))
    check_memory_for(len(chosen), size)
    pixels = torch.from_numpy(images.data)[chosen].permute(0, 3, 1, 2)
    return ImageSet(resize(pixels.contiguous(), size), labels[chosen], tuple(images.classes))


def _is_whole(reader: type[CIFAR10], root: Path) -> bool:
    from torchvision.datasets.utils import check_integrity

    files = [*reader.train_list, *reader.test_list]
    folder = root / reader.base_folder
    return all(check_integrity(str(folder / name), md5) for name, md5 in files)


def _obtain(reader: type[CIFAR10], root: Path, name: str) -> None:
    """Unpacks the archive in `root`, or downloads it; the folder appears once it is complete."""
    from torchvision.datasets.utils import check_integrity, extract_archive

    archive = root / reader.filename
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpack-", dir=root) as scratch:
            if check_integrity(str(archive), reader.tgz_md5):
                extract_archive(str(archive), scratch)
            else:
                with _socket_timeout(TIMEOUT_SECONDS):
                    reader(scratch, download=True)
            _put_in_place(reader, Path(scratch), root)
    except FAILURES as error:
        damaged = " (the one there is damaged)" if archive.exists() else ""
        raise ConfigError(
            f"data={name}: cannot be downloaded ({' '.join(str(error).split())}); place "
            f"{reader.filename}{damaged} in {root}, name the folder that holds it with "
            "data.root=..., or use data=image_folder"
        ) from None


def _put_in_place(reader: type[CIFAR10], scratch: Path, root: Path) -> None:
    folder = root / reader.base_folder
    if _is_whole(reader, root):  # another process was faster
        return
    if folder.exists():
        shutil.rmtree(folder)
    (scratch / reader.base_folder).rename(folder)


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(previous)
