"""What travels: flat arrays a role, named, with a fingerprint of the tensors inside.

A message down holds the shared state, and "server" where a method has server state. A message up
holds what was trained (not after the first round) and the method's contributions; the answer to an
evaluation holds no arrays at all. Nothing else can be packed: the tensors are chosen by role, and
private ones have no schema.

With `federation.wire=float32` the shared state is one array, "shared", both ways. With fewer bits
:mod:`orchestra_flwr.federation.codec` makes several arrays of it, and clients send what training
*changed* of the state that they received ("update"): changes are small, so fewer bits lose little
of them. The server knows what clients made of its state, since encoding it has one outcome, and
adds their updates to its own float32 state, so that no rounding is ever added up over the rounds.
Server state and contributions are small, and clustering and its privacy depend on their values:
they are always float32.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from orchestra_flwr.config import Wire
from orchestra_flwr.federation.codec import BlockCodec, Codec, PlainCodec
from orchestra_flwr.methods import Method, Role

ARRAYS = "arrays"  # the ArrayRecord of a message, both ways
CONFIG = "config"  # the ConfigRecord of a message, both ways
METRICS = "metrics"  # the MetricRecord of a reply
SMALLEST_CLUSTER = "smallest_cluster"  # a reply's metric: images behind its smallest row, 0 without
CLIENT_FAILED = 101  # error code of a client that says itself what went wrong
RUN = "run"  # of a task: which run this is, where clients keep state
CLIENTS = "clients"  # of a task: the folder for the clients' state, where they share the disk
OUT_OF_MEMORY = 102  # the same: what went wrong is that its memory was not enough
TOLD_BY_CLIENT = {CLIENT_FAILED, OUT_OF_MEMORY}
FORMAT = 4  # raised whenever messages, or the codes in them, change their meaning

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # as_tensor


@dataclass(frozen=True)
class Schema:
    """Names and shapes of a role's tensors, in the order in which they are packed."""

    entries: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, method: Method, role: Role) -> Schema:
        """The schema of one role of a method.

        Raises:
            ValueError: the role is the client's own.
        """
        if role in (Role.LOCAL, Role.PRIVATE):
            raise ValueError(f"{role.value} state never travels")
        return cls(tuple((name, tuple(t.shape)) for name, t in method.state(role).items()))

    @cached_property
    def size(self) -> int:
        """Number of values."""
        return sum(int(np.prod(shape)) for _, shape in self.entries)

    @cached_property
    def fingerprint(self) -> str:
        """Differs whenever a name, a shape, the order or the message format differs."""
        return hashlib.sha256(repr((FORMAT, self.entries)).encode()).hexdigest()[:16]

    def pack(self, state: Mapping[str, Tensor]) -> np.ndarray:
        """(size,) float32 array of all tensors."""
        parts = [state[name].detach().reshape(-1).float() for name, _ in self.entries]
        return torch.cat(parts).cpu().numpy() if parts else np.zeros(0, np.float32)

    def unpack(self, flat: np.ndarray, into: Mapping[str, Tensor]) -> None:
        """Copies a packed array into tensors of the same names and shapes.

        Raises:
            ValueError: the array has another size.
        """
        if flat.shape != (self.size,):
            raise ValueError(f"expected {self.size} values, got an array {flat.shape}")
        source = as_tensor(flat)
        start = 0
        with torch.no_grad():
            for name, shape in self.entries:
                count = int(np.prod(shape))
                into[name].copy_(source[start : start + count].view(shape))
                start += count


