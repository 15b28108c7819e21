"""Mixed precision: what modules compute is in bfloat16, everything else in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from orchestra_flwr.config import Precision


@contextmanager
def passes_in(precision: Precision, model: nn.Module, device_type: str) -> Iterator[None]:
    """Inside the block the passes through a model's parts run in `precision` and return float32.

    A part is a child with a `forward` of its own that returns one tensor, for example a backbone
    or a head; containers are looked into. In bfloat16 its convolutions and products are autocast,
    while its weights, their gradients and normalisation statistics stay float32. What the model
    itself makes of the parts' outputs, such as a loss, is float32, without knowing of any of this.

    bfloat16 has float32's range, so no loss needs scaling. A processor without instructions for
    it gives the same kind of result, only slower than in float32.

    Args:
        precision: float32 changes nothing.
        model: its parts' `forward` is replaced while the block lasts.
        device_type: of the model's device, such as "cpu" or "cuda".
    """

    def forward(part: nn.Module, *inputs: Any) -> Tensor:
        with torch.autocast(device_type, torch.bfloat16):
            output: Tensor = type(part).forward(part, *inputs)
        return output.float()

    parts = set() if precision == "float32" else set(_parts(model))
    for part in parts:
        # Bound to the part, so that a deep copy of it passes through its own weights.
        part.__dict__["forward"] = MethodType(forward, part)
    try:
        yield
    finally:
        for part in parts:
            del part.__dict__["forward"]


def _parts(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if type(child).forward is nn.Module.forward:  # a container: nothing passes through it
            yield from _parts(child)
        else:
            yield child
