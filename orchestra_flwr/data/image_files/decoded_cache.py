"""Decoded images on disk, read back memory-mapped so that processes share their pages."""

import json
import logging
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.files import at_home
from orchestra_flwr.fingerprints import fingerprint_of
from orchestra_flwr.tensor_files import DamagedFileError, load_tensors, save_tensors

logger = logging.getLogger("orchestra_flwr.data")

TARGETS = ("labels", "tags")
FORMAT = 4  # to be raised when decoding, choosing or storing images changes
NAME_END = "\0"  # the one character that no path has


def cache_dir(configured: str | None) -> Path:
    """The cache's folder: `data.cache`, else orchestra_flwr in the user's cache folder.

    For a user without a home folder that is .cache in the working folder.
    """
    if configured:
        return at_home(configured)
    home = at_home("~")
    base = (home if home.is_absolute() else Path()) / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or base) / "orchestra_flwr"


def cache_key(*facts: Any) -> str:
    """32 hexadecimal digits that differ when a fact differs.

    Args:
        facts: all that the decoded images depend on; values that JSON can hold.
    """
    return fingerprint_of(json.dumps([FORMAT, *facts]), digits=32)


def cached(
    folder: Path,
    name: str,
    key: str,
    make: Callable[[], Dataset],
    readable: Callable[[Collection[str]], bool] = lambda unread: False,
) -> Dataset:
    """The data set from the cache, else made and stored there.

    A damaged file is reported and made anew. If the folder cannot be written, a warning is logged.
    Files are replaced as a whole: several processes may store the same data set at once.

    Args:
        folder: the cache's folder, made if needed.
        name: the data set's name, a part of the file's name.
        key: from :func:`cache_key`.
        make: decodes the images.
        readable: whether one of these files, which could not be read before, can be read now; if
            so, the data set is made anew.
    """
    file = folder / f"{name}-{key}.safetensors"
    stored = _load(file)
    if stored is not None and not (stored.unread and readable(stored.unread)):
        return stored
    dataset = make()
    try:
        store_dataset(file, dataset)
    except OSError as error:
        logger.warning("data.cache=%s: cannot be written, going on without it: %s", folder, error)
        return dataset
    return _load(file) or dataset  # mapped, the pages are shared and can be dropped under pressure


@contextmanager
def only_the_latest(folder: Path, name: str) -> Iterator[None]:
    """Removes what :func:`cached` had stored of a data set, if the block stores it anew.

    For a cache that one process alone uses, whose images change: it would fill the disk.
    """

    def files() -> set[Path]:
        return {*folder.glob(f"{name}-*.safetensors"), *folder.glob(f".{name}-*.tmp")}

    before = files()
    yield
    if files() - before:
        for file in before:
            with suppress(OSError):
                file.unlink()


def store_dataset(file: Path, dataset: Dataset) -> None:
    """Writes a data set to a file that its owner alone can read.

    Raises:
        OSError: names the file.
    """
    tensors = {"train.images": dataset.train.images}
    if dataset.test is not None and dataset.test.targets is not None:
        tensors["test.images"] = dataset.test.images
    for name, part in (("train", dataset.train), ("test", dataset.test)):
        for kind in TARGETS if part is not None else ():
            values = getattr(part, kind)
            tensors |= {} if values is None else {f"{name}.{kind}": values}
    if dataset.train.files:  # as a tensor: the header, which holds the facts, is limited in size
        text = NAME_END.join(dataset.train.files).encode(errors="surrogateescape")
        tensors["train.files"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    facts = {
        "name": dataset.name,
        "classes": dataset.train.classes,
        "skipped": dataset.skipped,
        "unread": dataset.unread,
        "shorter_side": dataset.shorter_side,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    # Images are private: their owner alone may read them.
    save_tensors(file, tensors, {"facts": json.dumps(facts)}, mode=0o600)


def read_dataset(file: Path) -> Dataset:
    """What :func:`store_dataset` wrote, mapped into memory.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, or is no such file.
    """
    tensors, values = load_tensors(file)
    try:
        return _dataset(tensors, json.loads(values["facts"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"it holds no data set ({type(error).__name__}: {error})") from None


def _load(file: Path) -> Dataset | None:
    try:
        return read_dataset(file) if file.is_file() else None
    except DamagedFileError as error:
        logger.warning("%s; made anew", error)
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be used: %s; made anew", file, error)
    return None


def _dataset(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Dataset:
    classes = tuple(facts["classes"])
    files: tuple[str, ...] = ()
    if "train.files" in tensors:
        text = tensors["train.files"].numpy().tobytes().decode(errors="surrogateescape")
        files = tuple(text.split(NAME_END))

    def part(name: str, files: tuple[str, ...] = ()) -> ImageSet:
        labels, tags = (tensors.get(f"{name}.{kind}") for kind in TARGETS)
        return ImageSet(tensors[f"{name}.images"], labels, classes, files, tags)

    train, test = part("train", files), part("test") if "test.images" in tensors else None
    skipped = tuple((path, reason) for path, reason in facts["skipped"])
    # Files of earlier versions may lack these.
    unread, side = tuple(facts.get("unread", ())), facts.get("shorter_side")
    return Dataset(facts["name"], train, test, skipped, unread, shorter_side=side)
