"""The configuration of a whole run, and what must hold between its sections."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticSerializationError

from orchestra_flwr.config.choice import Choice
from orchestra_flwr.config.choices import (
    AdaptationConfig,
    AggregationConfig,
    AttackConfig,
    ClockConfig,
    ClusteringConfig,
    DataConfig,
    EngineConfig,
    ExchangeConfig,
    MergingConfig,
    MethodConfig,
    ModelConfig,
    OptimizerConfig,
    PartitionConfig,
    ScheduleConfig,
    ServerOptimizerConfig,
    ShiftConfig,
    TermConfig,
)
from orchestra_flwr.config.section import Composed, ConfigError, OptionalPathText, PathText, parse
from orchestra_flwr.config.sections import (
    Device,
    EvaluationConfig,
    FederationConfig,
    LabelsConfig,
    LoggingConfig,
    PrivacyConfig,
    TrainingConfig,
)
from orchestra_flwr.config.user_packages import WithPlugins, packages_in
from orchestra_flwr.console.printable import printable

MAX_BYTES = 255  # of a file's name, on every usual file system


class Config(WithPlugins, Composed):
    """A whole run, whose choices exist and whose options are checked."""

    file = "config"
    foreign: ClassVar[tuple[str, ...]] = ("federation.min_clients", "federation.min_images")

    method: MethodConfig
    terms: dict[str, TermConfig] = Field(default_factory=dict)
    model: ModelConfig
    adaptation: AdaptationConfig = AdaptationConfig()
    data: DataConfig
    partition: PartitionConfig
    shift: ShiftConfig = ShiftConfig()
    labels: LabelsConfig = LabelsConfig()
    clustering: ClusteringConfig = ClusteringConfig()
    federation: FederationConfig
    exchange: ExchangeConfig = ExchangeConfig()
    aggregation: AggregationConfig = AggregationConfig()
    attack: AttackConfig = AttackConfig()
    server_optimizer: ServerOptimizerConfig = ServerOptimizerConfig()
    merging: MergingConfig = MergingConfig()
    training: TrainingConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluation: EvaluationConfig
    privacy: PrivacyConfig = PrivacyConfig()
    engine: EngineConfig = EngineConfig()
    clock: ClockConfig = ClockConfig()
    logging: LoggingConfig = LoggingConfig()
    device: Device = "auto"
    seed: int = Field(0, ge=0)
    name: PathText = Field("orchestra", min_length=1)
    run_dir: OptionalPathText = None
    init: OptionalPathText = None
    resume: OptionalPathText = None
    resume_round: int | None = Field(None, ge=0)

    @field_validator("name")
    @classmethod
    def _name_is_that_of_a_folder(cls, value: str) -> str:
        if value in (".", "..") or re.search(r"[/\\]", value) or printable(value) != value:
            raise ValueError(
                f"name={value}: must be the name of a folder in outputs/, without / and \\; "
                "another place is chosen by run_dir"
            )
        if len(value.encode()) > MAX_BYTES:
            raise ValueError(f"name={value}: must have at most {MAX_BYTES} bytes, as a folder's")
        return value

    @field_validator("terms", mode="before")
    @classmethod
    def _terms_are_named_by_their_keys(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, options in value.items():
            if not isinstance(options, dict | TermConfig):
                raise ValueError(
                    f"terms.{name}={options}: must be options, such as terms.{name}.weight=1"
                )
        return {
            name: {**options, "name": name} if isinstance(options, dict) else options
            for name, options in value.items()
        }

    def choices(self) -> list[Choice]:
        """All choices, terms included."""
        return [*super().choices(), *self.terms.values()]

    def used_choices(self) -> list[Choice]:
        """The choices that a run reads: all but a clustering that its method does not use."""
        choices = [choice for choice in self.choices() if choice is not self.clustering]
        if self.clustering.key in self.method.plugin.uses:
            return [self.clustering, self.clustering.solver, *choices]
        return choices

    @property
    def active_terms(self) -> list[TermConfig]:
        """The terms that are added to the loss, in the order of their names."""
        return [term for _, term in sorted(self.terms.items()) if term.weight > 0]

    @classmethod
    def suggested(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """What a backbone with pretrained weights suggests: :meth:`Backbone.suggested`."""
        with suppress(OSError, ValueError):
            model = parse(ModelConfig, values.get("model"), "model")
            data = parse(DataConfig, values.get("data"), "data")
            for choice in (model, data):
                choice.look_in(packages_in(values.get("plugins")))
            suggested: dict[str, Any] = model.plugin.suggested(model, data, values.get("init"))
            return suggested
        return {}

    def unread(self) -> dict[str, str]:
        """Keys that the chosen plug-ins or a simulation do not read, and why."""
        unread = dict.fromkeys(Config.foreign, "in a simulation, only by a server of real clients")
        if not self.privacy.secure_aggregation:
            unread["privacy.full_weight"] = "without privacy.secure_aggregation=true"
        else:
            unread["federation.max_weight"] = "with secure aggregation, privacy.full_weight is"
            if self.federation.weighting == "uniform":
                unread["privacy.full_weight"] = "with federation.weighting=uniform"
        if self.logging.format == "json":
            unread["logging.progress"] = "with logging.format=json"
        if self.model.norm != "group":
            unread["model.groups"] = f"with model.norm={self.model.norm}"
        if self.evaluation.keep == "last":
            unread["evaluation.best_by"] = "with evaluation.keep=last"
        if self.shift.name == "none":
            unread["evaluation.training_images"] = "with shift=none, which changes no image"
        for term in self.terms.values():
            if term.weight == 0:
                why = f"with {term.path}.weight=0"
                unread |= {f"{term.path}.{option}": why for option in term.options}
        if self.clustering.key not in self.method.plugin.uses:
            unread["clustering"] = f"by method={self.method.name}"
        for choice in self.used_choices():
            unread |= choice.plugin.unread(self)
        return unread

    @model_validator(mode="after")
    def _choices_exist_and_agree(self) -> Self:
        for choice in self.used_choices():
            _ = choice.settings
        self._check_normalisation()
        self._check_update_privacy()
        self._check_resume_round()
        self._check_kept_encoder()
        for choice in self.used_choices():
            choice.plugin.check(self)
        return self

    def _check_kept_encoder(self) -> None:
        evaluation, exchange = self.evaluation, self.exchange
        if evaluation.keep == "last":
            return
        if not exchange.plugin.one_average:
            raise ValueError(
                f"evaluation.keep=best: must be last with exchange={exchange.name}, whose rounds "
                "do not end in one average"
            )
        if evaluation.best_by == "score" and not evaluation.unsupervised:
            raise ValueError(
                "evaluation.best_by=score: needs evaluation.unsupervised=true; else give "
                "evaluation.best_by=linear, knn or effective_rank, or evaluation.keep=last"
            )

    def _check_resume_round(self) -> None:
        if self.resume_round is None:
            return
        if self.resume is None:
            raise ValueError(f"resume_round={self.resume_round}: needs resume=<run folder>")
        if self.privacy.noise_multiplier > 0:
            raise ValueError(
                f"resume_round={self.resume_round}: must not be given for a run with "
                "privacy.noise_multiplier, whose later rounds would repeat their noise: "
                "the difference of two averages would have none"
            )

    def _check_normalisation(self) -> None:
        by, channels = self.data.normalise, self.data.channels
        if by != "half" and channels != 3:
            raise ValueError(
                f"data.normalise={by}: must be half with data={self.data.name}, whose images have "
                f"{channels} channel{'s' * (channels > 1)}"
            )

    def _check_update_privacy(self) -> None:
        clip, noise, delta = self.privacy.clip, self.privacy.noise_multiplier, self.privacy.delta
        weighting, clients = self.federation.weighting, self.federation.clients
        if noise > 0 and clip is None:
            raise ValueError(
                f"privacy.noise_multiplier={noise:g}: privacy.clip must be given, "
                "because the noise is in units of it"
            )
        # With weights by samples, a client's influence depends on how many images it has.
        if clip is not None and weighting != "uniform":
            raise ValueError(
                f"federation.weighting={weighting}: must be uniform with privacy.clip={clip:g}"
            )
        if noise > 0 and delta >= 1 / clients:
            key = self.federation.clients_key
            raise ValueError(f"privacy.delta={delta:g}: must be below 1 / {key} = {1 / clients:g}")
        # The scores that clients send are computed from their images without any noise.
        for key in ("unsupervised", "drift", "clients"):
            if getattr(self.evaluation, key) and noise > 0:
                raise ValueError(
                    f"evaluation.{key}=true: clients' scores are not differentially private, "
                    "must be false with privacy.noise_multiplier"
                )
        private = "noise_multiplier" if noise > 0 else "epsilon"
        if self.evaluation.personal_by_clients and (noise > 0 or self.privacy.epsilon is not None):
            raise ValueError(
                f"evaluation.personal_labels={self.evaluation.personal_labels}: clients' scores "
                f"are not differentially private, must be null with privacy.{private}"
            )

    def to_json(self) -> str:
        """The configuration as one line of JSON."""
        try:
            return self.model_dump_json()
        except PydanticSerializationError:  # a path that is no UTF-8, which JSON can only escape
            return json.dumps(self.model_dump(mode="json"), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads :meth:`to_json`'s output.

        Raises:
            ConfigError: a key or a value is not allowed.
        """
        return parse(cls, _json_values(text))


def requested_plugins(text: str) -> list[str]:
    """The packages that :meth:`Config.to_json`'s output names, without importing any.

    Raises:
        ConfigError: it is no configuration.
    """
    packages = _json_values(text).get("plugins", [])
    if not isinstance(packages, list):
        raise ConfigError("plugins: must be a list of packages")
    return list(map(str, packages))


def _json_values(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the configuration is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError("the configuration must be a JSON object")
    return values
