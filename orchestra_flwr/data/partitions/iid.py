"""Images spread evenly and at random."""

import numpy as np
from torch import Tensor

from orchestra_flwr.data.partitions import Indices, Partition
from orchestra_flwr.seeding import numpy_generator


class Iid(Partition):
    """Every client gets a random share; sizes differ by one image at most."""

    needs_labels = False

    def split(self, labels: Tensor | None, count: int, clients: int, seed: int) -> list[Indices]:
        """Deals shuffled images; labels play no part."""
        order = numpy_generator(seed, "partition").permutation(count)
        return [np.sort(part) for part in np.array_split(order, clients)]
