"""A user's copies of the training images in several styles."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from orchestra_flwr.config import ConfigError
from orchestra_flwr.console.printable import printable
from orchestra_flwr.data.image_files.archive import Archive, ImageFile
from orchestra_flwr.data.image_files.decoded_cache import cache_dir, cache_key, cached
from orchestra_flwr.data.image_files.decoding import decode_files
from orchestra_flwr.data.images import Dataset, ImageSet
from orchestra_flwr.files import at_home


@lru_cache(maxsize=1)
def read_copies(folder: str, size: int) -> Tensor:
    """All copies, decoded once and stored in the user's cache folder.

    Returns:
        uint8, (styles, copies, 3, size, size).

    Raises:
        ConfigError: there are none, they are not named and numbered as they should be, or one
            cannot be read.
    """
    with Archive(at_home(folder), "shift.folder") as archive:
        files, styles = _numbered(folder, archive.files())
        key = cache_key(size, archive.identity(files))

        def decode() -> Dataset:
            decoded = decode_files([file.name for file in files], archive.read, size)
            if decoded.broken:
                raise ConfigError(f"shift.folder={folder}: {': '.join(decoded.broken[0])}")
            return Dataset("styles", ImageSet(decoded.images))

        images = cached(cache_dir(None), "styles", key, decode).train.images
    return images.view(styles, -1, *images.shape[1:])


def _numbered(folder: str, files: Sequence[ImageFile]) -> tuple[list[ImageFile], int]:
    """The files by style and number, and how many styles there are.

    Raises:
        ConfigError: a file has no style or number, or a style lacks some.
    """
    placed: dict[tuple[str, int], ImageFile] = {}
    for file in files:
        style, stem = file.parts[:-1], Path(file.name).stem
        if not style or not stem.isdecimal():
            raise _wrong_copies(folder, f"not {printable(file.name)}")
        if placed.setdefault(("/".join(style), int(stem)), file) is not file:
            raise _wrong_copies(folder, f"{printable(file.name)} is there twice")
    styles = len({style for style, _ in placed})
    numbers = range(len(placed) // max(1, styles))
    if not placed or any((style, n) not in placed for style, _ in placed for n in numbers):
        raise _wrong_copies(folder, "each style with as many, from 0 without gaps")
    return [placed[key] for key in sorted(placed)], styles


def _wrong_copies(folder: str, what: str) -> ConfigError:
    return ConfigError(
        f"shift.folder={folder}: must hold <style>/<number>.png, copies of the training images; "
        f"{what}"
    )
