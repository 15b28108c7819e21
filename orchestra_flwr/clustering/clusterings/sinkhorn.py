"""Clusters of equal size on each client (Orchestra, Algorithm 1, line 18)."""

from pydantic import Field
from torch import Tensor

from orchestra_flwr.clustering.clusterings import LOCAL_CENTROIDS, MAX_POINTS
from orchestra_flwr.clustering.local_clusters import local_clustering
from orchestra_flwr.clustering.memory_clustering import MemoryClustering
from orchestra_flwr.config import Config
from orchestra_flwr.privacy.release import Contribution, Release
from orchestra_flwr.seeding import ClientSeed


class Sinkhorn(MemoryClustering):
    """At most L centroids of the features seen last.

    An image and its copies are one point, so every centroid stands for at least `privacy.k_min`
    images that differ in their pixels; with fewer there is no centroid.
    """

    class Settings(MemoryClustering.Settings):
        local_clusters: int = Field(8, ge=2, le=MAX_POINTS)  # the paper's L

    settings: Settings

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses centroids of more images than there are features."""
        k_min, memory = config.privacy.k_min, config.clustering.settings.memory
        if k_min > memory:
            raise ValueError(
                f"privacy.k_min={k_min}: must be at most clustering.memory={memory}, "
                "the images that local clustering sees"
            )

    @classmethod
    def release(cls, config: Config) -> Release:
        rows = config.clustering.settings.local_clusters
        return Release(
            {LOCAL_CENTROIDS: (rows, config.model.projector_dim)},
            label="centroids",
            min_images=config.privacy.k_min,
            max_norm=1.0,
            may_be_empty=True,
            first_round=0,
            made_private_by="clustering=private",
        )

    def end_round(self, images: Tensor, seed: ClientSeed) -> Contribution:
        """The centroids, and the size of the smallest cluster."""
        clusters = local_clustering(
            self.memory.latest(images),
            self.settings.local_clusters,
            seed.generator("cluster"),
            k_min=self.k_min,
        )
        smallest = min(clusters.sizes.tolist(), default=0)
        return Contribution({LOCAL_CENTROIDS: clusters.centroids}, smallest)
