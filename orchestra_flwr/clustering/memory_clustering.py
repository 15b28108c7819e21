"""Clusterings of the features that a client saw last in a round."""

from pydantic import Field
from torch import Tensor

from orchestra_flwr.clustering.clusterings import MAX_POINTS, Clustering, FeaturesOf
from orchestra_flwr.clustering.memory import FeatureMemory
from orchestra_flwr.config import Config, Section


class MemoryClustering(Clustering):
    """Remembers the target features of a round's last images, for a subclass to release."""

    class Settings(Section):
        memory: int = Field(128, ge=2, le=MAX_POINTS)  # target features of the last images

    def __init__(self, settings: Settings, config: Config) -> None:
        super().__init__(settings, config)
        self.memory = FeatureMemory(settings.memory, config.model.projector_dim)

    def start_round(self, round_: int, images: Tensor, features: FeaturesOf) -> None:
        """Clients are stateless: nothing is remembered from earlier rounds."""
        self.memory.clear()

    def observe(self, images: Tensor, features: Tensor) -> None:
        """Remembers the features."""
        self.memory.push(images, features)
