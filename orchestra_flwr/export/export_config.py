"""The configuration of `orchestra-export`."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from orchestra_flwr.config import OptionalPathText, SavedEncoderConfig, ScoresConfig

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class ExportConfig(SavedEncoderConfig):
    """A saved encoder, and the form in which it is exported."""

    file = "export"

    format: Literal["onnx", "torch_export", "timm", "peft", "hub", "detectron2"]
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
        """Keys that have no effect with the chosen format, or without 8 bits, and why."""
        unread: dict[str, str] = {}
        if not self.int8:
            unread |= dict.fromkeys(("calibration", "evaluation", "data"), "without int8=true")
        if self.format != "hub":
            unread["license"] = "without format=hub"
        if self.format in ("timm", "peft", "hub", "detectron2"):
            unread |= dict.fromkeys(("any_size", "tolerance"), f"with format={self.format}")
        if not self.push_to_hub:
            unread["private"] = "without push_to_hub"
        return unread

    @model_validator(mode="after")
    def _choices_fit(self) -> Self:
        if self.int8 and self.format != "onnx":
            raise ValueError("int8=true: needs format=onnx, whose runtime quantises")
        if self.push_to_hub and self.format != "hub":
            raise ValueError(f"push_to_hub={self.push_to_hub}: needs format=hub")
        if self.push_to_hub and not REPOSITORY.fullmatch(self.push_to_hub):
            raise ValueError(f"push_to_hub={self.push_to_hub}: must be owner/name")
        if (precision := self.evaluation.precision) != "float32":
            raise ValueError(
                f"evaluation.precision={precision}: must be float32, in which exported files "
                "compute and are measured"
            )
        return self

    @property
    def exported(self) -> Path:
        """The folder of what is written."""
        name = "hub" if self.format == "hub" else "export"
        return Path(self.folder) if self.folder else self.beside(name)
