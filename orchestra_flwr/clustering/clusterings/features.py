"""NOT PRIVATE: clients send features of single images (the paper's baseline "Reps", Table 2)."""

from torch import Tensor

from orchestra_flwr.clustering.clusterings import LOCAL_CENTROIDS
from orchestra_flwr.clustering.memory_clustering import MemoryClustering
from orchestra_flwr.config import Config
from orchestra_flwr.privacy.release import Contribution, Release
from orchestra_flwr.seeding import ClientSeed


class Features(MemoryClustering):
    """The features seen last, as they are, one for each different image."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Sharing features needs privacy.k_min=1 as well, so that it is never chosen by mistake."""
        if config.privacy.k_min != 1:
            raise ValueError(
                f"privacy.k_min={config.privacy.k_min}: must be 1 with clustering=features, "
                "which sends the features of single images and is NOT PRIVATE"
            )

    @classmethod
    def release(cls, config: Config) -> Release:
        """A row for each feature that is remembered."""
        rows = config.clustering.settings.memory
        return Release(
            {LOCAL_CENTROIDS: (rows, config.model.projector_dim)},
            label="features",
            min_images=config.privacy.k_min,
            max_norm=1.0,
            may_be_empty=True,
            first_round=0,
            made_private_by="clustering=private",
            exposes="the features of single images (clustering=features)",
        )

    def end_round(self, images: Tensor, seed: ClientSeed) -> Contribution:
        """The features, newest first."""
        return Contribution({LOCAL_CENTROIDS: self.memory.latest(images)}, smallest_group=1)
