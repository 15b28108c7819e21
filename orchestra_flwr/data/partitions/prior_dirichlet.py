"""Classes drawn client by client: the label skew of Hsu et al., with clients of equal size."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import Section
from orchestra_flwr.data.partitions import Indices, Partition
from orchestra_flwr.seeding import numpy_generator

EVEN_ALPHA = 1e9  # a draw is the prior itself from here on; larger values overflow
MIN_ALPHA = 5e-324  # the smallest float: with 0, a draw has no shares


class PriorDirichlet(Partition):
    """Each client draws class shares from Dirichlet(alpha * prior), then its images by them.

    The prior is the classes' shares of all images. Clients differ in size by one image at most.
    `dirichlet` spreads each class over the clients instead: its alpha is this alpha times the
    prior. From Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification" (https://arxiv.org/abs/1909.06335).
    """

    class Settings(Section):
        # Multiplies the prior, so that it means the same for any number of classes.
        alpha: float = Field(0.1, gt=0)

    def split(self, labels: Tensor | None, count: int, clients: int, seed: int) -> list[Indices]:
        """Draws client after client; later ones draw from the classes that still have images."""
        assert labels is not None  # needs_labels
        random = numpy_generator(seed, "partition")
        of_images = labels.cpu().numpy()
        classes, left = np.unique(of_images, return_counts=True)
        alpha = np.maximum(min(self.settings.alpha, EVEN_ALPHA) * left / count, MIN_ALPHA)
        shuffled = [random.permutation(np.flatnonzero(of_images == label)) for label in classes]
        parts = []
        for size in map(len, np.array_split(np.arange(count), clients)):
            taken = _drawn(alpha, left, size, random)
            runs = zip(shuffled, left, taken, strict=True)
            # The last remaining images of each class are taken.
            images = [members[rest - count : rest] for members, rest, count in runs]
            parts.append(np.sort(np.concatenate(images)))
            left = left - taken
        return parts


def _drawn(
    alpha: NDArray[np.float64], left: Indices, size: int, random: np.random.Generator
) -> Indices:
    """How many images of each class a client draws, one by one and without replacement.

    A draw of an exhausted class is repeated: its share goes to the others in proportion.

    Args:
        alpha: concentrations, (classes,).
        left: images that are not yet taken, (classes,).
        size: the number of images to draw, at most the sum of `left`.

    Returns:
        int64, (classes,), of sum `size`.
    """
    shares = random.dirichlet(alpha)
    taken = np.zeros_like(left)
    while (missing := size - taken.sum()) > 0:
        open_ones = taken < left
        shares = np.where(open_ones, shares, 0.0)
        if not shares.sum() > 0:  # too small for a float: the open classes are drawn anew
            shares[open_ones] = random.dirichlet(alpha[open_ones])
        shares = shares / shares.sum()
        taken = np.minimum(taken + random.multinomial(missing, shares), left)
    return taken
