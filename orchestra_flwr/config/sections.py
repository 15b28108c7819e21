"""The sections of a run's configuration: typed, frozen, each value checked."""

import math
import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_serializer, model_validator

from orchestra_flwr.config.choice import Choice
from orchestra_flwr.config.section import Section
from orchestra_flwr.plugins import Room

Precision = Literal["float32", "bfloat16"]
Normalisation = Literal["half", "cifar", "imagenet", "clip", "none"]
Setting = Literal["small", "device", "silo", "dec_ssl"]
KEPT_ROUNDS = 3  # whose checkpoints are kept, and states of clients: a run can go back to them
MAX_THREADS = 256  # more than cores that one client could use; beyond, they only hinder each other
Wire = Literal["float32", "float16", "int8", "int4"]
Views = Literal["default", "plain"]
BatchNorm = Literal["averaged", "local", "recalibrated", "frozen"]


def _device_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError(f"device={value}: must be auto, cpu, cuda or cuda:N, such as cuda:0")
    return value


Device = Annotated[str, BeforeValidator(_device_name)]


class AugmentationConfig(Section):
    """Limits that the images set on every method's augmentations (digits must not be mirrored)."""

    flip: bool = True
    crop_min: float | None = Field(None, gt=0, le=1)  # least area of a crop; None: the recipe's own


class DataConfig(Choice):
    """Which images are used, and how they are prepared; options belong to the source."""

    room: ClassVar = Room("orchestra_flwr.data.sources", "Source")
    key: ClassVar = "data"
    paths: ClassVar = ("root", "cache", "dataset", "table", "test_table")
    likely_plugin: ClassVar = {"root": "image_folder"}

    image_size: int = Field(32, ge=8, le=512)
    train_limit: int | None = Field(None, ge=1)
    test_limit: int | None = Field(None, ge=1)
    # Of labelled images without test images; class by class. None: nothing is held back.
    test_share: float | None = Field(None, gt=0, lt=1)
    normalise: Normalisation = "half"
    augmentation: AugmentationConfig = AugmentationConfig()

    @property
    def label(self) -> str:
        """A name of these images, for figures and names of files."""
        label: str = self.plugin.label(self.settings) or self.name
        return label

    @property
    def channels(self) -> int:
        """Colour channels of an image."""
        channels: int = self.plugin.channels
        return channels

    @property
    def classes(self) -> int | None:
        """Number of classes; None where it depends on the images."""
        classes: int | None = self.plugin.classes
        return classes


class PartitionConfig(Choice):
    """How the images are spread over the clients."""

    room: ClassVar = Room("orchestra_flwr.data.partitions", "Partition")
    key: ClassVar = "partition"
    paths: ClassVar = ("csv", "encoder")

    share: float = Field(1.0, gt=0, le=1)  # of each client's images that it has, the rest is unused
    cut: Literal["random", "by_class"] = "random"  # what is left out with share < 1


class ShiftConfig(Choice):
    """How clients' images differ in looks, beside their classes."""

    room: ClassVar = Room("orchestra_flwr.data.shifts", "Shift")
    key: ClassVar = "shift"
    paths: ClassVar = ("folder",)

    name: str = "none"


class ModelConfig(Choice):
    """The backbone, and the heads (projector and predictor) that a method puts on it."""

    room: ClassVar = Room("orchestra_flwr.models.backbones", "Backbone")
    key: ClassVar = "model"

    norm: Literal["batch", "group"] = "batch"
    batch_norm: BatchNorm | None = None  # its policy; None: as merging and privacy.clip have it
    groups: int | None = Field(None, ge=1)  # of each GroupNorm; None: groups of 8 channels
    # No memory holds more; up to there what is needed is computed before a run starts.
    width: int = Field(64, ge=8, le=2**14, multiple_of=8)
    # Heads as in the Orchestra paper's code, or of two linear layers.
    projector: Literal["orchestra", "plain", "plain_norm"] = "orchestra"
    projector_hidden: int | None = Field(None, ge=8, le=2**17)  # None: as the method has it
    projector_dim: int = Field(512, ge=8, le=2**17)

    @property
    def first_weights(self) -> dict[str, Any]:
        """By its key, what names a source of pretrained weights; empty: weights are random."""
        values = {f"model.{k}": getattr(self.settings, k) for k in self.plugin.first_weights}
        return {key: value for key, value in values.items() if value is not None}

    @model_validator(mode="after")
    def _groups_divide_the_channels(self) -> Self:
        if self.norm == "group" and self.groups is not None and self.width % self.groups:
            raise ValueError(f"model.groups={self.groups}: must divide model.width={self.width}")
        return self


