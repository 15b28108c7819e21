"""CIFAR-10, downloaded on first use."""

from typing import ClassVar

from orchestra_flwr.data.image_files import FileOptions
from orchestra_flwr.data.image_files.cifar_archives import load_cifar
from orchestra_flwr.data.images import Dataset
from orchestra_flwr.data.sources import Source


class Cifar10(Source):
    """50,000 training and 10,000 test images of 32 x 32 pixels, 10 classes (Krizhevsky, 2009)."""

    classes = 10
    reader: ClassVar[str] = "CIFAR10"  # torchvision's class
    Settings = FileOptions

    def load(self) -> Dataset:
        """Reads them from `data.root` or, without it, from the cache folder."""
        from torchvision import datasets  # takes seconds, only here

        return load_cifar(getattr(datasets, self.reader), self.data, self.settings)
