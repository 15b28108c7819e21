"""The sections of a configuration that choose no plug-in: typed, frozen, each value checked."""

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from orchestra_flwr.config.section import Section

Precision = Literal["float32", "bfloat16"]
Normalisation = Literal["half", "cifar", "imagenet", "clip", "none"]
Setting = Literal["small", "device", "silo", "dec_ssl"]
KEPT_ROUNDS = 3  # last rounds whose checkpoints and clients' states are kept, to go back to
MAX_THREADS = 256  # more than the cores one client could use; more only hinder each other
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
    # Height and width of the views of larger images; None: their own size.
    view_size: int | None = Field(None, ge=8, le=512)


class FederationConfig(Section):
    """Population, cohort and rounds."""

    min_clients: int | None = Field(None, ge=1)  # of a deployment; a simulation has all its clients
    clients: int = Field(ge=1)
    participation: float = Field(gt=0, le=1)
    rounds: int = Field(ge=0)  # 0: the start is evaluated
    min_success: float = Field(0.5, gt=0, le=1)
    weighting: Literal["samples", "batches", "uniform"] = "samples"
    max_weight: float | None = Field(10.0, ge=1)  # in medians of the clients' images; None: any
    max_update: float | None = Field(20.0, ge=2)  # in usual updates; None: any
    round_timeout: float = Field(3600, gt=0)
    enough: float = Field(1.0, gt=0)  # up to 1 a share of the cohort, above a number of replies
    oversample: float = Field(1.0, ge=1, le=100)  # clients that are asked, in cohorts
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
    def clients_key(self) -> str:
        """The key by which a user sets how many clients there are."""
        return f"federation.{'clients' if self.min_clients is None else 'min_clients'}"

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
        """The number of good replies that ends a round, of `clients` that are connected."""
        many = self.enough * self.cohort_size(clients) if self.enough <= 1 else self.enough
        return min(self.asked(clients), _ceil(many))

    def needed(self, asked: int) -> int:
        """The good replies, of `asked` that are awaited, without which a run ends."""
        return _ceil(self.min_success * asked)


def _ceil(value: float) -> int:
    """The next whole number, at least 1; ignores rounding errors just above a whole number."""
    return max(1, math.ceil(value - 1e-9))


class LabelsConfig(Section):
    """The labels of clients that methods may learn from."""

    # Of each client's labelled images, at least one; None: all, for methods that need labels.
    fraction: float | None = Field(None, gt=0, le=1)


class PrivacyConfig(Section):
    """What may be learned about a client or an image from what is sent."""

    # A row made from one image is its feature, which never leaves a client: 2 rules out just that.
    k_min: int = Field(2, ge=1)  # least images that a released row stands for
    clip: float | None = Field(None, gt=0)  # L2 norm of a client's update; None: not bounded
    # Noise in the sum of updates, in units of clip. Above the maximum, accounting fails.
    noise_multiplier: float = Field(0.0, ge=0, le=1e6)
    delta: float = Field(1e-3, ge=1e-12, lt=1)  # below it and epsilon, accounting takes terabytes
    # Of one private release. Above the maximum, accounting takes minutes or fails: no guarantee.
    epsilon: float | None = Field(None, ge=1e-4, le=1e5)
    total_epsilon: float | None = Field(None, gt=0)  # of all that a client releases; None: any
    dimensions: int | None = Field(None, ge=1)  # of features before the noise; None: as they are
    secure_aggregation: bool = False  # the server sees the sum of updates, and no single one
    # Images (with weighting=batches: batches) with which a client has full weight, and no more.
    full_weight: int | None = Field(None, ge=1)


class TrainingConfig(Section):
    """Local training of a client."""

    setting: Setting = "device"  # the one whose values of `method.paper` `conf/` uses
    local_epochs: int = Field(ge=1)
    min_steps: int = Field(1, ge=1)  # of a round; few images are gone through more often
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
    limit: int | None = Field(None, ge=2)  # most training images, and most test images
    probe: Literal["converged", "fixed", "published", "dec_ssl"] = "converged"
    backbone: str | None = None  # which one is kept; None: the method's first
    unsupervised: bool = False
    keep: Literal["last", "best"] = "last"  # the encoder after which of the evaluated rounds
    best_by: Literal["linear", "knn", "score", "effective_rank"] = "effective_rank"
    training_images: Literal["original", "shifted"] = "original"  # of probes and kNN
    few_labels: bool = False  # probes with 10 % and 1 % of the labels as well
    recalibrated: bool = False  # scores with BatchNorm's statistics taken anew, beside the others
    drift: bool = False  # how far clients' models are apart
    clients: bool = False  # each client's own model on its own classes; in simulations
    personal_labels: int | None = Field(None, ge=1)  # labels for each client's own head

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
