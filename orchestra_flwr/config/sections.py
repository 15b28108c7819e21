"""The sections of a run's configuration: typed, frozen, each value checked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from orchestra_flwr.config.section import Composed, ConfigError, Section, parse

Precision = Literal["float32", "bfloat16"]
Setting = Literal["device", "silo"]
Wire = Literal["float32", "float16", "int8"]


class AugmentationConfig(Section):
    """Limits that the images set on every method's augmentations (digits must not be mirrored)."""

    flip: bool = True
    crop_min: float | None = Field(None, gt=0, le=1)  # least area of a crop; None: the recipe's own


class DataConfig(Section):
    """Which images are used, and how they are made fit."""

    name: Literal["digits", "cifar10", "cifar100", "image_folder"]
    root: str | None = None
    image_size: int = Field(32, ge=8, le=512)
    train_limit: int | None = Field(None, ge=1)
    test_limit: int | None = Field(None, ge=1)
    cache: str | None = None
    augmentation: AugmentationConfig = AugmentationConfig()

    @property
    def label(self) -> str:
        """What to call these images: of an image folder, its own name as well."""
        own = Path(self.root or "").stem if self.name == "image_folder" else ""
        return f"{self.name}-{own}" if own else self.name

    @property
    def channels(self) -> int:
        """Colour channels of an image."""
        return 1 if self.name == "digits" else 3

    @property
    def classes(self) -> int | None:
        """Number of classes; None where it depends on the images."""
        return {"digits": 10, "cifar10": 10, "cifar100": 100}.get(self.name)


class PartitionConfig(Section):
    """How the images are spread over the clients."""

    name: Literal["iid", "dirichlet", "by_class"]
    alpha: float = Field(0.1, gt=0)


class ModelConfig(Section):
    """The backbone and its projector."""

    name: Literal["resnet18", "convnet"]
    norm: Literal["batch", "group"] = "batch"
    width: int = Field(64, ge=8, multiple_of=8)
    projector_dim: int = Field(512, ge=8)


class MethodConfig(Section):
    """The method's name and its own options, which the method checks itself.

    `paper` holds the values that the paper found for each setting, for `conf/` to point at.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    paper: dict[Setting, dict[str, float]] = Field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """The method's own keys, unchecked."""
        return dict(self.model_extra or {})


class ClusteringConfig(Section):
    """Local and global clustering (the paper's L, G and memory)."""

    name: Literal["sinkhorn", "private", "features"]
    global_clusters: int = Field(ge=2)
    local_clusters: int = Field(ge=2)
    memory: int = Field(128, ge=2)
    solver: Literal["alternating", "gradient"] = "alternating"


class FederationConfig(Section):
    """Population, cohort and rounds."""

    min_clients: int | None = Field(None, ge=1)  # of a deployment; a simulation has all its clients
    clients: int = Field(ge=1)
    participation: float = Field(gt=0, le=1)
    rounds: int = Field(ge=1)
    min_success: float = Field(0.5, gt=0, le=1)
    weighting: Literal["samples", "batches", "uniform"] = "samples"
    merge: Literal["replace", "fedu", "fedema"] = "replace"
    fedu_threshold: float = Field(0.4, ge=0)
    fedema_lambda: float | None = Field(None, ge=0)  # None: by fedema_mu, for each client
    fedema_mu: float = Field(0.7, gt=0, le=1)
    round_timeout: float = Field(3600, gt=0)
    min_images: int = Field(1, ge=1)
    wire: Wire = "float32"


class PrivacyConfig(Section):
    """What may be learned about a client or an image from what is sent."""

    # One image's centroid is its feature, which never leaves a client; 2 forbids just that.
    k_min: int = Field(2, ge=1)  # least images that a centroid stands for
    clip: float | None = Field(None, gt=0)  # L2 norm of a client's update; None: not bounded
    noise_multiplier: float = Field(0.0, ge=0)  # noise in the sum of updates, in units of clip
    delta: float = Field(1e-3, ge=1e-12, lt=1)  # below it and epsilon, accounting takes terabytes
    epsilon: float | None = Field(None, ge=1e-4)  # of one release of private centroids
    total_epsilon: float | None = Field(None, gt=0)  # of all that a client releases; None: any
    dimensions: int | None = Field(None, ge=1)  # of features before the noise; None: as they are


class TrainingConfig(Section):
    """Local training of a client."""

    setting: Setting = "device"  # whose values of `method.paper` stand in `conf/`
    local_epochs: int = Field(ge=1)
    batch_size: int = Field(ge=2)
    lr: float = Field(gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0)
    precision: Precision = "float32"
    threads: int = Field(1, ge=1)
    cuda_graphs: bool = False
    drop_last: bool = False


class ScoresConfig(Section):
    """How features are made and judged."""

    batch_size: int = Field(256, ge=1)
    knn_k: int = Field(200, ge=1)
    knn_temperature: float = Field(0.1, gt=0)


class EvaluationConfig(ScoresConfig):
    """How often and how a run's encoders are judged."""

    every: int = Field(ge=1)
    probe: Literal["converged", "published"] = "converged"
    backbone: str | None = None  # which one is kept; None: the method's first
    unsupervised: bool = False


