"""Arrays that pass through Ray's object store, which all processes of a machine share.

Flower's simulation engine pickles every message for Ray, and what is pickled is copied: into the
pickle, into the store and out of both, for every client. Here the server puts a round's arrays into
the store once (:class:`Broadcast`) and a message carries references; replies carry their bytes
beside the pickle (:func:`beside_the_pickle`). Both are read where they lie. Where no Ray runs,
messages stay as they are.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
from flwr.app import Array, ArrayRecord, Message


class SharedArray(Array):
    """An Array whose bytes are pickled out of band (PEP 574) and decoded without a copy."""

    def __init__(self, dtype: str, shape: tuple[int, ...], stype: str, data: Any) -> None:
        # Not by Array's own __init__: it wants bytes, and these may be a view of the store.
        self.dtype, self.shape, self.stype, self.data = dtype, shape, stype, data

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, (self.dtype, self.shape, self.stype, PickleBuffer(self.data))

    def numpy(self) -> np.ndarray:
        """The values, read-only, where they lie.

        Raises:
            ValueError: the bytes are not those of a numpy array.
        """
        start = io.BytesIO(self.data[:1024])  # numpy's header of a plain array has 128 bytes
        if np.lib.format.read_magic(start) != (1, 0):
            return super().numpy()
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(start)
        count = int(np.prod(shape))
        flat = np.frombuffer(self.data, dtype, count, start.tell())
        return flat.reshape(shape, order="F" if by_columns else "C")


def _shared(dtype: str, shape: tuple[int, ...], stype: str, data: Any) -> SharedArray:
    return SharedArray(dtype, shape, stype, memoryview(data))


class StoredArray(Array):
    """Stands for a :class:`SharedArray` in Ray's object store; pickled as a reference to it."""

    def __init__(self, array: Array) -> None:
        import ray

        self.dtype, self.shape, self.stype = array.dtype, array.shape, array.stype
        self._ref = ray.put(_as_shared(array))

    @property
    def data(self) -> Any:  # type: ignore[override]
        """The bytes, fetched to this machine when they are not here yet."""
        return self._fetched().data

    def numpy(self) -> np.ndarray:
        """As :meth:`SharedArray.numpy`."""
        return self._fetched().numpy()

    def _fetched(self) -> SharedArray:
        import ray

        fetched: SharedArray = ray.get(self._ref)
        return fetched


class Broadcast:
    """Replaces the arrays of outgoing messages by references to Ray's object store.

    A record that several messages share is stored once; what was stored is freed when the last
    of its messages is gone. Does nothing in a process that has not joined a Ray cluster.
    """

    def __init__(self) -> None:
        self._record: ReferenceType[ArrayRecord] | None = None
        self._stored = ArrayRecord()

    def __call__(self, message: Message) -> None:
        """Changes the message in place."""
        if not _ray_runs():
            return
        for name, record in message.content.items():
            if isinstance(record, ArrayRecord):
                message.content[name] = self._store(record)

    def _store(self, record: ArrayRecord) -> ArrayRecord:
        if any(isinstance(array, StoredArray) for array in record.values()):
            return record
        if self._record is None or self._record() is not record:
            self._record = ref(record)
            self._stored = _converted(record, StoredArray)
        return self._stored


def beside_the_pickle(message: Message) -> Message:
    """The same message, whose arrays Ray writes to its store and reads from it as they are."""
    if message.has_content():
        for name, record in message.content.items():
            if isinstance(record, ArrayRecord):
                message.content[name] = _converted(record, _as_shared)
    return message


def _converted(record: ArrayRecord, convert: Callable[[Array], Array]) -> ArrayRecord:
    converted = ArrayRecord()  # one by one: its constructor would make plain arrays of them
    for name, array in record.items():
        converted[name] = convert(array)
    return converted


def _as_shared(array: Array) -> SharedArray:
    return SharedArray(array.dtype, array.shape, array.stype, array.data)


def _ray_runs() -> bool:
    ray = sys.modules.get("ray")  # a process in a cluster has imported all of it
    return bool(getattr(ray, "is_initialized", bool)())
