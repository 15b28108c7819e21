"""Building networks without memory, to know how large they are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# What torch computes without memory by its compiler's rules, whose import takes .7 to 2.4 s.
FILLED = ("normal_", "trunc_normal_", "_foreach_lerp_")


@contextmanager
def sizes_only() -> Iterator[None]:
    """Tensors that are made in the block have shapes and types, but no memory and no values.

    A network that looks at values of its own tensors cannot be built in it.

    Raises:
        NotImplementedError, RuntimeError: the block asks for values.
    """
    with torch.device("meta"), _SizesOnly(), torch.random.fork_rng(devices=[]):
        yield


class _SizesOnly(TorchFunctionMode):
    """Leaves out what fills a tensor with values, as far as that takes long to import."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func.__name__ in FILLED:
            return args[0] if args else named["tensor"]
        return func(*args, **named)
