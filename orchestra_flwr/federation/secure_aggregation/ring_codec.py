"""Updates as integers that can be added up without a look at them, and back.

Each tensor has a range that server and clients know, for it follows from the model that was sent.
What exceeds it is cut, and clients that had to cut are counted, in the sum. A value is rounded at
random and without bias to one of as many levels as fit into the ring for all clients together, so
that no sum can overflow. Matrices have 16 bits with any `federation.wire` but float32. Vectors,
whose range is wide (a variance may fall from 1 to 1e-4), have 32, and with float32 all values.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.secure_aggregation.sum_codec import Numbers, SumCodec
from orchestra_flwr.seeding import ClientSeed

MOST_METRICS = 64  # losses and measures of a client
FIXED = ("weight", "images", "cut")  # the numbers before them
# Of numbers: 2^-24 is the smallest, 2^26 the largest, and a thousand of these stay below 2^63.
UNIT, LARGEST = 2.0**-24, 2.0**26
LEAST_RANGE = 0.05  # of a tensor that is zero, or nearly so
WIDE = 64  # by how much the range of 32 bits is wider


class RingCodec(SumCodec):
    """Each value with as many bits as the wire has, beside the numbers.

    Args:
        uniform: whether all clients count alike, whatever weight one sends.
    """

    def __init__(self, schemas: Schemas, *, uniform: bool = False) -> None:
        self._uniform = uniform
        self._spans = list(zip(schemas.shared.entries, schemas.shared.spans, strict=True))
        self._narrow = schemas.wire != "float32"
        self._size = schemas.shared.size

    def _bits(self, shape: Sequence[int]) -> int:
        return 16 if self._narrow and len(shape) >= 2 else 32

    @property
    def layout(self) -> tuple[tuple[int, int], ...]:
        """Bits and number of integers of each part: 16 bits if there are such, 32, and 64."""
        counts = {16: 0, 32: 0}
        for (_, shape), span in self._spans:
            counts[self._bits(shape)] += span.stop - span.start
        parts = tuple((bits, count) for bits, count in counts.items() if count)
        return (*parts, (64, len(FIXED) + MOST_METRICS))

    def encode(
        self,
        trained: np.ndarray,
        received: np.ndarray,
        numbers: Numbers,
        clients: int,
        seed: ClientSeed,
    ) -> list[np.ndarray]:
        """Cut to the range and rounded; the numbers come last."""
        generator = np.random.default_rng(seed.generator("wire").initial_seed())
        parts: dict[int, list[np.ndarray]] = {16: [], 32: []}
        cut = False
        for (name, shape), span in self._spans:
            bits = self._bits(shape)
            levels, step = self._levels(bits, received[span], clients)
            update = trained[span] - received[span]
            if not np.isfinite(update).all():
                raise ValueError(f"the update of {name} is not finite")
            scaled = update.astype(np.float64) * (numbers.weight / step)
            cut = cut or bool(np.abs(scaled).max(initial=0) > levels)
            scaled += generator.random(scaled.shape)
            integers = np.clip(np.floor(scaled), -levels, levels)
            parts[bits].append(integers.astype(f"<i{bits // 8}").view(f"<u{bits // 8}"))
        found = [np.concatenate(arrays) for arrays in parts.values() if arrays]
        return [*found, self._as_integers(numbers, cut)]

    def decode(
        self,
        total: Sequence[np.ndarray],
        received: np.ndarray,
        clients: int,
        survivors: int,
        names: Sequence[str],
    ) -> tuple[np.ndarray, Numbers]:
        """Refuses weights that are not of so many clients, each at most 1."""
        *parts, last = total
        numbers = self._as_numbers(last, names)
        if self._uniform:
            numbers = replace(numbers, weight=float(survivors))
        if not 0 < numbers.weight <= survivors:
            raise ValueError(
                f"the weights of all clients together are {numbers.weight:g}, they must be above 0 "
                f"and at most {survivors}"
            )
        places = {8 * part.itemsize: 0 for part in parts}
        arrays = {8 * part.itemsize: part.view(f"<i{part.itemsize}") for part in parts}
        mean = received.copy()
        for (_, shape), span in self._spans:
            bits = self._bits(shape)
            _, step = self._levels(bits, received[span], clients)
            start = places[bits]
            places[bits] = stop = start + span.stop - span.start
            mean[span] += arrays[bits][start:stop] * (step / numbers.weight)
        return mean, numbers

    @staticmethod
    def _levels(bits: int, received: np.ndarray, clients: int) -> tuple[int, float]:
        """The largest integer of a client, and what 1 stands for."""
        largest = max(LEAST_RANGE, float(np.abs(received).max(initial=0)))
        levels = (2 ** (bits - 1) - 1) // clients
        return levels, largest * (WIDE if bits == 32 else 1) / levels

    @staticmethod
    def _as_integers(numbers: Numbers, cut: bool) -> np.ndarray:
        if len(numbers.metrics) > MOST_METRICS:
            raise ValueError(f"{len(numbers.metrics)} metrics, at most {MOST_METRICS} have room")
        values = [numbers.weight, numbers.images, float(cut)]
        values += [value * numbers.weight for _, value in sorted(numbers.metrics.items())]
        if not all(map(math.isfinite, values)):
            raise ValueError("a loss or a measure is not finite")
        row = np.zeros(len(FIXED) + MOST_METRICS, np.int64)
        row[: len(values)] = [round(min(max(v, -LARGEST), LARGEST) / UNIT) for v in values]
        return row.view("<u8")

    @staticmethod
    def _as_numbers(row: np.ndarray, names: Sequence[str]) -> Numbers:
        weight, images, cut, *metrics = (row.view("<i8") * UNIT).tolist()
        return Numbers(weight, images, cut, dict(zip(sorted(names), metrics, strict=False)))
