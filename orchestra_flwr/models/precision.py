"""Mixed precision: networks compute in bfloat16, losses in float32.

With `training.precision=bfloat16` a client's passes run under torch.autocast: convolutions and
matrix products compute in bfloat16, while weights, their gradients and normalisation statistics
stay float32. A function decorated with :func:`in_float32` takes no part in that: it gets float32
tensors and computes in float32, as losses, cosines and normalisations of features must.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from orchestra_flwr.config import Precision

DEVICE_TYPES = ("cpu", "cuda")  # on which clients train

P = ParamSpec("P")
R = TypeVar("R")


def passes_in(precision: Precision, device_type: str) -> AbstractContextManager[object]:
    """Inside the block networks compute in `precision`.

    bfloat16 has float32's range, so no loss needs scaling. A processor without instructions for
    it gives the same kind of result, only slower than in float32.

    Weights are cast for every pass anew. From a cast that several passes share they would get the
    passes' gradients summed in bfloat16.

    Args:
        precision: float32 changes nothing.
        device_type: of the networks' device, such as "cpu" or "cuda".
    """
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device_type, torch.bfloat16, cache_enabled=False)


def in_float32(function: Callable[P, R]) -> Callable[P, R]:
    """The function, computing in float32 whatever precision surrounds the call.

    Its tensor arguments, also those in lists and tuples, are made float32 where they are of a
    lower precision; gradients go back through that.

    Example:
        >>> cross_entropy = in_float32(F.cross_entropy)
        >>> loss = cross_entropy(head(features), labels)
    """

    @wraps(function)
    def computed(*arguments: P.args, **named: P.kwargs) -> R:
        with ExitStack() as stack:
            for device_type in DEVICE_TYPES:
                if torch.is_autocast_enabled(device_type):
                    stack.enter_context(torch.autocast(device_type, enabled=False))
            widened = {name: _widened(value) for name, value in named.items()}
            return function(*map(_widened, arguments), **widened)

    return computed


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if type(value) in (list, tuple):
        return type(value)(map(_widened, value))
    return value
