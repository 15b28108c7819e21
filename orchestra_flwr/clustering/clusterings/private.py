"""Differentially private centroids of all of a client's images."""

import hashlib
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from orchestra_flwr.clustering.clusterings import (
    LOCAL_CENTROIDS,
    MAX_POINTS,
    Clustering,
    FeaturesOf,
)
from orchestra_flwr.clustering.private_kmeans import private_clustering
from orchestra_flwr.config import Config, PrivacyConfig, Section
from orchestra_flwr.data import first_occurrences
from orchestra_flwr.models import check_statistics
from orchestra_flwr.privacy.accounting import calibrate
from orchestra_flwr.privacy.release import Contribution, Release
from orchestra_flwr.seeding import ClientSeed, torch_generator

FEATURE_BATCH = 64  # images in every batch that features are made of
# Before the second round clients receive an untrained model, whose features are all alike.
FIRST_ROUND = 2


class Private(Clustering):
    """Noisy centroids of one feature for each different image, by the model as received.

    After training, every image would have changed the features of all others.
    """

    class Settings(Section):
        local_clusters: int = Field(8, ge=2, le=MAX_POINTS)  # the paper's L, at most

    takes_clean_features: ClassVar[bool] = True

    settings: Settings

    def __init__(self, settings: Settings, config: Config) -> None:
        super().__init__(settings, config)
        self._privacy = config.privacy
        self._seed = config.seed
        self._features: Tensor | None = None  # (m, D) of the m different images

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses inconsistent privacy options, and models that differ between clients."""
        _check_privacy(config.privacy, config.model.projector_dim)
        merging = config.merging
        if merging.plugin.remembers:
            raise ValueError(
                f"merging={merging.name}: must be replace with clustering=private, whose centroids "
                "are of features of the model as the server sent it"
            )
        check_statistics(config, "clustering=private", sent=True)

    @classmethod
    def release(cls, config: Config) -> Release:
        """At most L centroids, from the second round on."""
        rows, privacy = config.clustering.settings.local_clusters, config.privacy
        return Release(
            {LOCAL_CENTROIDS: (rows, config.model.projector_dim)},
            label="centroids",
            min_images=privacy.k_min,
            max_norm=1.0,
            may_be_empty=True,
            first_round=FIRST_ROUND,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
        )

    def first_centroids(self) -> Tensor:
        """Random directions, known to all who know the run's seed: they reveal nothing."""
        generator = torch_generator(self._seed, "first centroids")
        return F.normalize(torch.randn(self.shape, generator=generator), dim=1)

    def start_round(self, round_: int, images: Tensor, features: FeaturesOf) -> None:
        """Makes the features, so that no image changes a bit of another's.

        Hence evaluation mode: with BatchNorm's batch statistics, an image changes the features of
        others. Copies of an image count as one: an image is protected with all its copies.

        Libraries choose kernels, and so the order of additions, by the size of a batch. In a last
        batch of the remaining images, one image more could change the last bits of others, and so
        the side of a hyperplane on which they lie. All batches therefore have one size; the last
        one is filled up with black images.
        """
        if round_ < FIRST_ROUND:
            return
        different = torch.unique(first_occurrences(images)).to(images.device)
        if len(different) < len(images):
            images = images[different]
        missing = -len(images) % FEATURE_BATCH
        batches = torch.split(F.pad(images, (0, 0, 0, 0, 0, 0, 0, missing)), FEATURE_BATCH)
        self._features = torch.cat([features(batch) for batch in batches])[: len(images)]

    def end_round(self, images: Tensor, seed: ClientSeed) -> Contribution:
        """The centroids; how many images are behind each of them stays secret."""
        privacy, features = self._privacy, self._features
        assert privacy.epsilon is not None and features is not None
        self._features = None
        # A simulation may repeat a round with another model: with the same noise, the difference
        # of the two releases would have none.
        made_of = features.cpu().numpy().data
        key = hashlib.blake2b(made_of, key=seed.noise_key(), digest_size=32).digest()
        centroids = private_clustering(
            features,
            self.settings.local_clusters,
            calibrate(privacy.epsilon, privacy.delta),
            key,
            k_min=self.k_min,
            dimensions=privacy.dimensions,
        )
        return Contribution({LOCAL_CENTROIDS: centroids})


def _check_privacy(privacy: PrivacyConfig, width: int) -> None:
    epsilon, total, dimensions = privacy.epsilon, privacy.total_epsilon, privacy.dimensions
    if epsilon is None:
        raise ValueError("privacy.epsilon: must be given with clustering=private")
    if total is not None and total < epsilon:
        raise ValueError(
            f"privacy.total_epsilon={total:g}: must be at least privacy.epsilon={epsilon:g}"
        )
    if dimensions is not None and dimensions >= width:
        raise ValueError(
            f"privacy.dimensions={dimensions}: must be below model.projector_dim={width}"
        )