class MethodConfig(Choice):
    """What clients learn, and from which views of an image.

    `paper` holds the values that the paper found for each setting, for `conf/` to point at.
    """

    room: ClassVar = Room("orchestra_flwr.methods", "Method")
    key: ClassVar = "method"
    paths: ClassVar = ("teacher", "teacher_weights")
    unlisted: ClassVar = ("name", "paper")

    views: Views = "default"
    paper: dict[Setting, dict[str, float]] = Field(default_factory=dict)


class TermConfig(Choice):
    """An addition to the method's loss; with weight 0 nothing is built."""

    room: ClassVar = Room("orchestra_flwr.terms", "Term")
    key: ClassVar = "terms"

    weight: float = Field(0.0, ge=0)

    @property
    def path(self) -> str:
        """The key of the term's own section."""
        return self.written(self.name)

    def written(self, name: str) -> str:
        """The key of a term's section."""
        return f"{self.key}.{name}"


class MergingConfig(Choice):
    """How a client combines its own state with the state that the server sends."""

    room: ClassVar = Room("orchestra_flwr.merging", "Merging")
    key: ClassVar = "merging"

    name: str = "replace"


class OptimizerConfig(Choice):
    """The clients' optimizer; its learning rate is `training.lr`."""

    room: ClassVar = Room("orchestra_flwr.training.optimizers", "Optimizer")
    key: ClassVar = "optimizer"

    name: str = "sgd"


class ScheduleConfig(Choice):
    """How the clients' learning rate changes during a run."""

    room: ClassVar = Room("orchestra_flwr.training.schedules", "Schedule")
    key: ClassVar = "schedule"

    name: str = "constant"


class ServerOptimizerConfig(Choice):
    """How the server updates the model from the clients' mean."""

    room: ClassVar = Room("orchestra_flwr.federation.server_optimizers", "ServerOptimizer")
    key: ClassVar = "server_optimizer"

    name: str = "mean"


class AdaptationConfig(Choice):
    """What of the network is trained."""

    room: ClassVar = Room("orchestra_flwr.models.adaptations", "Adaptation")
    key: ClassVar = "adaptation"

    name: str = "full"


class AggregationConfig(Choice):
    """What the clients' states that enter a model become."""

    room: ClassVar = Room("orchestra_flwr.federation.aggregations", "Aggregation")
    key: ClassVar = "aggregation"

    name: str = "mean"


class AttackConfig(Choice):
    """What some clients of a simulation do to the model."""

    room: ClassVar = Room("orchestra_flwr.federation.attacks", "Attack")
    key: ClassVar = "attack"

    name: str = "none"
    clients: int = Field(1, ge=1)


class ExchangeConfig(Choice):
    """Which clients and models exchange updates in a round."""

    room: ClassVar = Room("orchestra_flwr.federation.exchanges", "Exchange")
    key: ClassVar = "exchange"
    paths: ClassVar = ("replay",)

    name: str = "star"


class EngineConfig(Choice):
    """What runs the clients of a simulation."""

    room: ClassVar = Room("orchestra_flwr.federation.engines", "Engine")
    key: ClassVar = "engine"

    name: str = "ray"


class ClockConfig(Choice):
    """Whether a simulation computes seconds from the clients' devices, and what these are."""

    room: ClassVar = Room("orchestra_flwr.federation.clocks", "Clock")
    key: ClassVar = "clock"
    paths: ClassVar = ("devices",)

    name: str = "none"


