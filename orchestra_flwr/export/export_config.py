"""The configuration of `orchestra-export`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from orchestra_flwr.config import OptionalPathText, SavedEncoderConfig, ScoresConfig

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class ExportConfig(SavedEncoderConfig):
    """A saved encoder, and what is made of it."""

    file = "export"

    format: Literal["onnx", "torch_export", "hub", "detectron2"]
    folder: OptionalPathText
    any_size: bool
    tolerance: float = Field(gt=0, lt=1)
    int8: bool
    calibration: int = Field(ge=1)
    license: str | None
    push_to_hub: str | None
    private: bool
    evaluation: ScoresConfig

    def unread(self) -> dict[str, str]:
        """As :meth:`Composed.unread`: what the format, and one without 8 bits, do not read."""
        found: dict[str, str] = {}
        if not self.int8:
            found |= dict.fromkeys(("calibration", "evaluation", "data"), "without int8=true")
        if self.format != "hub":
            found["license"] = "without format=hub"
        if self.format in ("hub", "detectron2"):
            found |= dict.fromkeys(("any_size", "tolerance"), f"with format={self.format}")
        if not self.push_to_hub:
            found["private"] = "without push_to_hub"
        return found

    @model_validator(mode="after")
    def _only_onnx_is_quantised(self) -> Self:
        if self.int8 and self.format != "onnx":
            raise ValueError("int8=true: needs format=onnx, whose runtime quantises")
        return self

    @model_validator(mode="after")
    def _only_a_hubs_folder_is_pushed(self) -> Self:
        if self.push_to_hub and self.format != "hub":
            raise ValueError(f"push_to_hub={self.push_to_hub}: needs format=hub")
        if self.push_to_hub and not REPOSITORY.fullmatch(self.push_to_hub):
            raise ValueError(f"push_to_hub={self.push_to_hub}: must be owner/name")
        return self

    @model_validator(mode="after")
    def _files_compute_in_float32(self) -> Self:
        if (precision := self.evaluation.precision) != "float32":
            raise ValueError(
                f"evaluation.precision={precision}: must be float32, in which exported files "
                "compute and are measured"
            )
        return self

    @property
    def exported(self) -> Path:
        """Where exported files are written."""
        return Path(self.folder) if self.folder else self.beside("export")

    @property
    def hub_folder(self) -> Path:
        """Where the folder in the layout of the hub is."""
        return Path(self.folder) if self.folder else self.beside("hub")
