"""Updates as integers that can be added up without being seen, and back.

:class:`NoisyCodec` clips updates and adds noise; :class:`RingCodec` takes whole ones with losses.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestra_flwr.config import Config
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.privacy.discrete_gaussian import discrete_gaussian
from orchestra_flwr.privacy.noisy_sums import NoisySum
from orchestra_flwr.privacy.secure_sums.primitives import Vector
from orchestra_flwr.privacy.updates import clipped_update
from orchestra_flwr.seeding import ClientSeed

MAX_METRICS = 64  # losses and measures of a client
FIXED = ("weight", "images", "cut")  # the numbers before them
# Of numbers: 2^-24 is the smallest, 2^26 the largest, and a thousand of these stay below 2^63.
UNIT, LARGEST = 2.0**-24, 2.0**26
MIN_RANGE = 0.05  # of a tensor that is zero, or nearly so
WIDE = 64  # factor by which the range of 32-bit values is wider


@dataclass(frozen=True)
class Numbers:
    """What a client sends beside its update, metrics times its weight; for a sum, the sums."""

    weight: float  # how much its update counts, from 0 to 1
    images: float  # that it trained on
    cut: float  # 1 if some of its update was out of range, else 0
    metrics: Mapping[str, float]  # losses and measures, by name


@dataclass(frozen=True)
class Start:
    """What all clients of a sum begin with."""

    received: np.ndarray  # (size,) float32 state before training
    clients: int  # how many they are, which is the most that the sum can have


class SumCodec(ABC):
    """Encodes one client's update, and decodes the sum of all."""

    noise = 0.0  # of the sum in units of the clip; 0: there is none

    @property
    @abstractmethod
    def layout(self) -> tuple[tuple[int, int], ...]:
        """Bits and number of integers of each part of a vector."""

    def check(self, clients: int) -> None:  # noqa: B027 (most fit any number of clients)
        """Refuses a sum of so many clients.

        Raises:
            ValueError: it does not fit into the integers.
        """

    @abstractmethod
    def encode(
        self, trained: np.ndarray, start: Start, numbers: Numbers, seed: ClientSeed
    ) -> Vector:
        """A client's integers, in the parts of the layout.

        Args:
            trained: (size,) float32 state after training.
            numbers: of the client; `cut` is found here.
            seed: of the rounding, and in simulations of noise.

        Raises:
            ValueError: values that are not finite, or that do not fit into the integers.
        """

    @abstractmethod
    def decode(
        self, total: Vector, start: Start, survivors: int, names: Sequence[str]
    ) -> tuple[np.ndarray, Numbers]:
        """The mean of the clients' states, and the sums of their numbers.

        Args:
            total: the sum of what clients encoded.

        Raises:
            ValueError: numbers that no such clients can have sent.
        """


class NoisyCodec(SumCodec):
    """Clipped and covered by noise, for runs with `privacy.noise_multiplier`.

    The sum holds nothing but what the noise covers: no number of images, no loss. All clients
    count alike, and who is in the sum is known anyway.

    Args:
        size: values of an update.
        clip: its L2 norm, at most.
        noise_multiplier: as for :class:`NoisySum`; the attribute `noise`.
    """

    def __init__(self, size: int, clip: float, noise_multiplier: float) -> None:
        self._size, self._clip, self.noise = size, clip, noise_multiplier

    @property
    def layout(self) -> tuple[tuple[int, int], ...]:
        """32 bits per value."""
        return ((32, self._size),)

    def check(self, clients: int) -> None:
        """As :class:`NoisySum` does."""
        NoisySum(self.noise, clients, self._size)

    @np.errstate(over="ignore", invalid="ignore")  # `rounded` refuses it
    def encode(
        self, trained: np.ndarray, start: Start, numbers: Numbers, seed: ClientSeed
    ) -> Vector:
        """Clipped, rounded within the norm, and covered by this client's share of noise."""
        noisy = NoisySum(self.noise, start.clients, self._size)
        if not np.isfinite(trained).all():
            raise ValueError("the update is not finite")
        scaled = clipped_update(start.received, trained, self._clip)
        scaled *= noisy.scale(self._clip)
        generator = np.random.default_rng(seed.generator("wire").initial_seed())
        integers = noisy.rounded(scaled, generator)
        # Private centroids of the same round have noise from the same key in simulations.
        key = hashlib.blake2b(b"noisy sum", key=seed.noise_key(), digest_size=32).digest()
        integers += discrete_gaussian(key, noisy.bits, self._size)
        return [integers.astype("<i4", copy=False).view("<u4")]

    def decode(
        self, total: Vector, start: Start, survivors: int, names: Sequence[str]
    ) -> tuple[np.ndarray, Numbers]:
        """All clients count alike; their number is the only one."""
        noisy = NoisySum(self.noise, start.clients, self._size)
        update = total[0].view("<i4") / (noisy.scale(self._clip) * survivors)
        return (start.received + update).astype(np.float32), Numbers(survivors, 0, 0, {})


