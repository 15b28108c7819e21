"""Numpy arrays in and out of Flower's records, with few copies.

Checked against Flower 1.41 and 1.42: `Array` reads its bytes from `data` alone, and keeps their
chunks in `_chunks`; a record's constructor copies.
"""

import io
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # as_tensor


class LazyArray(Array):
    """An array whose bytes are made only when somebody asks for them.

    Attributes:
        size: bytes of `data`.
    """

    size: int

    def deflate(self) -> bytes:
        """As Flower's own array: receivers look up its class by the name that is sent."""
        plain = Array(self.dtype, self.shape, self.stype, b"")
        plain.__dict__["_chunks"] = self.slice_array()  # Flower's cache: nothing is hashed twice
        return plain.deflate()


class NumpyArray(LazyArray):
    """A numpy array as Flower's Array.

    Ray writes its values to the object store, beside the pickle (PEP 574), and reads them in place.

    Args:
        values: not copied; they must not change afterwards.
    """

    def __init__(self, values: np.ndarray) -> None:
        self._values = np.ascontiguousarray(values).view()
        self._values.flags.writeable = False
        self.dtype, self.shape = str(values.dtype), self._values.shape
        self.stype = "numpy.ndarray"
        self.size = len(self._header) + values.nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return NumpyArray, (self._values,)

    @property
    def _header(self) -> bytes:
        header, about = io.BytesIO(), np.lib.format.header_data_from_array_1_0(self._values)
        np.lib.format.write_array_header_1_0(header, about)
        return header.getvalue()

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """As Flower's, but with a single copy: Flower grows a buffer to twice the size."""
        return b"".join((self._header, self._values.data))

    def numpy(self) -> np.ndarray:
        """The values themselves, read-only."""
        return self._values


def size_in_bytes(array: Array) -> int:
    """Bytes of an array in a message, counted without making them."""
    return array.size if isinstance(array, LazyArray) else len(array.data)


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Named numpy arrays as Flower's record, on their memory: they must not change afterwards."""
    return record_of({name: NumpyArray(values) for name, values in arrays.items()})


def record_of(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Flower's record of these very arrays: its constructor would copy them."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record


def from_record(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Flower's record as named numpy arrays."""
    return {name: array.numpy() for name, array in record.items()}


def as_tensor(values: np.ndarray) -> Tensor:
    """A tensor on the same memory, only to be read, as what Ray's object store holds has to be."""
    return torch.from_numpy(values)


def all_finite(values: np.ndarray) -> bool:
    """Whether all values are finite; takes a few milliseconds for ten million."""
    # A sum, which is twice as fast, is not finite if a value is not; it may also overflow.
    return bool(as_tensor(values).sum().isfinite()) or bool(np.isfinite(values).all())


def payload_bytes(content: RecordDict) -> int:
    """Bytes of all arrays in a message; its few scalars are not counted."""
    # Not by `array_records`: that view is a reference cycle, which keeps arrays alive.
    records = (record for record in content.values() if isinstance(record, ArrayRecord))
    return sum(size_in_bytes(array) for record in records for array in record.values())
