"""How large a network's state is, known before it takes any memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

# Without memory torch runs these by rules of its compiler, whose import takes .7 to 2.4 s. The
# result is the first argument.
FILLED = ("normal_", "trunc_normal_", "_foreach_lerp_", "normalize")


def state_size(build: Callable[[], nn.Module]) -> tuple[int, int]:
    """Elements and bytes of the state of what is built; tensors that are shared count once.

    While it is built tensors have shapes and types, but no memory and no values. Both are 0 for a
    network that looks at values of its own tensors.
    """
    try:
        with torch.device("meta"), _SizesOnly(), torch.random.fork_rng(devices=[]):
            state = build().state_dict(keep_vars=True)
    except (NotImplementedError, RuntimeError):
        return 0, 0
    tensors = {id(tensor): tensor for tensor in state.values()}.values()
    return sum(t.numel() for t in tensors), sum(t.numel() * t.element_size() for t in tensors)


class _SizesOnly(TorchFunctionMode):
    """Skips the operations that fill a tensor with values and would take long to import."""

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
        if func.__name__ == "randn":  # the same, with a generator
            return torch.empty(*args, **{k: v for k, v in named.items() if k != "generator"})
        return func(*args, **named)
