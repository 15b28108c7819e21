"""The configurations of the commands that work on a saved encoder."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator

from orchestra_flwr.config.choices import DataConfig
from orchestra_flwr.config.reading.saved_config import read_config_file
from orchestra_flwr.config.section import (
    Composed,
    ConfigError,
    OptionalPathText,
    PathText,
    Section,
    parse,
    required,
)
from orchestra_flwr.config.sections import AugmentationConfig, Device, ScoresConfig
from orchestra_flwr.config.user_packages import WithPlugins, are_packages, check_named
from orchestra_flwr.files import encoder_file
from orchestra_flwr.plugins import imported_packages

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
Protocol = Literal[
    "knn", "linear", "linear_fixed", "linear_10", "linear_1", "linear_published", "finetune"
]


class EvaluatedDataConfig(Section):
    """Another data set, or changes to the run's own; None: as in the run.

    Every other key is an option of the source, as in :class:`DataConfig`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    room: ClassVar = DataConfig.room
    paths: ClassVar = DataConfig.paths

    name: str | None
    image_size: int | None = Field(ge=8, le=512)
    train_limit: int | None = Field(ge=1)
    test_limit: int | None = Field(ge=1)
    augmentation: AugmentationConfig | None


class OfSavedEncoder(WithPlugins, Composed):
    """A command on a saved encoder."""

    run: Annotated[PathText, required("run", "a run folder or an encoder.safetensors")]

    @property
    def encoder(self) -> Path:
        """The encoder's file."""
        return encoder_file(self.run)

    def beside(self, name: str) -> Path:
        """A folder beside the encoder; several encoders in one folder each have their own."""
        stem = self.encoder.stem
        return self.encoder.parent / (name if stem == "encoder" else f"{stem}-{name}")


class SavedEncoderConfig(OfSavedEncoder):
    """A saved encoder and the images of the command: another data set or the run's own."""

    referred = ("model", "federation", "training", "clustering", "partition", "merging")
    undecided = ("data.image_size",)  # the encoder's own, whatever a data set's file says

    data: EvaluatedDataConfig

    def images(self, image_size: int | None = None) -> DataConfig:
        """The images for the encoder: the data set that `data=` names, else the run's own.

        Another data set is scaled to the encoder's `image_size`, where that is known, unless
        `data.image_size` is given.

        Raises:
            ConfigError: no data set is named and the run has no config.yaml, or a value is wrong.
        """
        wanted = {k: v for k, v in self.data.model_dump().items() if v is not None}
        if self.data.name is not None:
            scaled = {} if image_size is None else {"image_size": image_size}
            return self._checked({**scaled, **wanted}, self.plugins)
        file = self.encoder.parent / "config.yaml"
        if not file.is_file():
            raise ConfigError(f"data: must be given, {file.parent} holds no config.yaml of a run")
        saved = read_config_file(file)
        data, packages = saved.get("data"), saved.get("plugins") or ()
        if not isinstance(data, dict) or not are_packages(packages):
            raise ConfigError(f"{file}: is damaged, data and plugins must be those of a run")
        imported = [p for p in packages if p in imported_packages()]
        of_run = data.get("augmentation")
        if self.data.augmentation is not None and isinstance(of_run, dict):
            named = self.data.augmentation.model_dump(exclude_unset=True)
            wanted["augmentation"] = of_run | named  # keys that are not named are as in the run
        try:
            return self._checked({**data, **wanted}, [*self.plugins, *imported])
        except ConfigError:
            check_named(file, packages, self.plugins)  # may be the reason
            raise

    def _checked(self, values: dict[str, Any], packages: Sequence[str]) -> DataConfig:
        data = parse(DataConfig, values, "data")
        data.look_in(tuple(dict.fromkeys(packages)))
        _ = data.settings
        return data


class EvaluateConfig(SavedEncoderConfig):
    """A saved encoder, the images to evaluate it with, and how."""

    file = "evaluate"

    protocols: tuple[Protocol, ...] = Field(min_length=1)
    seeds: int = Field(ge=1)
    evaluation: ScoresConfig
    device: Device
    name: OptionalPathText

    @field_validator("name")
    @classmethod
    def _name_is_that_of_a_file(cls, value: str | None) -> str | None:
        if value is not None and not NAME.fullmatch(value):
            raise ValueError(
                f"name={value}: must be the name of a file without .json: at most 100 letters, "
                "digits, . _ and -"
            )
        return value
