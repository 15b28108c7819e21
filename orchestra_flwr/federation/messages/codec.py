"""Fewer bytes for a model: 16- or 8-bit codes for its values, and a scale for each block of them.

A block is at most `BLOCK` consecutive values of one tensor; its largest magnitude sets its scale,
so the range of the codes is always used up, whatever the values' own, and no tensor's values
depend on another's. Linear codes and unbiased rounding: Alistarh et al., "QSGD", NeurIPS 2017; a
scale a block: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

BLOCK = 4096  # values that share a scale: smaller blocks hardly round less (docs/performance.md)
CHUNK = 1 << 18  # values that are worked at a time: they stay in a core's cache
INT8 = 127  # the largest code
SMALLEST = torch.finfo(torch.float32).tiny  # scales below would have lost digits themselves

Form = dict[str, tuple[np.dtype, int]]  # name of an array to its type and number of values
Entries = Sequence[tuple[str, tuple[int, ...]]]  # names and shapes of tensors


class Codec(Protocol):
    """Turns a flat float32 array into the arrays that travel for it, and back."""

    def form(self, name: str) -> Form:
        """What :meth:`encode` returns for `name`."""

    def encode(
        self, name: str, flat: np.ndarray, generator: torch.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """The arrays that travel.

        Args:
            name: what their names begin with.
            flat: (size,) float32.
            generator: rounds at random and without bias; None: to the nearest code.

        Raises:
            ValueError: values that are not finite, where they cannot be encoded.
        """

    def decode(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """(size,) float32 from the arrays that :meth:`encode` made for `name`.

        Raises:
            ValueError: an array is missing, or has another type or size.
        """


class PlainCodec:
    """The values themselves, without a copy."""

    def __init__(self, size: int) -> None:
        self._size = size

    def form(self, name: str) -> Form:
        """One float32 array of that name."""
        return {name: (np.dtype(np.float32), self._size)}

    def encode(
        self, name: str, flat: np.ndarray, generator: torch.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """As :meth:`Codec.encode`; nothing is rounded or checked."""
        return {name: flat}

    def decode(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """As :meth:`Codec.decode`."""
        return _fitting(arrays, self.form(name))[name]


@dataclass(frozen=True)
class _Span:
    """Blocks of one tensor that are worked at a time."""

    kind: str  # the type of their codes
    blocks: int
    width: int  # values of each block
    start: int  # where their values stand in the flat array,
    code: int  # their codes among those of this type,
    scale: int  # and their scales among all scales

    def of(self, values: Tensor, start: int) -> Tensor:
        """(blocks, width) view of `values` from `start`."""
        return values[start : start + self.blocks * self.width].view(self.blocks, self.width)


class BlockCodec:
    """Codes and scales: `int8` or `float16` for matrices and kernels, `float16` for vectors.

    Variances travel as they are. One that falls from 1 to 1e-4 in a round would be lost, or become
    negative, in the rounding of its change; they are a two-thousandth of a model.

    An int8 value is wrong by at most half its block's scale, the largest magnitude / 127, or by
    less than the scale where rounding is random; a float16 value by 2^-11 of itself, or 2^-25 of
    the largest where that is more. Blocks below 1.5e-36 become zeros.

    Args:
        entries: names and shapes of the tensors in the flat array, in order.
        matrices: type of the codes of tensors of two and more dimensions.
        block: values that share a scale, at most `CHUNK`.
    """

    def __init__(
        self, entries: Entries, matrices: Literal["float16", "int8"], block: int = BLOCK
    ) -> None:
        self._block = block
        self._counts = {"int8": 0, "float16": 0, "float32": 0, "scales": 0}
        self._spans: list[_Span] = []
        self._size = 0
        for name, shape in entries:
            vectors = "float32" if name.endswith("running_var") else "float16"
            self._plan(math.prod(shape), matrices if len(shape) >= 2 else vectors)

    def _plan(self, count: int, kind: str) -> None:
        """Cuts one tensor into spans of whole blocks, and one for a shorter block at the end."""
        while count:
            width = min(count, self._block)
            blocks = min(count, CHUNK) // width
            counts = self._counts
            self._spans.append(
                _Span(kind, blocks, width, self._size, counts[kind], counts["scales"])
            )
            counts[kind] += blocks * width
            counts["scales"] += blocks if kind != "float32" else 0
            self._size += blocks * width
            count -= blocks * width

    def form(self, name: str) -> Form:
        """`<name>.int8`, `.float16`, `.float32` as far as there are such, and `.scales`."""
        return {
            f"{name}.{part}": (np.dtype("float32" if part == "scales" else part), count)
            for part, count in self._counts.items()
            if count
        }

    def encode(
        self, name: str, flat: np.ndarray, generator: torch.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """As :meth:`Codec.encode`; float16 is always rounded to the nearest."""
        values = _tensor(_fitting({name: flat}, {name: (np.dtype(np.float32), self._size)})[name])
        arrays = {part: np.empty(count, dtype) for part, (dtype, count) in self.form(name).items()}
        parts = {part: torch.from_numpy(array) for part, array in arrays.items()}
        for span in self._spans:
            source = span.of(values, span.start)
            codes = span.of(parts[f"{name}.{span.kind}"], span.code)
            if span.kind == "float32":
                _refuse_not_finite(source)
                codes.copy_(source)
            else:
                scales = parts[f"{name}.scales"][span.scale : span.scale + span.blocks]
                scales.copy_(_encode_blocks(source, codes, generator))
        return arrays

    def decode(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """As :meth:`Codec.decode`; finite only if the scales are, and not too large."""
        parts = {part: _tensor(a) for part, a in _fitting(arrays, self.form(name)).items()}
        values = torch.empty(self._size)
        for span in self._spans:
            codes = span.of(parts[f"{name}.{span.kind}"], span.code)
            target = span.of(values, span.start)
            if span.kind == "float32":
                target.copy_(codes)
            else:
                scales = parts[f"{name}.scales"][span.scale : span.scale + span.blocks]
                torch.mul(codes, scales[:, None], out=target)
        return values.numpy()


def _encode_blocks(values: Tensor, codes: Tensor, generator: torch.Generator | None) -> Tensor:
    """Fills (blocks, width) codes and returns the (blocks,) scales: values = codes * scales."""
    largest = values.abs().amax(1)
    _refuse_not_finite(largest)
    top = INT8 if codes.dtype == torch.int8 else 1
    # The largest float32 / 127, rounded, is just too large: times 127 it would be infinite.
    scales = (largest / top).clamp_(max=torch.finfo(torch.float32).max / top * (1 - 2**-22))
    scales[scales < SMALLEST] = 0
    scaled = values / torch.where(scales > 0, scales, torch.inf)[:, None]
    if codes.dtype == torch.int8:
        if generator is None:
            scaled.round_()
        else:
            scaled.add_(torch.rand(scaled.shape, generator=generator)).floor_()
        scaled.clamp_(-INT8, INT8)
    codes.copy_(scaled)
    return scales


def _refuse_not_finite(values: Tensor) -> None:
    if not values.isfinite().all():
        raise ValueError("values that are not finite cannot be encoded")


def _fitting(arrays: Mapping[str, np.ndarray], form: Form) -> Mapping[str, np.ndarray]:
    for name, (dtype, count) in form.items():
        if name not in arrays:
            raise ValueError(f"the message holds no {name}")
        found = arrays[name]
        if found.dtype != dtype or found.shape != (count,):
            raise ValueError(
                f"expected {count} values of {dtype}, {name} is {found.dtype} {found.shape}"
            )
    return arrays


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.require(array, requirements="W"))
