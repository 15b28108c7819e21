"""The run's configuration: typed, frozen, checked before anything starts.

The only module that reads Hydra's files. Everything else sees a :class:`Config`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

# What may differ when a run is resumed: where it runs and what is shown, never what is computed.
RESUME_MAY_CHANGE = (
    "engine",
    "ray",
    "device",
    "logging",
    "data.root",
    "data.cache",
    "host",
    "port",
    "insecure",
    "security",
    "federation.min_clients",
    "federation.round_timeout",
)
Precision = Literal["float32", "bfloat16"]


class ConfigError(ValueError):
    """A configuration that cannot run; its text is one line: the key and what is allowed."""


class Section(BaseModel):
    """A frozen part of the configuration that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Composed(Section):
    """A whole configuration, composed by Hydra from a file of `conf/`."""

    file: ClassVar[str]


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
    def channels(self) -> int:
        """Colour channels of an image."""
        return 1 if self.name == "digits" else 3


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
    """The method's name and its own options, which the method checks itself."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """The method's own keys, unchecked."""
        return dict(self.model_extra or {})


class ClusteringConfig(Section):
    """Local and global clustering (the paper's L, G and memory)."""

    name: Literal["sinkhorn", "private"]
    global_clusters: int = Field(ge=2)
    local_clusters: int = Field(ge=2)
    memory: int = Field(128, ge=2)


class FederationConfig(Section):
    """Population, cohort and rounds."""

    min_clients: int | None = Field(None, ge=1)  # of a deployment; a simulation has all its clients
    clients: int = Field(ge=1)
    participation: float = Field(gt=0, le=1)
    rounds: int = Field(ge=1)
    min_success: float = Field(0.5, gt=0, le=1)
    weighting: Literal["samples", "uniform"] = "samples"
    round_timeout: float = Field(3600, gt=0)
    min_images: int = Field(1, ge=1)


class PrivacyConfig(Section):
    """What may be learned about a client or an image from what is sent."""

    # One image's centroid is its feature, which never leaves a client; 2 forbids just that.
    k_min: int = Field(2, ge=1)  # least images that a centroid stands for
    clip: float | None = Field(None, gt=0)  # L2 norm of a client's update; None: not bounded
    noise_multiplier: float = Field(0.0, ge=0)  # noise in the sum of updates, in units of clip
    delta: float = Field(1e-3, ge=1e-12, lt=1)  # below it and epsilon, accounting takes terabytes
    epsilon: float | None = Field(None, ge=1e-4)  # of one release of private centroids
    total_epsilon: float | None = Field(None, gt=0)  # of all that a client releases; None: any


class TrainingConfig(Section):
    """Local training of a client."""

    local_epochs: int = Field(ge=1)
    batch_size: int = Field(ge=2)
    lr: float = Field(gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0)
    precision: Precision = "float32"
    threads: int = Field(1, ge=1)


class EvaluationConfig(Section):
    """How often and how the encoder is judged."""

    every: int = Field(ge=1)
    batch_size: int = Field(256, ge=1)
    knn_k: int = Field(200, ge=1)
    knn_temperature: float = Field(0.1, gt=0)


class RayConfig(Section):
    """Ray's virtual client engine."""

    workers: int | None = Field(None, ge=1)  # None: as many as the resources hold
    gpus_per_client: float | None = Field(None, ge=0)  # None: shared evenly by the workers


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
        self._check_update_privacy()
        self._check_centroid_privacy()
        return self

    def _check_centroid_privacy(self) -> None:
        epsilon, total = self.privacy.epsilon, self.privacy.total_epsilon
        private = self.clustering.name == "private"
        if private and epsilon is None:
            raise ValueError("privacy.epsilon: must be given with clustering=private")
        for name, value in (("epsilon", epsilon), ("total_epsilon", total)):
            if value is not None and not private:
                raise ValueError(f"privacy.{name}={value:g}: needs clustering=private")
        if epsilon is not None and total is not None and total < epsilon:
            raise ValueError(
                f"privacy.total_epsilon={total:g}: must be at least privacy.epsilon={epsilon:g}"
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


S = TypeVar("S", bound=Section)
C = TypeVar("C", bound=Composed)


def parse(section: type[S], values: Any, path: str = "") -> S:
    """Checks plain values against a section; `path` is where the section stands.

    Raises:
        ConfigError: names the first wrong key by its full path, its value and what is allowed.
    """
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_describe(error, section, path)) from None


