"""One client for each class."""

from typing import ClassVar

import numpy as np
from torch import Tensor

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data.partitions import Indices, Partition


class ByClass(Partition):
    """A client holds all images of one class and has its name.

    With `data=image_folder` that is one client for each folder.
    """

    rule: ClassVar[str] = "partition=by_class has one client for each of the {} classes"

    def split(self, labels: Tensor | None, count: int, clients: int, seed: int) -> list[Indices]:
        """The images of each class that has any, in the order of the classes.

        Raises:
            ConfigError: there are not as many clients as classes.
        """
        assert labels is not None  # needs_labels
        classes = np.unique(labels.cpu().numpy())
        if len(classes) != clients:
            raise ConfigError(f"federation.clients={clients}: {self.rule.format(len(classes))}")
        return [np.flatnonzero(labels.cpu().numpy() == label) for label in classes]

    def names(self, classes: tuple[str, ...], labels: Tensor | None, clients: int) -> list[str]:
        """The names of the classes that have images."""
        assert labels is not None
        return [classes[label] for label in np.unique(labels.cpu().numpy())]
