"""STL-10, from its binary files."""

from pathlib import Path

import numpy as np
import torch

from orchestra_flwr.data.image_files import FileOptions
from orchestra_flwr.data.image_files.archive import wrong_root
from orchestra_flwr.data.image_files.decoded_cache import cache_dir, cache_key, cached
from orchestra_flwr.data.images import Dataset, ImageSet, check_memory_for
from orchestra_flwr.data.sources import Source
from orchestra_flwr.data.subset import balanced_subset
from orchestra_flwr.square_image import resize

FOLDER = "stl10_binary"
SIZE = 96
CLASSES = (
    "airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck",
)  # fmt: skip
PARTS = ("train", "test")
FILES = tuple(f"{part}_{kind}.bin" for part in PARTS for kind in "Xy")


class Stl10(Source):
    """5,000 training and 8,000 test images of 96 x 96 pixels, 10 classes (Coates et al., 2011).

    The 100,000 images without labels are not used.
    """

    classes = len(CLASSES)
    Settings = FileOptions

    def load(self) -> Dataset:
        """Reads them from `data.root`: the folder `stl10_binary` or the one around it.

        Raises:
            ConfigError: the root is not given, or a file is missing or damaged.
        """
        root = self.settings.place(
            f"the folder of the unpacked {FOLDER}.tar.gz for data={self.data.name}"
        )
        folder = root / FOLDER if (root / FOLDER).is_dir() else root
        stamps = []
        for name in FILES:
            if not (folder / name).is_file():
                raise wrong_root(root, f"holds no {name}; unpack {FOLDER}.tar.gz there")
            status = (folder / name).stat()
            stamps.append([name, status.st_size, status.st_mtime_ns])
        limits = {"train": self.data.train_limit, "test": self.data.test_limit}

        def decode() -> Dataset:
            size = self.data.image_size
            train, test = (_image_set(root, folder, part, limits[part], size) for part in PARTS)
            return Dataset(self.data.name, train, test, shorter_side=SIZE)

        # The files have the same sizes in every such folder, so its path is part of the key.
        key = cache_key(str(folder.resolve()), stamps, self.data.image_size, limits)
        return cached(cache_dir(self.settings.cache), self.data.name, key, decode)


def _image_set(root: Path, folder: Path, part: str, limit: int | None, size: int) -> ImageSet:
    """Images and labels of `train` or `test`.

    An image is stored as its red, green and blue channels, each column by column; classes are
    numbered from 1.
    """
    images = folder / f"{part}_X.bin"
    labels = np.fromfile(folder / f"{part}_y.bin", dtype=np.uint8).astype(np.int64) - 1
    if not len(labels) or images.stat().st_size != len(labels) * 3 * SIZE * SIZE:
        raise wrong_root(root, f"{part}_X.bin and {part}_y.bin do not fit each other")
    if labels.min() < 0 or labels.max() >= len(CLASSES):
        raise wrong_root(root, f"{part}_y.bin is damaged: classes must be 1 to {len(CLASSES)}")
    by_column = np.memmap(images, dtype=np.uint8, mode="r", shape=(len(labels), 3, SIZE, SIZE))
    chosen = balanced_subset(labels, len(labels), limit)
    check_memory_for(len(chosen), size)
    pixels = torch.from_numpy(by_column[chosen].swapaxes(2, 3).copy())
    return ImageSet(resize(pixels, size), torch.from_numpy(labels[chosen]), CLASSES)
