"""Nearest neighbours, near-duplicates and outliers of embeddings."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn.functional import normalize

SIMILARITIES_AT_ONCE = 2**25
TYPICAL_NEIGHBOUR = 10  # at the distance of images that are alike, but not the same
FENCE = 1.5
DUPLICATE_SHARE = 0.1  # of the typical distance: nearer ones are near-duplicates
ROUNDING = 1e-6  # by which distances of the same images may differ


@dataclass(frozen=True)
class Neighbours:
    """The nearest other images of each image, by the cosine of their embeddings.

    Attributes:
        indices: (n, k) int64, the nearest one first.
        cosines: (n, k) float32, descending.
    """

    indices: Tensor
    cosines: Tensor


@torch.no_grad()
def nearest_neighbours(vectors: Tensor, k: int) -> Neighbours:
    """Exact, by comparing every image with every other one, block by block.

    Args:
        vectors: (n, dim), finite, of any norm.
        k: how many; n - 1 where there are fewer.
    """
    directions = normalize(vectors.float(), dim=1)
    count = len(directions)
    k = min(k, count - 1)
    indices, cosines = [], []
    for rows in torch.split(torch.arange(count), max(1, SIMILARITIES_AT_ONCE // count)):
        block = directions[rows] @ directions.T
        block[torch.arange(len(rows)), rows] = -torch.inf
        best = block.topk(k, dim=1)
        indices.append(best.indices)
        cosines.append(best.values.clamp(-1, 1))
    return Neighbours(torch.cat(indices), torch.cat(cosines))


def near_duplicates(neighbours: Neighbours) -> list[list[int]]:
    """Groups of images that are far nearer to each other than images usually are.

    A pair is a near-duplicate if its distance (1 - cosine) is at most a tenth of the median
    distance of an image to its tenth neighbour. The bound thus fits any encoder, however close
    together its embeddings are, and copies are near-duplicates even where most images have ten of
    them. Where images have no ten neighbours nothing shows what is usual, and only images with
    the same embeddings are near-duplicates. Groups are the connected components of such pairs.

    Returns:
        The groups of two or more images, the largest first; positions ascending.
    """
    count, k = neighbours.indices.shape
    if k == 0:
        return []
    distances = (1 - neighbours.cosines).numpy()
    known = k >= TYPICAL_NEIGHBOUR
    typical = float(np.median(distances[:, TYPICAL_NEIGHBOUR - 1])) if known else 0.0
    rows, columns = np.nonzero(distances <= max(DUPLICATE_SHARE * typical, ROUNDING))
    others = neighbours.indices.numpy()[rows, columns]
    graph = coo_array((np.ones(len(rows)), (rows, others)), shape=(count, count))
    _, group_of = connected_components(graph, directed=False)
    members: dict[int, list[int]] = {}
    for position, group in enumerate(group_of.tolist()):
        members.setdefault(group, []).append(position)
    groups = [group for group in members.values() if len(group) > 1]
    return sorted(groups, key=lambda group: (-len(group), group[0]))


def outlier_scores(neighbours: Neighbours) -> Tensor:
    """(n,) how far each image is from its neighbours: the mean distance (1 - cosine) to ten.

    Source:
        Angiulli and Pizzuti, Fast Outlier Detection in High Dimensional Spaces, 2002.
    """
    return (1 - neighbours.cosines[:, :TYPICAL_NEIGHBOUR]).mean(1)


def outliers(neighbours: Neighbours) -> list[int]:
    """The images with scores above Tukey's fence, the farthest first; there may be none.

    The fence is the upper quartile of the scores plus 1.5 times the interquartile range.
    """
    scores = outlier_scores(neighbours)
    if neighbours.indices.shape[1] == 0:
        return []
    lower, upper = np.quantile(scores.double().numpy(), [0.25, 0.75])
    fence = upper + max(FENCE * (upper - lower), ROUNDING)
    return [i for i in scores.argsort(descending=True, stable=True).tolist() if scores[i] > fence]
