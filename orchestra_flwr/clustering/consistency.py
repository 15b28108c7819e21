"""How well assignments to clusters agree: of two encoders, and of two rounds."""

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def assignment_measures(
    target: Tensor, online: Tensor, centroids: Tensor, temperature: float
) -> dict[str, Tensor]:
    """Whether the clusters are being learned, measured on one batch.

    Args:
        target: (B, D) target features, unit vectors.
        online: (B, D) online features of other augmentations of the same images, unit vectors.
        centroids: (G, D) global centroids, unit vectors.
        temperature: of the softmax that assigns.

    Returns:
        `agreement`: share of the images that are nearest to the same centroid in both; 1 / G by
        chance. `assignment_entropy`: mean over the images of the entropy of the target's
        assignment, in nats; log G if it is uniform.
    """
    cosines = target @ centroids.T
    same = cosines.argmax(dim=1) == (online @ centroids.T).argmax(dim=1)
    log_assignment = F.log_softmax(cosines / temperature, dim=1)
    entropy = -(log_assignment.exp() * log_assignment).sum(dim=1)
    return {"agreement": same.float().mean(), "assignment_entropy": entropy.mean()}


def consistency(points: Tensor, previous: Tensor, current: Tensor) -> float:
    """How much two rounds' centroids group the same points alike, up to renumbering.

    Args:
        points: (N, D) unit vectors.
        previous: (G, D) the last round's centroids, unit vectors.
        current: (G, D) this round's.

    Returns:
        Of the pairs of points that share their nearest centroid before or after, the fraction that
        share it both times (Jaccard, 1912); 1 where there are no such pairs.
    """
    old, new = ((points @ centroids.T).argmax(dim=1) for centroids in (previous, current))
    groups = (old, new, old * len(current) + new)  # pairs are counted by the sizes of groups
    sizes = (torch.unique(group, return_counts=True)[1] for group in groups)
    before, after, both = (int((size * (size - 1)).sum()) for size in sizes)
    either = before + after - both
    return both / either if either else 1.0
