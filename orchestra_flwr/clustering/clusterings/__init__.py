"""What clients make of their features for the server to cluster: one file a choice."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from orchestra_flwr.config import Config, Plugin
from orchestra_flwr.privacy.release import Contribution, Release
from orchestra_flwr.seeding import ClientSeed

FeaturesOf = Callable[[Tensor], Tensor]  # of images, (B, C, H, W) uint8 to (B, D) unit vectors

LOCAL_CENTROIDS = "local_centroids"  # the array that clients contribute
MAX_POINTS = 2**14  # a plan of as many clusters takes 2 GB


class Clustering(nn.Module, Plugin, ABC):
    """A client's side of clustering; the server uses only its first centroids.

    Its tensors never leave the client, and are gone after the round.

    Class attributes:
        Settings: its own options under `clustering.`.
        takes_clean_features: whether it calls the `features` of :meth:`start_round`. Heads then
            keep the statistics that evaluation mode needs.
    """

    takes_clean_features: ClassVar[bool] = False

    def __init__(self, settings: Any, config: Config) -> None:
        super().__init__()
        self.settings = settings
        self.shape = config.clustering.global_clusters, config.model.projector_dim
        self.k_min = config.privacy.k_min

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Options of other clusterings."""
        why = f"with clustering={config.clustering.name}"
        return {f"clustering.{option}": why for option in config.clustering.options_of_others}

    @classmethod
    @abstractmethod
    def release(cls, config: Config) -> Release:
        """What clients send: the array LOCAL_CENTROIDS of (rows, `model.projector_dim`)."""

    def first_centroids(self) -> Tensor:
        """(G, D) global centroids before the first clustering; zeros: none yet."""
        return torch.zeros(self.shape)

    def start_round(self, round_: int, images: Tensor, features: FeaturesOf) -> None:
        """Called before the first step of a round.

        Args:
            round_: from 0.
            images: (n, C, H, W) uint8, all of the client's.
            features: makes target features by the model as it was received, in evaluation mode and
                without augmentation.
        """

    def observe(self, images: Tensor, features: Tensor) -> None:
        """Observes the target features of a step, also in round 0, in which nothing is trained.

        Args:
            images: (B,) which of the client's images these are.
            features: (B, D) unit vectors of augmented views.
        """

    @abstractmethod
    def end_round(self, images: Tensor, seed: ClientSeed) -> Contribution:
        """What the client sends after its last step.

        Args:
            images: (n, C, H, W) uint8, all of the client's.
            seed: the client's randomness in this round.
        """
