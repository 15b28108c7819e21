"""Decoding many image files of any kind at once; broken ones are left out."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import counted
from orchestra_flwr.data.image_files.archive import first_ones
from orchestra_flwr.data.images import check_memory_for
from orchestra_flwr.machine_limits import usable_cpus
from orchestra_flwr.optional_formats import missing_library
from orchestra_flwr.square_image import broken_because, decode_image, opened_image

logger = logging.getLogger("orchestra_flwr.data")

PROGRESS_SECONDS, MAX_SECONDS = 2.0, 60.0  # first and longest wait between lines; it doubles
MAX_THREADS = 8  # more would only wait for Python's lock
CHUNK = 64  # files a task
MEASURED = 100  # files whose size before resizing is looked at


@dataclass(frozen=True)
class Decoded:
    """The result of decoding a list of files."""

    images: Tensor  # uint8, (n, 3, size, size), of the n that could be read, in the list's order
    good: list[int]  # their n positions in the list
    broken: tuple[tuple[str, str], ...]  # (name, reason) of the others, printable
    # Names of those among them that may be readable later (:func:`any_readable`): their content
    # was never seen, such as that of files without permission to read, or their format needs a
    # library that is not installed
    unread: tuple[str, ...] = ()
    # The median over some files of the lesser of height and width, in pixels; None without any
    shorter_side: int | None = None


class _Failure(NamedTuple):
    reason: str
    unread: bool


def decode_files(names: Sequence[str], read: Callable[[str], bytes], size: int) -> Decoded:
    """Decodes files in several threads; broken ones are named in a warning and left out.

    Args:
        names: the files, in the order of the result.
        read: gives a file's content; called from several threads.
        size: height and width of the result in pixels.

    Raises:
        ConfigError: this machine's memory cannot hold them.
    """
    check_memory_for(len(names), size)
    images = np.empty((len(names), 3, size, size), dtype=np.uint8)
    sides: list[int] = []
    step = 1 + len(names) // MEASURED

    def decode_one(position: int) -> _Failure | None:
        content = None
        try:
            content = read(names[position])
            images[position] = decode_image(content, size)
            if position % step == 0:
                with opened_image(content) as image:
                    sides.append(min(image.size))
        except Exception as error:  # decoders raise all kinds of errors for broken files
            return _failure(error, content)
        return None

    def decode_chunk(start: int) -> list[_Failure | None]:
        return [decode_one(position) for position in range(start, min(start + CHUNK, len(names)))]

    started = reported = time.monotonic()
    wait = PROGRESS_SECONDS
    failures: list[_Failure | None] = []
    with ThreadPoolExecutor(min(MAX_THREADS, usable_cpus())) as pool:
        try:
            for chunk in pool.map(decode_chunk, range(0, len(names), CHUNK)):
                failures += chunk
                if time.monotonic() - reported > wait:
                    reported, wait = time.monotonic(), min(2 * wait, MAX_SECONDS)
                    logger.info("decoded %s of %s images", f"{len(failures):,}", f"{len(names):,}")
        except BaseException:  # Ctrl-C must not wait for all other images
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if reported > started:
        logger.info("decoded all in %.0f s", time.monotonic() - started)
    side = int(np.median(sides)) if sides else None
    return replace(_without_failures(images, names, failures), shorter_side=side)


def _failure(error: Exception, content: bytes | None) -> _Failure:
    if content is None:  # a ValueError of `read` is about the file itself: it is empty, for example
        unread = not isinstance(error, ValueError)
    else:
        unread = isinstance(error, MemoryError) or missing_library(content) is not None
    return _Failure(printable(broken_because(error)), unread)


def _without_failures(
    images: NDArray[np.uint8], names: Sequence[str], failures: Sequence[_Failure | None]
) -> Decoded:
    """The result, whose images are moved together at the start of `images`."""
    good = [position for position, failure in enumerate(failures) if failure is None]
    failed = [(printable(n), f) for n, f in zip(names, failures, strict=True) if f is not None]
    broken = tuple((name, failure.reason) for name, failure in failed)
    unread = tuple(name for name, failure in failed if failure.unread)
    if broken:
        logger.warning("skipped %s: %s", counted(len(broken), "image file"), first_ones(broken))
        for row, position in enumerate(good):  # in place: a copy would double the memory
            images[row] = images[position]
    return Decoded(torch.from_numpy(images[: len(good)]), good, broken, unread)


def any_readable(
    unread: Collection[str], names: Iterable[str], read: Callable[[str], bytes]
) -> bool:
    """Whether one of the unread files can be read by now, so that all must be decoded again.

    Repaired permissions, disks and zips change neither size, time nor checksum of a file, and
    neither does a library that was installed.

    Args:
        unread: as in :class:`Decoded`.
        names: of all files.
        read: as for :func:`decode_files`.
    """
    retried = {*unread}
    for name in names if retried else ():
        if printable(name) in retried:
            with suppress(Exception):  # any error, as in the first reading
                if missing_library(read(name)) is None:
                    return True
    return False