@dataclass(frozen=True)
class Schemas:
    """The schemas of everything that travels for a method, and how its shared state is encoded."""

    shared: Schema
    server: Schema
    wire: Wire = "float32"

    @classmethod
    def of(cls, method: Method, wire: Wire = "float32") -> Schemas:
        """Both schemas of a method."""
        return cls(Schema.of(method, Role.SHARED), Schema.of(method, Role.SERVER), wire)

    @cached_property
    def codec(self) -> Codec:
        """How shared state, and what clients send of it, is encoded."""
        if self.wire == "float32":
            return PlainCodec(self.shared.size)
        return BlockCodec(self.shared.entries, self.wire)

    @cached_property
    def fingerprint(self) -> str:
        """What server and client compare before they trust each other's arrays."""
        return f"{self.shared.fingerprint}-{self.server.fingerprint}-{self.wire}"

    @property
    def sends_updates(self) -> bool:
        """Whether clients send the change of the shared state instead of the state."""
        return self.wire != "float32"

    @property
    def reply(self) -> str:
        """The name of what clients send of the shared state."""
        return "update" if self.sends_updates else Role.SHARED.value

    @property
    def down(self) -> list[str]:
        """The names of the arrays of a message down, in order."""
        shared = self.codec.form(Role.SHARED.value) if self.shared.size else ()
        return [*shared, *([Role.SERVER.value] if self.server.size else [])]

    def as_received(self, shared: np.ndarray) -> np.ndarray:
        """(size,) shared state as clients decode it: the same on every machine, and every time."""
        return self.codec.decode(Role.SHARED.value, self.codec.encode(Role.SHARED.value, shared))

    def pack_trained(
        self, trained: np.ndarray, received: np.ndarray | None, generator: torch.Generator
    ) -> dict[str, np.ndarray]:
        """What a client sends of its shared state.

        Args:
            trained: (size,) state after training; an update is made in its memory.
            received: (size,) state before it; needed where `sends_updates`.
            generator: of the unbiased rounding of updates.

        Raises:
            ValueError: an update that is not finite.
        """
        if self.sends_updates:
            assert received is not None
            trained -= received
        return self.codec.encode(self.reply, trained, generator)

    def unpack_trained(
        self, arrays: Mapping[str, np.ndarray], received: np.ndarray | None
    ) -> np.ndarray:
        """(size,) state after training that a client's arrays tell.

        Args:
            arrays: as :meth:`pack_trained` makes them.
            received: (size,) state before it; needed where `sends_updates`.

        Raises:
            ValueError: an array is missing, or has another type or size.
        """
        values = self.codec.decode(self.reply, arrays)
        if self.sends_updates:
            assert received is not None
            values += received
        return values


def pack_state(method: Method, schemas: Schemas) -> ArrayRecord:
    """The arrays of a message down."""
    arrays: dict[str, np.ndarray] = {}
    if schemas.shared.size:
        shared = schemas.shared.pack(method.state(Role.SHARED))
        arrays |= schemas.codec.encode(Role.SHARED.value, shared)
    if schemas.server.size:
        arrays[Role.SERVER.value] = schemas.server.pack(method.state(Role.SERVER))
    return to_record(arrays)


def unpack_state(arrays: Mapping[str, np.ndarray], method: Method, schemas: Schemas) -> None:
    """Copies the arrays of a message down into a method.

    Raises:
        ValueError: an array is missing or has another size.
    """
    if schemas.shared.size:
        shared = schemas.codec.decode(Role.SHARED.value, arrays)
        schemas.shared.unpack(shared, method.state(Role.SHARED))
    if schemas.server.size:
        if Role.SERVER.value not in arrays:
            raise ValueError(f"the message holds no {Role.SERVER.value} state")
        schemas.server.unpack(arrays[Role.SERVER.value], method.state(Role.SERVER))


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Named numpy arrays as Flower's record."""
    return ArrayRecord({name: _encoded(np.ascontiguousarray(a)) for name, a in arrays.items()})


def _encoded(array: np.ndarray) -> Array:
    """`Array(array)` with a single copy; Flower's grows a buffer to twice the array's size."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    data = b"".join((header.getvalue(), array.data))
    return Array(str(array.dtype), array.shape, "numpy.ndarray", data)


def from_record(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Flower's record as named numpy arrays."""
    return {name: array.numpy() for name, array in record.items()}


def as_tensor(values: np.ndarray) -> Tensor:
    """A tensor on the same memory, only to be read, as what Ray's object store holds has to be."""
    return torch.from_numpy(values)


def payload_bytes(content: RecordDict) -> int:
    """Bytes of all arrays in a message; its few scalars are not counted."""
    # Not by `array_records`: that view is a reference cycle, which keeps arrays that are let go of.
    records = (record for record in content.values() if isinstance(record, ArrayRecord))
    return sum(len(array.data) for record in records for array in record.values())