class SolverConfig(Choice):
    """How the server clusters all clients' local centroids."""

    room: ClassVar = Room("orchestra_flwr.clustering.solvers", "Solver")
    key: ClassVar = "clustering.solver"

    name: str = "alternating"

    @model_serializer
    def _as_written(self) -> str | dict[str, Any]:
        """The name alone, where there are no options, as configurations have it."""
        return {"name": self.name, **self.options} if self.options else self.name


class ClusteringConfig(Choice):
    """Local clustering on clients and global clustering at the server."""

    room: ClassVar = Room("orchestra_flwr.clustering.clusterings", "Clustering")
    key: ClassVar = "clustering"

    name: str = "sinkhorn"
    global_clusters: int = Field(32, ge=2, le=2**14)  # the paper's G
    solver: SolverConfig = SolverConfig()
    damping: float = Field(0.5, ge=0, lt=1)  # how much of the last round's centroids stays

    def look_in(self, packages: tuple[str, ...]) -> None:
        """Sets the users' packages of the clustering and of its solver."""
        super().look_in(packages)
        self.solver.look_in(packages)

    @property
    def options(self) -> dict[str, Any]:
        """The clustering's own options: files of data sets set those of all clusterings."""
        others = self.options_of_others
        return {name: value for name, value in super().options.items() if name not in others}

    @property
    def options_of_others(self) -> tuple[str, ...]:
        """The options in this section that only other clusterings have."""
        fields = self.plugin.Settings.model_fields
        foreign = [option for option in super().options if option not in fields]
        plugins = self.room.found(self._packages).values() if foreign else ()
        return tuple(o for o in foreign if any(o in p.Settings.model_fields for p in plugins))