class RayConfig(Section):
    """Ray's virtual client engine."""

    workers: int | None = Field(None, ge=1)  # None: as many as the resources hold
    gpus_per_client: float | None = Field(None, ge=0)  # None: by the memory that a client needs
    address: str | None = Field(None, min_length=1)  # of a cluster to join; None: this machine

    @model_validator(mode="after")
    def _a_cluster_has_its_own_workers(self) -> Self:
        if self.address is not None and self.workers is not None:
            raise ValueError(
                f"ray.workers={self.workers}: must not be given with ray.address, "
                "the cluster's resources say how many clients it trains"
            )
        return self


class LoggingConfig(Section):
    """What a person sees."""

    tensorboard: bool = False
    progress: Literal["auto", "live", "plain", "off"] = "auto"


def known_device(value: str) -> str:
    """Checks the name of a device."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError(f"device={value}: must be auto, cpu, cuda or cuda:N")
    return value


class Config(Composed):
    """A whole run."""

    file = "config"

    method: MethodConfig
    model: ModelConfig
    data: DataConfig
    partition: PartitionConfig
    clustering: ClusteringConfig
    federation: FederationConfig
    training: TrainingConfig
    evaluation: EvaluationConfig
    privacy: PrivacyConfig = PrivacyConfig()
    ray: RayConfig = RayConfig()
    logging: LoggingConfig = LoggingConfig()
    engine: Literal["ray", "inline"] = "ray"
    device: str = "auto"
    seed: int = Field(0, ge=0)
    name: str = Field("orchestra", min_length=1)
    run_dir: str | None = None
    resume: str | None = None

    _device_is_known = field_validator("device")(known_device)

    @model_validator(mode="after")
    def _privacy_can_be_kept(self) -> Self:
        k_min, memory = self.privacy.k_min, self.clustering.memory
        if k_min > memory:
            raise ValueError(
                f"privacy.k_min={k_min}: must be at most clustering.memory={memory}, "
                "the images that local clustering sees"
            )
        # Who shares features must say so twice: nobody gets there by one slip.
        if self.clustering.name == "features" and k_min != 1:
            raise ValueError(
                f"privacy.k_min={k_min}: must be 1 with clustering=features, "
                "which sends the features of single images and is NOT PRIVATE"
            )
        self._check_update_privacy()
        self._check_centroid_privacy()
        # The scores that clients send were computed from their images without any noise.
        private = self.clustering.name == "private" or self.privacy.noise_multiplier > 0
        if self.evaluation.unsupervised and private:
            raise ValueError(
                "evaluation.unsupervised=True: clients' scores are not differentially private, "
                "must be false with clustering=private or privacy.noise_multiplier"
            )
        return self

    def _check_centroid_privacy(self) -> None:
        epsilon, total = self.privacy.epsilon, self.privacy.total_epsilon
        private = self.clustering.name == "private"
        dimensions, features = self.privacy.dimensions, self.model.projector_dim
        if private and epsilon is None:
            raise ValueError("privacy.epsilon: must be given with clustering=private")
        options = {"epsilon": epsilon, "total_epsilon": total, "dimensions": dimensions}
        for name, value in options.items():
            if value is not None and not private:
                raise ValueError(f"privacy.{name}={value:g}: needs clustering=private")
        if epsilon is not None and total is not None and total < epsilon:
            raise ValueError(
                f"privacy.total_epsilon={total:g}: must be at least privacy.epsilon={epsilon:g}"
            )
        if dimensions is not None and dimensions >= features:
            raise ValueError(
                f"privacy.dimensions={dimensions}: must be below model.projector_dim={features}"
            )

    def _check_update_privacy(self) -> None:
        clip, noise, delta = self.privacy.clip, self.privacy.noise_multiplier, self.privacy.delta
        weighting, clients = self.federation.weighting, self.federation.clients
        if noise > 0 and clip is None:
            raise ValueError(
                f"privacy.noise_multiplier={noise:g}: privacy.clip must be given, "
                "the noise is in units of it"
            )
        # With weights by samples, what one client can change depends on how many images it has.
        if clip is not None and weighting != "uniform":
            raise ValueError(
                f"federation.weighting={weighting}: must be uniform with privacy.clip={clip:g}"
            )
        if noise > 0 and delta >= 1 / clients:
            raise ValueError(
                f"privacy.delta={delta:g}: must be below 1 / federation.clients = {1 / clients:g}"
            )

    def check_images(self, count: int) -> None:
        """Refuses what differential privacy does not mean anything for, with so many images.

        Raises:
            ConfigError: a delta at which a mechanism may publish a whole image and keep its word.
        """
        delta = self.privacy.delta
        if self.clustering.name == "private" and delta >= 1 / count:
            raise ConfigError(
                f"privacy.delta={delta:g}: must be below 1 / {count} = {1 / count:.3g}, "
                "one by the images of a client"
            )

    def to_json(self) -> str:
        """The configuration as one line of JSON."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads :meth:`to_json`'s output.

        Raises:
            ConfigError: a key or a value is not allowed.
        """
        return parse(cls, json.loads(text))
