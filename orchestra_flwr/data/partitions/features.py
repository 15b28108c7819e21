"""Images that look alike to an encoder, spread unevenly: the feature skew of the Dec-SSL paper."""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from orchestra_flwr.config import ConfigError, Section
from orchestra_flwr.config.choices import PartitionConfig
from orchestra_flwr.data.image_files.decoded_cache import cache_dir
from orchestra_flwr.data.images import ImageSet
from orchestra_flwr.data.partitions import Indices, Partition
from orchestra_flwr.files import at_home
from orchestra_flwr.fingerprints import fingerprint_of
from orchestra_flwr.models import Encoder, encoder_at, extract_features
from orchestra_flwr.tensor_files import DamagedFileError, load_tensors, save_tensors

COMPONENTS = 30
MIN_VARIANCE = 1e-6  # as a share of the first component's: less is rounding, enlarged by whitening
KMEANS_STARTS = 10
SEED = 20221021  # of PCA and k-means: groups belong to the images, whatever the run's seed
BATCH = 256


class Features(Partition):
    """Groups from k-means on an encoder's features, then spread as classes are.

    The features are reduced to 30 principal components. An encoder that was trained on labels makes
    groups that depend on them. From Dec-SSL (https://arxiv.org/abs/2210.10947), appendix C.2.
    """

    class Settings(Section):
        encoder: str | None = None  # a run folder or an encoder.safetensors; must be given
        groups: int = Field(5, ge=2)
        whiten: bool = True  # components of equal variance, as in the released code
        deal: Literal["dirichlet", "prior_dirichlet", "skew"] = "dirichlet"  # spreads the groups
        alpha: float = Field(0.1, gt=0)  # of the first two
        beta: float = Field(0.1, ge=0, le=1)  # of the last one

    @classmethod
    def check(cls, config: Any) -> None:
        """An encoder must be named."""
        if config.partition.settings.encoder is None:
            raise ValueError(
                "partition.encoder: must be given, a run folder or an encoder.safetensors"
            )

    @classmethod
    def unread(cls, config: Any) -> dict[str, str]:
        """`alpha` and `beta` belong to different values of `deal`."""
        deal = config.partition.settings.deal
        other = "alpha" if deal == "skew" else "beta"
        return {**super().unread(config), f"partition.{other}": f"with partition.deal={deal}"}

    def check_files(self, channels: int, size: int) -> None:
        """Refuses an encoder that cannot be read, or expects other images."""
        self._encoder((channels, size, size))

    def groups(self, images: ImageSet) -> tuple[Tensor | None, tuple[str, ...]]:
        """The cluster of each image, computed once and stored in the user's cache folder.

        Other processes read the stored groups: their own features might differ by rounding.

        Raises:
            ConfigError: the encoder cannot be read or expects other images, its features are not
                finite or all alike, there are fewer images than groups, or the groups cannot be
                stored.
        """
        count, whiten = self.settings.groups, self.settings.whiten
        encoder = self._encoder(tuple(images.images.shape[1:]))
        if len(images) < count:
            raise ConfigError(f"partition.groups={count}: at most one for each of {len(images)}")
        key = _key(encoder, images.images, f"{count} {whiten}")
        file = cache_dir(None) / f"feature-groups-{key}.safetensors"
        names = tuple(f"group {group}" for group in range(count))
        try:
            return load_tensors(file)[0]["groups"], names
        except (OSError, DamagedFileError):
            pass
        features = extract_features(encoder, images.images, BATCH)
        if not torch.isfinite(features).all() or (features == features[0]).all():
            raise ConfigError(
                f"partition.encoder={self.settings.encoder}: makes no groups: the features of "
                "these images are not finite or all alike"
            )
        groups = torch.from_numpy(_clusters(features.numpy(), count, whiten))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(file, {"groups": groups}, {}, mode=0o600)
        except OSError as error:
            raise ConfigError(
                f"partition=features: the groups cannot be stored ({error}); "
                "set XDG_CACHE_HOME to a folder that can be written"
            ) from None
        return groups, names

    def split(self, labels: Tensor | None, count: int, clients: int, seed: int) -> list[Indices]:
        """Spreads the groups by the partition that `deal` names."""
        option = "beta" if self.settings.deal == "skew" else "alpha"
        options = {option: getattr(self.settings, option)}
        dealer: Partition = PartitionConfig(name=self.settings.deal, **options).build()
        return dealer.split(labels, count, clients, seed)

    def _encoder(self, shape: tuple[int, ...]) -> Encoder:
        named = self.settings.encoder
        encoder = encoder_at(f"partition.encoder={named}", at_home(named))
        expected = encoder.spec.channels, encoder.spec.image_size, encoder.spec.image_size
        if shape != expected:
            raise ConfigError(
                f"partition.encoder={named}: expects images {expected}, "
                f"these are {shape} (channels, height, width)"
            )
        return encoder


def _key(encoder: Encoder, images: Tensor, options: str) -> str:
    """A fingerprint of all that the groups depend on."""
    weights = encoder.backbone.state_dict().values()
    digests = [fingerprint_of(t.cpu().contiguous().numpy().tobytes()) for t in (*weights, images)]
    return fingerprint_of(" ".join([encoder.spec.model_dump_json(), options, *digests]), 32)


def _clusters(features: NDArray[np.float32], count: int, whiten: bool) -> Indices:
    """k-means on principal components: the cluster of each row, int64."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    pca = PCA(min(COMPONENTS, *features.shape), random_state=SEED)
    reduced = pca.fit_transform(features)
    variance = pca.explained_variance_
    if whiten:
        real = variance > MIN_VARIANCE * variance[0]
        reduced = reduced[:, real] / np.sqrt(variance[real])
    clusters = KMeans(count, n_init=KMEANS_STARTS, random_state=SEED).fit_predict(reduced)
    return np.asarray(clusters, dtype=np.int64)