def load_config(overrides: Sequence[str] = ()) -> Config:
    """A simulation's configuration: see :func:`load`."""
    return load(Config, overrides)


def load(section: type[C], overrides: Sequence[str] = ()) -> C:
    """Composes `conf/` with Hydra overrides such as ``data=cifar10 training.lr=0.01``.

    Args:
        section: the kind of configuration.
        overrides: as on a command line.

    With ``resume=<run folder>`` the configuration is the run's own; overrides may only repeat it
    or change where it runs (`RESUME_MAY_CHANGE`).

    Raises:
        ConfigError: an unknown key, a wrong value, or a resume with another configuration.
    """
    overrides = [_at_home(override) for override in overrides]
    composed = _compose(section, overrides)
    if composed.get("resume"):
        return parse(section, _resumed(Path(str(composed.resume)), composed, overrides))
    return parse(section, OmegaConf.to_container(composed, resolve=True))


def config_to_yaml(config: Section) -> str:
    """The whole configuration as YAML, as it stands in a run folder."""
    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump()))


def every_key(section: type[Composed]) -> str:
    """All keys with their defaults as YAML; also where some must be given."""
    return OmegaConf.to_yaml(_compose(section, ()), resolve=True)


def conf_dir() -> Path:
    """The folder of Hydra's files: inside an installed package, else beside it."""
    package = Path(__file__).resolve().parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def _compose(section: type[Composed], overrides: Sequence[str]) -> DictConfig:
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
            return compose(section.file, list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_describe_hydra(error, section, overrides)) from None


def _at_home(override: str) -> str:
    """`key=~/path` as a shell would give it, had it looked behind the equals sign."""
    key, _, value = override.partition("=")
    return f"{key}={Path(value).expanduser()}" if value.startswith("~") else override


def _resumed(folder: Path, composed: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"resume={folder}: no run folder (it holds no config.yaml)")
    saved = OmegaConf.load(file)
    for key in _parsed(overrides):
        new, old = OmegaConf.select(composed, key), OmegaConf.select(saved, key)
        if key in ("resume", "run_dir") or new == old:
            continue
        if not any(key == free or key.startswith(free + ".") for free in RESUME_MAY_CHANGE):
            raise ConfigError(
                f"{key}={new}: a resumed run keeps its own configuration, which has {key}={old}"
            )
        OmegaConf.update(saved, key, new, merge=False)
    values = OmegaConf.to_container(saved, resolve=True)
    assert isinstance(values, dict)
    return {**values, "resume": str(folder), "run_dir": str(folder)}


def _parsed(overrides: Sequence[str]) -> dict[str, Any]:
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return {override.key_or_group: override.value() for override in parsed}


def _describe_hydra(error: Exception, section: type[Section], overrides: Sequence[str]) -> str:
    known = list(_known_keys(section))
    try:
        given = _parsed(overrides)
    except HydraException as syntax:
        return f"overrides are written key=value: {_one_line(syntax)}"
    for key, value in given.items():
        if key not in known and key.partition(".")[0] != "method":
            return f"{key}: unknown key{_suggestion(key, known)}"
        choices = sorted(file.stem for file in (conf_dir() / key).glob("*.yaml"))
        if choices and value not in choices:
            return f"{key}={value}: must be one of {', '.join(choices)}"
    return _one_line(error)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _suggestion(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=2, cutoff=0.75)
    return f" (did you mean {' or '.join(close)}?)" if close else " (see --help)"


def _known_keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _known_keys(field.annotation, f"{prefix}{name}.")


def _describe(error: ValidationError, section: type[Section], path: str) -> str:
    first = error.errors()[0]
    key = ".".join([*([path] if path else []), *map(str, first["loc"])])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        prefix = f"{path}." if path else ""
        return f"{key}: unknown key{_suggestion(key, list(_known_keys(section, prefix)))}"
    if first["type"] == "missing":
        return f"{key}: must be given"
    if first["type"] == "value_error":
        return message
    return f"{key}={first['input']}: {message[:1].lower()}{message[1:]}"
