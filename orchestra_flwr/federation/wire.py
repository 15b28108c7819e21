"""What travels: one flat float32 array a role, named, with a fingerprint of the tensors inside.

A message down holds "shared", and "server" where a method has server state; a message up holds
"shared" (not after the first round) and the method's contributions. Nothing else can be packed:
the tensors are chosen by role, and private ones have no schema.
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

from orchestra_flwr.methods import Method, Role

ARRAYS = "arrays"  # the ArrayRecord of a message, both ways
CONFIG = "config"  # the ConfigRecord of a message, both ways
METRICS = "metrics"  # the MetricRecord of a reply
SMALLEST_CLUSTER = "smallest_cluster"  # a reply's metric: images behind its smallest row, 0 without
CLIENT_FAILED = 101  # error code of a client that says itself what went wrong
OUT_OF_MEMORY = 102  # the same: what went wrong is that its memory was not enough
TOLD_BY_CLIENT = {CLIENT_FAILED, OUT_OF_MEMORY}
FORMAT = 2  # raised whenever messages change their meaning

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # as_tensor


@dataclass(frozen=True)
class Schema:
    """Names and shapes of a role's tensors, in the order in which they are packed."""

    entries: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, method: Method, role: Role) -> Schema:
        """The schema of one role of a method.

        Raises:
            ValueError: the role is private.
        """
        if role is Role.PRIVATE:
            raise ValueError("private state never travels")
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
    """The schemas of everything that travels for a method."""

    shared: Schema
    server: Schema

    @classmethod
    def of(cls, method: Method) -> Schemas:
        """Both schemas of a method."""
        return cls(Schema.of(method, Role.SHARED), Schema.of(method, Role.SERVER))

    @cached_property
    def fingerprint(self) -> str:
        """What server and client compare before they trust each other's arrays."""
        return f"{self.shared.fingerprint}-{self.server.fingerprint}"


def pack_state(method: Method, schemas: Schemas) -> ArrayRecord:
    """The arrays of a message down."""
    return to_record(
        {
            role.value: schema.pack(method.state(role))
            for role, schema in ((Role.SHARED, schemas.shared), (Role.SERVER, schemas.server))
            if schema.size
        }
    )


def unpack_state(arrays: Mapping[str, np.ndarray], method: Method, schemas: Schemas) -> None:
    """Copies the arrays of a message down into a method.

    Raises:
        ValueError: an array is missing or has another size.
    """
    for role, schema in ((Role.SHARED, schemas.shared), (Role.SERVER, schemas.server)):
        if schema.size:
            if role.value not in arrays:
                raise ValueError(f"the message holds no {role.value} state")
            schema.unpack(arrays[role.value], method.state(role))


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
