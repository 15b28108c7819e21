"""Arrays that pass through Ray's object store, which all processes of a machine share.

Flower's simulation engine pickles every message for Ray, and what is pickled is copied: into the
pickle, into the store and out of both, for every client. Here the server puts a round's arrays into
the store once (:class:`Broadcast`) and a message carries references; replies carry their values
beside the pickle (:class:`~orchestra_flwr.flower.arrays.NumpyArray`). Both are read
in place. Where no Ray runs, messages stay as they are.

Checked against Flower 1.41 and 1.42, whose actors pickle messages, and Ray 2.55: `ray.put` and
`ray.get`.
"""

import sys
from weakref import ReferenceType, ref

import numpy as np
from flwr.app import Array, ArrayRecord, Message

from orchestra_flwr.flower.arrays import LazyArray, record_of, size_in_bytes


class StoredArray(LazyArray):
    """Stands for an array in Ray's object store; pickled as a reference to it."""

    def __init__(self, array: Array) -> None:
        import ray

        self.dtype, self.shape, self.stype = array.dtype, array.shape, array.stype
        self.size = size_in_bytes(array)
        self._ref = ray.put(array)

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes, fetched to this machine when they are not here yet."""
        return self._fetched().data

    def numpy(self) -> np.ndarray:
        """The values in place, read-only."""
        return self._fetched().numpy()

    def _fetched(self) -> Array:
        import ray

        fetched: Array = ray.get(self._ref)
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
            self._record = ref(record, self._forget)
            self._stored = record_of({name: StoredArray(a) for name, a in record.items()})
        return self._stored

    def _forget(self, gone: ReferenceType[ArrayRecord]) -> None:
        """No further message has the record; those under way hold what was stored."""
        self._stored = ArrayRecord()


def _ray_runs() -> bool:
    ray = sys.modules.get("ray")  # a process in a cluster has imported all of it
    return bool(getattr(ray, "is_initialized", bool)())
