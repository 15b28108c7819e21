"""Fewer bytes for a model: 16-, 8- or 4-bit codes for its values, and a scale for each block.

A block is some consecutive values of one tensor; its largest magnitude sets its scale, so the whole
range of the codes is always used, and no tensor's codes depend on another's values. Linear codes
and unbiased rounding: Alistarh et al., "QSGD", NeurIPS 2017; one scale per block: Dettmers et al.,
"8-bit Optimizers via Block-wise Quantization", ICLR 2022. What 4 bits lose of a model is added to
it before it is sent next time (`Schemas.has_residuals`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.federation.messages import base13
from orchestra_flwr.federation.messages.fields import with_prefix
from orchestra_flwr.flower.arrays import as_tensor
from orchestra_flwr.models.batch_norm import is_variance

BLOCK = 4096  # values that share a scale: smaller blocks hardly round less (docs/performance.md)
INT4_BLOCK = 15 * base13.DIGITS  # the same for int4, where smaller ones round less
SMALL = 1 << 14  # a matrix of no more values travels in int8 instead of int4: first layers, heads
CHUNK = 1 << 18  # values that are processed at a time: they stay in a core's cache
LARGEST = {"int4": base13.LARGEST, "int8": 127, "float16": 1}  # the largest codes
SMALLEST = torch.finfo(torch.float32).tiny  # smaller scales would lose digits themselves

# The arrays of a message; the scales of int4 are the bits of bfloat16, which numpy does not have.
DTYPES: dict[str, np.dtype] = {
    "int4": np.dtype(np.int64),
    "int8": np.dtype(np.int8),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "scales": np.dtype(np.float32),
    "int4_scales": np.dtype(np.int16),
}

Form = dict[str, tuple[np.dtype, int]]  # name of an array to its type and number of values
Entries = Sequence[tuple[str, tuple[int, ...]]]  # names and shapes of tensors


class Codec:
    """Turns a flat float32 array into the arrays that travel for it, and back; here unchanged.

    Args:
        size: of the flat array.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def form(self, name: str) -> Form:
        """What :meth:`encode` returns for `name`."""
        return {name: (np.dtype(np.float32), self._size)}

    def encode(
        self, name: str, flat: np.ndarray, generator: torch.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """The arrays that travel; here without a copy or a check.

        Args:
            name: what their names begin with.
            flat: (size,) float32.
            generator: rounds at random and without bias; None: to the nearest code.

        Raises:
            ValueError: values that are not finite, where they cannot be encoded.
        """
        return {name: flat}

    def decode(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """(size,) float32 from the arrays that :meth:`encode` made for `name`.

        Raises:
            ValueError: an array is missing, or has another type or size.
        """
        return _fitting(arrays, self.form(name))[name]


@dataclass(frozen=True)
class _Span:
    """Blocks of one tensor that are processed together."""

    kind: str  # the type of their codes
    blocks: int
    width: int  # values of each block
    start: int  # where their values stand in the flat array,
    code: int  # their codes, or the words that hold them, among those of this type,
    scale: int  # and their scales among all of the type's scales

    @property
    def code_width(self) -> int:
        """Codes of a block, or words that hold them."""
        return base13.words_for(self.width) if self.kind == "int4" else self.width

    @property
    def scale_kind(self) -> str:
        """Which array has their scales."""
        return "int4_scales" if self.kind == "int4" else "scales"

    def values_in(self, flat: Tensor) -> Tensor:
        """(blocks, width) view of the flat array."""
        return self._rows(flat, self.start, self.width)

    def codes_in(self, parts: Mapping[str, Tensor]) -> Tensor:
        """(blocks, code_width) view of the array of their type."""
        return self._rows(parts[self.kind], self.code, self.code_width)

    def scales_in(self, parts: Mapping[str, Tensor]) -> Tensor:
        """(blocks, 1) view of the array of their scales."""
        return self._rows(parts[self.scale_kind], self.scale, 1)

    def _rows(self, array: Tensor, start: int, width: int) -> Tensor:
        return array[start : start + self.blocks * width].view(self.blocks, width)


class BlockCodec(Codec):
    """Codes and scales: 4, 8 or 16 bits for matrices and kernels, `float16` for vectors.

    Variances travel as they are. One that falls from 1 to 1e-4 in a round would be lost, or become
    negative, in the rounding of its change; they are a two-thousandth of a model.

    An int8 value is wrong by at most half its block's scale, the largest magnitude / 127, or by
    less than the scale where rounding is random; so is one in int4, where the scale is the largest
    magnitude / 6 and rounded up to bfloat16, by at most 1/128. A float16 value is wrong by 2^-11 of
    itself, or 2^-25 of the largest where that is more. Blocks below 1.5e-36 become zeros.

    Args:
        entries: names and shapes of the tensors in the flat array, in order.
        matrices: type of the codes of tensors of two and more dimensions; with int4 that of those
            of more than `SMALL` values, and int8 for the others.
        block: values that share a scale, at most `CHUNK`; None: as many as suit the type.
    """

    def __init__(
        self,
        entries: Entries,
        matrices: Literal["float16", "int8", "int4"],
        block: int | None = None,
    ) -> None:
        super().__init__(0)
        self._block = block
        self._counts = dict.fromkeys(DTYPES, 0)
        self._spans: list[_Span] = []
        for name, shape in entries:
            count, vectors = math.prod(shape), "float32" if is_variance(name) else "float16"
            small = matrices == "int4" and count <= SMALL
            self._plan(count, ("int8" if small else matrices) if len(shape) >= 2 else vectors)

    def _plan(self, count: int, kind: str) -> None:
        """Cuts one tensor into spans of whole blocks, and one for a shorter block at the end."""
        block = self._block or (INT4_BLOCK if kind == "int4" else BLOCK)
        counts = self._counts
        while count:
            width = min(count, block)
            blocks = min(count, CHUNK) // width
            scales = counts["int4_scales" if kind == "int4" else "scales"]
            span = _Span(kind, blocks, width, self._size, counts[kind], scales)
            self._spans.append(span)
            counts[kind] += blocks * span.code_width
            counts[span.scale_kind] += blocks if kind != "float32" else 0
            self._size += blocks * width
            count -= blocks * width

    def form(self, name: str) -> Form:
        """`<name>.int4`, `.int8` and so on as far as there are such, and their scales."""
        return {
            f"{name}.{part}": (DTYPES[part], count) for part, count in self._counts.items() if count
        }

    def encode(
        self, name: str, flat: np.ndarray, generator: torch.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """As :meth:`Codec.encode`; float16 is always rounded to the nearest."""
        values = as_tensor(_fitting({name: flat}, {name: (np.dtype(np.float32), self._size)})[name])
        arrays = {part: np.empty(count, dtype) for part, (dtype, count) in self.form(name).items()}
        parts = _parts(name, arrays)
        for span in self._spans:
            source, codes = span.values_in(values), span.codes_in(parts)
            if span.kind == "float32":
                _refuse_not_finite(source)
                codes.copy_(source)
            else:
                _encode_blocks(source, span.kind, generator, codes, span.scales_in(parts))
        return arrays

    def decode(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """As :meth:`Codec.decode`; finite only if the scales are, and not too large."""
        parts = _parts(name, _fitting(arrays, self.form(name)))
        values = torch.empty(self._size)
        for span in self._spans:
            codes, target = span.codes_in(parts), span.values_in(values)
            if span.kind == "float32":
                target.copy_(codes)
            elif span.kind == "int4":
                numbers = base13.unpack(codes, span.width)
                torch.mul(numbers, _from_bfloat16(span.scales_in(parts)), out=target)
            else:
                torch.mul(codes, span.scales_in(parts), out=target)
        return values.numpy()


def _parts(name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """The arrays of one name without it, as tensors."""
    return {part: as_tensor(array) for part, array in with_prefix(arrays, f"{name}.").items()}


def _encode_blocks(
    values: Tensor, kind: str, generator: torch.Generator | None, codes: Tensor, out: Tensor
) -> None:
    """Fills (blocks, code_width) codes and (blocks, 1) scales: values = codes * scales."""
    largest = values.abs().amax(1, keepdim=True)
    _refuse_not_finite(largest)
    top = LARGEST[kind]
    # The largest float32 / 127, rounded, is just too large: times 127 it would be infinite.
    scales = (largest / top).clamp_(max=torch.finfo(torch.float32).max / top * (1 - 2**-22))
    scales[scales < SMALLEST] = 0
    if kind == "int4":
        out.copy_(_bfloat16_above(scales))
        scales = _from_bfloat16(out)
    else:
        out.copy_(scales)
    scaled = values / torch.where(scales > 0, scales, torch.inf)
    if kind != "float16":
        if generator is None:
            scaled.round_()
        else:
            scaled.add_(torch.rand(scaled.shape, generator=generator)).floor_()
        scaled.clamp_(-top, top)
    codes.copy_(base13.pack(scaled) if kind == "int4" else scaled)


def _bfloat16_above(scales: Tensor) -> Tensor:
    """int16 bits of the next larger bfloat16: in a smaller one the largest would not fit."""
    most = torch.finfo(torch.float32).max / LARGEST["int4"] * (1 - 2**-7)
    bits = scales.clamp(max=most).view(torch.int32)
    return ((bits + 0xFFFF) >> 16).to(torch.int16)


def _from_bfloat16(bits: Tensor) -> Tensor:
    """float32 of int16 bits."""
    return bits.view(torch.bfloat16).float()


def _refuse_not_finite(values: Tensor) -> None:
    if not values.isfinite().all():
        raise ValueError("values that are not finite cannot be encoded")


def _fitting(arrays: Mapping[str, np.ndarray], form: Form) -> Mapping[str, np.ndarray]:
    for name, (dtype, count) in form.items():
        if name not in arrays:
            raise ValueError(f"the message holds no {name}")
        array = arrays[name]
        if array.dtype != dtype or array.shape != (count,):
            raise ValueError(
                f"expected {count} values of {dtype}, {name} is {array.dtype} {array.shape}"
            )
    return arrays
