"""Images that a Python program has passed to a simulation."""

import hashlib
from pathlib import Path

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.data.image_files import FileOptions
from orchestra_flwr.data.image_files.decoded_cache import (
    cache_dir,
    cache_key,
    read_dataset,
    store_dataset,
)
from orchestra_flwr.data.images import UNLABELLED, Dataset
from orchestra_flwr.data.sources import Source, within_limits
from orchestra_flwr.data.subset import limited


class Stored(Source):
    """The data set in a file that :func:`store` wrote: all processes of a run can read it."""

    Settings = FileOptions

    @classmethod
    def survey(cls, data: DataConfig) -> tuple[int, int, int] | None:
        """By the file, within the limits of `data`; None where it cannot be read."""
        try:
            dataset = read_dataset(Path(data.settings.root or ""))
        except (OSError, ValueError):  # as :meth:`load` says
            return None
        labels, test = dataset.train.labels, dataset.test
        labelled = 0 if labels is None else int((labels != UNLABELLED).sum())
        return within_limits(data, len(dataset.train), labelled, 0 if test is None else len(test))

    def load(self) -> Dataset:
        """Maps the file into memory.

        Raises:
            ConfigError: it is not given, missing or damaged.
        """
        if not self.settings.root:
            raise ConfigError(
                "data=stored: is for orchestra_flwr.simulate(dataset=...); "
                "images in files are data=image_folder data.root=..."
            )
        try:
            dataset = read_dataset(Path(self.settings.root))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"data.root={self.settings.root}: must be a file that orchestra_flwr.simulate has "
                f"stored; call it again with dataset=... ({error})"
            ) from None
        test = dataset.test
        return Dataset(
            self.data.name,
            limited(dataset.train, self.data.train_limit),
            None if test is None else limited(test, self.data.test_limit),
            shorter_side=dataset.shorter_side,
        )


def store(dataset: Dataset, cache: str | None = None) -> Path:
    """Writes a data set, for its owner alone; the same images and labels have the same file.

    Raises:
        OSError: names the file that could not be written.
    """
    parts = [dataset.train, *([dataset.test] if dataset.test else [])]
    facts = [
        (
            list(part.images.shape),
            hashlib.sha256(part.images.contiguous().numpy().data).hexdigest(),
            [] if part.labels is None else part.labels.tolist(),
            part.classes,
        )
        for part in parts
    ]
    file = cache_dir(cache) / f"{dataset.name}-{cache_key(facts)}.safetensors"
    try:
        read_dataset(file)
    except (OSError, ValueError):  # not stored yet, or damaged since
        store_dataset(file, dataset)
    return file
