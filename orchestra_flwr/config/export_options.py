"""The configuration of `orchestra-export`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from orchestra_flwr.config.evaluate import SavedEncoderConfig
from orchestra_flwr.config.section import OptionalPathText
from orchestra_flwr.config.sections import ScoresConfig


class ExportConfig(SavedEncoderConfig):
    """A saved encoder, and what is made of it."""

    file = "export"

    format: Literal["onnx", "torch_export"]
    folder: OptionalPathText
    any_size: bool
    tolerance: float = Field(gt=0, lt=1)
    int8: bool
    calibration: int = Field(ge=1)
    evaluation: ScoresConfig

    @model_validator(mode="after")
    def _only_onnx_is_quantised(self) -> Self:
        if self.int8 and self.format != "onnx":
            raise ValueError("int8=true: needs format=onnx, whose runtime quantises")
        return self