class RingCodec(SumCodec):
    """The whole of an update, and the numbers.

    Each tensor has a range that server and clients know, for it follows from the model that was
    sent. What exceeds it is cut, and clients that had to cut are counted, in the sum. A value is
    rounded at random and without bias to one of as many levels as fit into the ring for all clients
    together, so that no sum can overflow. Matrices have 16 bits with any `federation.wire` but
    float32. Vectors, whose range is wide (a variance may fall from 1 to 1e-4), have 32 bits; with
    float32, so have all values.

    Args:
        uniform: whether all clients count alike, whatever weight one sends.
    """

    def __init__(self, schemas: Schemas, *, uniform: bool = False) -> None:
        self._uniform = uniform
        narrow, shared = schemas.wire != "float32", schemas.shared
        self._tensors = [  # name, bits of each value, and where they lie
            (name, 16 if narrow and len(shape) >= 2 else 32, shared.spans[name])
            for name, shape in shared.entries
        ]

    @property
    def layout(self) -> tuple[tuple[int, int], ...]:
        """Bits and number of integers of each part: 16 bits if there are such, 32, and 64."""
        counts = {16: 0, 32: 0}
        for _, bits, span in self._tensors:
            counts[bits] += span.stop - span.start
        parts = tuple((bits, count) for bits, count in counts.items() if count)
        return (*parts, (64, len(FIXED) + MAX_METRICS))

    def encode(
        self, trained: np.ndarray, start: Start, numbers: Numbers, seed: ClientSeed
    ) -> Vector:
        """Cut to the range and rounded; the numbers come last."""
        generator = np.random.default_rng(seed.generator("wire").initial_seed())
        parts: dict[int, list[np.ndarray]] = {16: [], 32: []}
        cut = False
        for name, bits, span in self._tensors:
            levels, step = self._levels(bits, start.received[span], start.clients)
            update = trained[span] - start.received[span]
            if not np.isfinite(update).all():
                raise ValueError(f"the update of {name} is not finite")
            scaled = update.astype(np.float64) * (numbers.weight / step)
            cut = cut or bool(np.abs(scaled).max(initial=0) > levels)
            scaled += generator.random(scaled.shape)
            integers = np.clip(np.floor(scaled), -levels, levels)
            parts[bits].append(integers.astype(f"<i{bits // 8}").view(f"<u{bits // 8}"))
        vectors = [np.concatenate(arrays) for arrays in parts.values() if arrays]
        return [*vectors, self._as_integers(numbers, cut)]

    def decode(
        self, total: Vector, start: Start, survivors: int, names: Sequence[str]
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
        mean = start.received.copy()
        for _, bits, span in self._tensors:
            _, step = self._levels(bits, start.received[span], start.clients)
            first = places[bits]
            places[bits] = stop = first + span.stop - span.start
            mean[span] += arrays[bits][first:stop] * (step / numbers.weight)
        return mean, numbers

    @staticmethod
    def _levels(bits: int, received: np.ndarray, clients: int) -> tuple[int, float]:
        """The largest integer of a client, and the value that 1 stands for."""
        largest = max(MIN_RANGE, float(np.abs(received).max(initial=0)))
        levels = (2 ** (bits - 1) - 1) // clients
        return levels, largest * (WIDE if bits == 32 else 1) / levels

    @staticmethod
    def _as_integers(numbers: Numbers, cut: bool) -> np.ndarray:
        if len(numbers.metrics) > MAX_METRICS:
            raise ValueError(f"{len(numbers.metrics)} metrics, at most {MAX_METRICS} have room")
        values = [numbers.weight, numbers.images, float(cut)]
        values += [value * numbers.weight for _, value in sorted(numbers.metrics.items())]
        if not all(map(math.isfinite, values)):
            raise ValueError("a loss or a measure is not finite")
        row = np.zeros(len(FIXED) + MAX_METRICS, np.int64)
        row[: len(values)] = [round(min(max(v, -LARGEST), LARGEST) / UNIT) for v in values]
        return row.view("<u8")

    @staticmethod
    def _as_numbers(row: np.ndarray, names: Sequence[str]) -> Numbers:
        weight, images, cut, *metrics = (row.view("<i8") * UNIT).tolist()
        return Numbers(weight, images, cut, dict(zip(sorted(names), metrics, strict=False)))


def codec_of(config: Config, schemas: Schemas) -> SumCodec:
    """The codec of a run with secure aggregation, the same on its server and its clients."""
    privacy = config.privacy
    if privacy.clip is not None and privacy.noise_multiplier > 0:
        return NoisyCodec(schemas.shared.size, privacy.clip, privacy.noise_multiplier)
    return RingCodec(schemas, uniform=config.federation.weighting == "uniform")
