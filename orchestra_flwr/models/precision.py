"""Mixed precision: networks compute in bfloat16, all else in float32.

With `training.precision=bfloat16` the passes of networks run under torch.autocast: convolutions and
matrix products compute in bfloat16, while weights, their gradients and normalisation statistics
stay float32. Networks (backbones and heads) return float32, so losses, cosines and clusterings
compute in float32.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from orchestra_flwr.config import Precision

_DEVICE_TYPE: ContextVar[str | None] = ContextVar("device type", default=None)  # with bfloat16

S = TypeVar("S")
P = ParamSpec("P")


@contextmanager
def passes_in(precision: Precision, device_type: str) -> Iterator[None]:
    """Has networks compute in `precision` inside the block.

    bfloat16 has float32's range, so no loss needs scaling. A processor without instructions for
    it gives the same kind of result, only slower than in float32.

    Args:
        precision: float32 changes nothing.
        device_type: of the networks' device, such as "cpu" or "cuda".
    """
    token = _DEVICE_TYPE.set(None if precision == "float32" else device_type)
    try:
        yield
    finally:
        _DEVICE_TYPE.reset(token)


def network_pass(
    forward: Callable[Concatenate[S, P], Tensor],
) -> Callable[Concatenate[S, P], Tensor]:
    """Makes a network's method compute in the precision of :func:`passes_in` and return float32.

    Weights are cast anew for every pass: the gradients of passes that shared a cast would be summed
    in bfloat16.
    """

    @wraps(forward)
    def computed(self: S, /, *arguments: P.args, **named: P.kwargs) -> Tensor:
        device_type = _DEVICE_TYPE.get()
        if device_type is None:
            return forward(self, *arguments, **named)
        token = _DEVICE_TYPE.set(None)  # networks within this one are parts of it
        try:
            with torch.autocast(device_type, torch.bfloat16, cache_enabled=False):
                return forward(self, *arguments, **named).float()
        finally:
            _DEVICE_TYPE.reset(token)

    return computed