class FederationConfig(Section):
    """Population, cohort and rounds."""

    min_clients: int | None = Field(None, ge=1)  # of a deployment; a simulation has all its clients
    clients: int = Field(ge=1)
    participation: float = Field(gt=0, le=1)
    rounds: int = Field(ge=1)
    min_success: float = Field(0.5, gt=0, le=1)
    weighting: Literal["samples", "batches", "uniform"] = "samples"
    max_weight: float | None = Field(10.0, ge=1)  # in medians of the clients' images; None: any
    max_update: float | None = Field(20.0, ge=2)  # in usual updates; None: any
    round_timeout: float = Field(3600, gt=0)
    enough: float = Field(1.0, gt=0)  # up to 1 a share of the cohort, above a number of replies
    oversample: float = Field(1.0, ge=1, le=100)  # so many times the cohort is asked
    deadline: float | None = Field(None, ge=1)  # in slowest replies of the last rounds; None: none
    min_images: int = Field(1, ge=1)
    wire: Wire = "float32"

    @field_validator("enough")
    @classmethod
    def _a_number_is_whole(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError(
                f"federation.enough={value:g}: must be a share of the cohort, up to 1.0, or a "
                "whole number of replies above 1"
            )
        return value

    @property
    def ends_early(self) -> bool:
        """Whether a round may end before all that were asked have answered."""
        return self.enough != 1 or self.oversample > 1 or self.deadline is not None

    def cohort_size(self, clients: int) -> int:
        """The number of clients of a round, of `clients` that are connected: at least one."""
        return max(1, round(self.participation * clients))

    def asked(self, clients: int) -> int:
        """How many clients a round asks, of `clients` that are connected."""
        return min(clients, _ceil(self.oversample * self.cohort_size(clients)))

    def awaited(self, clients: int) -> int:
        """With how many good replies a round ends, of `clients` that are connected."""
        many = self.enough * self.cohort_size(clients) if self.enough <= 1 else self.enough
        return min(self.asked(clients), _ceil(many))

    def needed(self, asked: int) -> int:
        """Good replies of so many that are awaited without which a run ends."""
        return _ceil(self.min_success * asked)


def _ceil(value: float) -> int:
    """The next whole number, also of one that is whole but for rounding; at least 1."""
    return max(1, math.ceil(value - 1e-9))


class LabelsConfig(Section):
    """The labels of clients that methods may learn from."""

    # Of each client's labelled images, at least one; None: all, for methods that need labels.
    fraction: float | None = Field(None, gt=0, le=1)


class PrivacyConfig(Section):
    """What may be learned about a client or an image from what is sent."""

    # A row made from one image is its feature, which never leaves a client; 2 forbids just that.
    k_min: int = Field(2, ge=1)  # least images that a released row stands for
    clip: float | None = Field(None, gt=0)  # L2 norm of a client's update; None: not bounded
    noise_multiplier: float = Field(0.0, ge=0)  # noise in the sum of updates, in units of clip
    delta: float = Field(1e-3, ge=1e-12, lt=1)  # below it and epsilon, accounting takes terabytes
    # Of one private release. Above, accounting takes minutes or fails, and nothing is promised.
    epsilon: float | None = Field(None, ge=1e-4, le=1e5)
    total_epsilon: float | None = Field(None, gt=0)  # of all that a client releases; None: any
    dimensions: int | None = Field(None, ge=1)  # of features before the noise; None: as they are
    secure_aggregation: bool = False  # the server sees the sum of updates, and no single one
    # Images (with weighting=batches: batches) from which on a client counts in full, and no more.
    full_weight: int | None = Field(None, ge=1)


class TrainingConfig(Section):
    """Local training of a client."""

    setting: Setting = "device"  # whose values of `method.paper` stand in `conf/`
    local_epochs: int = Field(ge=1)
    batch_size: int = Field(ge=2)
    lr: float = Field(gt=0)
    optimizer_state: Literal["reset", "keep"] = "reset"  # in every round; keep: by the client
    precision: Precision = "float32"
    threads: int = Field(1, ge=1, le=MAX_THREADS)
    cuda_graphs: bool = False
    drop_last: bool = False


class ScoresConfig(Section):
    """How features are computed and evaluated."""

    batch_size: int = Field(256, ge=1)
    precision: Precision = "float32"  # of the passes that make features
    knn_k: int = Field(200, ge=1)
    knn_temperature: float = Field(0.1, gt=0)


class EvaluationConfig(ScoresConfig):
    """How often and how a run's encoders are evaluated."""

    every: int = Field(ge=1)
    limit: int | None = Field(None, ge=2)  # training and test images, at most so many of each
    probe: Literal["converged", "fixed", "published", "dec_ssl"] = "converged"
    backbone: str | None = None  # which one is kept; None: the method's first
    unsupervised: bool = False
    keep: Literal["last", "best"] = "last"  # the encoder after which of the evaluated rounds
    best_by: Literal["linear", "knn", "score", "effective_rank", "lidar"] = "effective_rank"
    training_images: Literal["original", "shifted"] = "original"  # of probes and kNN
    few_labels: bool = False  # probes with 10 % and 1 % of the labels as well
    recalibrated: bool = False  # scores with BatchNorm's statistics taken anew, beside the others
    drift: bool = False  # how far clients' models are apart
    clients: bool = False  # each client's own model on its own classes; in simulations
    personal_labels: int | None = Field(None, ge=1)  # a head of each client's own from so many

    @property
    def asks_clients(self) -> bool:
        """Whether clients evaluate the encoder."""
        return self.unsupervised or self.clients or self.personal_labels is not None

    @property
    def personal_by_clients(self) -> bool:
        """Whether each client evaluates its own head, on other labelled images of its own.

        With `clients` it is evaluated on the server's test images.
        """
        return self.personal_labels is not None and not self.clients


LogFormat = Literal["text", "json"]


class LoggingConfig(Section):
    """Progress on the terminal, and experiment trackers."""

    tensorboard: bool = False
    wandb: bool = False
    mlflow: bool = False
    progress: Literal["auto", "live", "plain", "off"] = "auto"
    format: LogFormat = "text"  # of the lines on the terminal

    @property
    def trackers(self) -> tuple[str, ...]:
        """The experiment trackers that are switched on, by their names."""
        return tuple(name for name, value in self if value is True)
