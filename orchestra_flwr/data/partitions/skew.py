"""Clients with a share of images that are of the clients' own classes alone."""

from collections.abc import Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Section
from orchestra_flwr.data.partitions import Indices, Partition
from orchestra_flwr.seeding import numpy_generator


class Skew(Partition):
    """A share beta of each client's images is of any class, the rest of classes of its own.

    With K clients and N classes a client has N / K classes of its own; K = N and beta = 0 is
    `by_class`. Where K is larger, clients share a class. Sizes differ by one image at most. From
    Hsieh et al., "The Non-IID Data Quagmire" (https://arxiv.org/abs/1910.00189), as the Dec-SSL
    paper uses it (https://arxiv.org/abs/2210.10947).
    """

    class Settings(Section):
        beta: float = Field(0.1, ge=0, le=1)  # share of images that are of any class; 1: iid

    def split(self, labels: Tensor | None, count: int, clients: int, seed: int) -> list[Indices]:
        """Random images of each class, 1 - beta of it, are cut into runs in the classes' order."""
        assert labels is not None  # needs_labels
        return [np.sort(np.concatenate(runs)) for runs in self._dealt(labels, clients, seed)]

    def cut_order(
        self, parts: Sequence[Indices], labels: Tensor | None, seed: int
    ) -> Sequence[Indices]:
        """First the images of the client's own classes, then those of any class."""
        assert labels is not None  # needs_labels
        return [np.concatenate(runs) for runs in self._dealt(labels, len(parts), seed)]

    def _dealt(self, labels: Tensor, clients: int, seed: int) -> list[tuple[Indices, Indices]]:
        """For each client the images of its own classes, class by class, and those of any class."""
        random = numpy_generator(seed, "partition")
        of_images = labels.cpu().numpy()
        of_own_classes, of_any = [], []
        for label in np.unique(of_images):
            members = random.permutation(np.flatnonzero(of_images == label))
            cut = round((1 - self.settings.beta) * len(members))
            of_own_classes.append(members[:cut])
            of_any.append(members[cut:])
        own_runs = np.array_split(np.concatenate(of_own_classes), clients)
        whole = map(len, np.array_split(of_images, clients))  # how many images a client has
        rest = [count - len(run) for count, run in zip(whole, own_runs, strict=True)]
        any_images = random.permutation(np.concatenate(of_any))
        any_runs = np.split(any_images, np.cumsum(rest)[:-1])
        return list(zip(own_runs, any_runs, strict=True))
