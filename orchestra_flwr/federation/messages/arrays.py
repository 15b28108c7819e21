"""Flower's records: their names in messages, numpy arrays in and out of them with few copies."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

ARRAYS = "arrays"  # the ArrayRecord of a message, both ways
CONFIG = "config"  # the ConfigRecord of a message, both ways
METRICS = "metrics"  # the MetricRecord of a reply
SMALLEST_GROUP = "smallest_group"  # a reply's metric: images behind its smallest row, 0 without
OWN = "own/"  # what the names of scores of a client's own model in a reply begin with
PERSONAL = OWN + "personal"  # the score that a client of a deployment may keep to itself
MODEL = "model"  # in a reply's config: the model that was trained, where several were sent
MODELS = "models"  # in a task: the names of the models that are sent
RUN = "run"  # in a task: which run this is, where clients keep state
TRAINED = "trained"  # in a task: the latest round in which a real client's state was used
CONTRIBUTED = "contributed"  # in a task: the latest one in which rows that it sent were
CLIENTS = "clients"  # in a task: the folder for the clients' state, where they share the disk

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # as_tensor


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
