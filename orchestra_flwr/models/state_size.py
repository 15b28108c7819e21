"""How large a network's state is, known before it takes any memory."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Without memory torch runs these by rules of its compiler, whose import takes .7 to 2.4 s. The
# result is the first argument.
FILLED = ("normal_", "trunc_normal_", "_foreach_lerp_", "normalize")


class StateSize(NamedTuple):
    """How large a network's state is."""

    numbers: int  # elements of all tensors
    size: int  # bytes of all tensors
    trained: int  # bytes of those that have gradients


def state_size(build: Callable[[], nn.Module]) -> StateSize:
    """The size of the state of what is built; tensors that are shared count once.

    While it is built tensors have shapes and types, but no memory and no values. All sizes are 0
    for a network that looks at values of its own tensors.
    """
    try:
        with torch.device("meta"), _SizesOnly(), torch.random.fork_rng(devices=[]):
            state = build().state_dict(keep_vars=True)
    except (NotImplementedError, RuntimeError):
        return StateSize(0, 0, 0)
    tensors = {id(tensor): tensor for tensor in state.values()}.values()
    trained = [tensor for tensor in tensors if tensor.requires_grad]
    return StateSize(sum(t.numel() for t in tensors), _bytes(tensors), _bytes(trained))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


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
