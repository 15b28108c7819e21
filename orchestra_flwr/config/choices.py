"""The sections of a run's configuration that choose a plug-in by its name, with its options."""

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_serializer, model_validator

from orchestra_flwr.config.choice import Choice
from orchestra_flwr.config.sections import (
    AugmentationConfig,
    BatchNorm,
    Normalisation,
    Setting,
    Views,
)
from orchestra_flwr.plugins import Room


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
    def view_size(self) -> int:
        """Height and width of the views that clients train on, in pixels."""
        return min(self.image_size, self.augmentation.view_size or self.image_size)

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

    share: float = Field(1.0, gt=0, le=1)  # of each client's images that it uses
    cut: Literal["random", "by_class"] = "random"  # what is left out with share < 1


class ShiftConfig(Choice):
    """How clients' images differ in looks, apart from their classes."""

    room: ClassVar = Room("orchestra_flwr.data.shifts", "Shift")
    key: ClassVar = "shift"
    paths: ClassVar = ("folder",)

    name: str = "none"


class ModelConfig(Choice):
    """The backbone, and the heads (projector and predictor) that a method puts on it."""

    room: ClassVar = Room("orchestra_flwr.models.backbones", "Backbone")
    key: ClassVar = "model"
    paths: ClassVar = ("weights",)

    norm: Literal["batch", "group"] = "batch"
    batch_norm: BatchNorm | None = None  # its policy; None: follows merging and privacy.clip
    groups: int | None = Field(None, ge=1)  # of each GroupNorm; None: groups of 8 channels
    # No memory holds more; below, the needed memory is computed before a run starts.
    width: int = Field(64, ge=8, le=2**14, multiple_of=8)
    # Heads as in the Orchestra paper's code, or of two linear layers.
    projector: Literal["orchestra", "plain", "plain_norm"] = "orchestra"
    projector_hidden: int | None = Field(None, ge=8, le=2**17)  # None: as the method has it
    projector_dim: int = Field(512, ge=8, le=2**17)

    @property
    def first_weights(self) -> dict[str, Any]:
        """The values that name sources of pretrained weights, by key; empty: weights are random."""
        values = {f"model.{k}": getattr(self.settings, k) for k in self.plugin.first_weights}
        return {key: value for key, value in values.items() if value is not None}

    def without_folders(self) -> Self:
        """A copy for clients, who do not read files of first weights: only these files' names."""
        files = {name: Path(file).name for name in self.paths if (file := self.options.get(name))}
        return self.model_copy(update=files)

    @model_validator(mode="after")
    def _groups_divide_the_channels(self) -> Self:
        if self.norm == "group" and self.groups is not None and self.width % self.groups:
            raise ValueError(f"model.groups={self.groups}: must divide model.width={self.width}")
        return self


class MethodConfig(Choice):
    """What clients learn, and from which views of an image.

    `paper` holds the values that the paper found for each setting, for `conf/` to refer to.
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
    """How the clients' states become the new model."""

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
        """The name alone if there are no options, as configurations write it."""
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
        """The clustering's own options; files of data sets also set those of other clusterings."""
        others = self.options_of_others
        return {name: value for name, value in super().options.items() if name not in others}

    @property
    def options_of_others(self) -> tuple[str, ...]:
        """The options in this section that only other clusterings have."""
        fields = self.plugin.Settings.model_fields
        foreign = [option for option in super().options if option not in fields]
        plugins = self.room.found(self._packages).values() if foreign else ()
        return tuple(o for o in foreign if any(o in p.Settings.model_fields for p in plugins))
