"""Where images lie on a map, and which clusters they form."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

COMPONENTS = 50  # that t-SNE sees: more only cost time
PERPLEXITY = 30.0
MIN_IMAGES = 5  # images that t-SNE can place


@dataclass(frozen=True)
class Clusters:
    """Clusters of images, the largest one first.

    Attributes:
        labels: (n,) int64, the cluster of each image.
        typical: for each cluster its images, the nearest to its centre first.
    """

    labels: NDArray[np.int64]
    typical: list[NDArray[np.int64]]


def place_images(vectors: Tensor, seed: int) -> NDArray[np.float64]:
    """Positions in the unit square, similar images side by side: t-SNE after PCA.

    Args:
        vectors: (n, dim) embeddings; only their directions count.
        seed: of both steps.

    Returns:
        (n, 2), with the aspect ratio that t-SNE gives.

    Source:
        van der Maaten and Hinton, Visualizing Data using t-SNE, 2008.
    """
    from sklearn.manifold import TSNE

    points = _principal_components(vectors, seed)
    count, width = points.shape
    if count < MIN_IMAGES or width < 2 or not points.any():
        return _in_unit_square(np.pad(points[:, :2], ((0, 0), (0, max(0, 2 - width)))))
    tsne = TSNE(
        perplexity=min(PERPLEXITY, (count - 1) / 3),
        init="pca",
        learning_rate="auto",
        random_state=seed,
    )
    return _in_unit_square(tsne.fit_transform(points.astype(np.float32)).astype(np.float64))


def cluster_images(vectors: Tensor, count: int, seed: int) -> Clusters:
    """k-means on the directions of embeddings (n, dim), in at most `count` clusters."""
    from sklearn.cluster import KMeans

    points = _principal_components(vectors, seed)
    count = min(count, len(np.unique(points.round(6), axis=0)))
    fitted = KMeans(count, n_init=4, random_state=seed).fit(points)
    order = np.argsort(-np.bincount(fitted.labels_, minlength=count), kind="stable")
    labels = np.argsort(order)[fitted.labels_]
    distances = np.linalg.norm(points - fitted.cluster_centers_[fitted.labels_], axis=1)
    nearest_first = np.lexsort((distances, labels))  # cluster after cluster
    typical = np.split(nearest_first, np.cumsum(np.bincount(labels, minlength=count))[:-1])
    return Clusters(labels.astype(np.int64), typical)


def _principal_components(vectors: Tensor, seed: int) -> NDArray[np.float64]:
    from sklearn.decomposition import PCA

    directions = normalize(vectors.double(), dim=1).numpy()
    components = min(COMPONENTS, *directions.shape)
    centred = directions - directions.mean(0)
    if len(directions) < 2 or np.abs(centred).max() < 1e-9:  # nothing that could differ
        return np.zeros((len(directions), min(2, components)))
    points: NDArray[np.float64] = PCA(components, random_state=seed).fit_transform(centred)
    return points


def _in_unit_square(points: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = points.min(0), points.max(0)
    side = float((high - low).max()) or 1.0
    inside: NDArray[np.float64] = (points - (low + high) / 2) / side + 0.5
    return inside
