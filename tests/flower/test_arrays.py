"""Flower's records in and out."""

import gc
import weakref

import numpy as np
import pytest
from flwr.app import Array, RecordDict

from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.flower.arrays import from_record, payload_bytes, size_in_bytes, to_record


def test_records_keep_names_and_values():
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.zeros(0, np.float32)}
    again = from_record(to_record(arrays))
    assert list(again) == ["a", "b"]
    np.testing.assert_array_equal(again["a"], arrays["a"])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(7, dtype=np.float32),
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.zeros((0, 4), np.float32),
        np.arange(4, dtype=np.int64),
    ],
    ids=["flat", "transposed", "empty", "integers"],
)
def test_arrays_are_encoded_as_flower_encodes_them(array):
    ours, flowers = to_record({"a": array})["a"], Array(np.ascontiguousarray(array))
    assert (ours.dtype, ours.shape, ours.stype) == (flowers.dtype, flowers.shape, flowers.stype)
    assert ours.data == flowers.data and size_in_bytes(ours) == size_in_bytes(flowers)
    # What a real channel sends, and the names under which it does.
    assert ours.deflate() == flowers.deflate() and ours.object_id == flowers.object_id
    assert [*ours.children] == [*flowers.children]


def test_a_record_is_on_the_arrays_own_memory_and_read_only():
    values = np.arange(6, dtype=np.float32)
    got = from_record(to_record({"a": values}))["a"]
    assert np.shares_memory(got, values) and not got.flags.writeable and values.flags.writeable


def test_counting_bytes_holds_no_array():
    """A server counts the bytes of every reply: no garbage collection shall be needed after it."""
    content = RecordDict({ARRAYS: to_record({"a": np.zeros(6, np.float32)})})
    array = weakref.ref(content[ARRAYS]["a"])
    gc.disable()
    try:
        assert payload_bytes(content) == len(array().data)
        del content
        assert array() is None
    finally:
        gc.enable()
