"""Arrays beside the pickle, and in the store; Ray itself is in test_simulation.py."""

import gc
import pickle
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from orchestra_flwr.flower.arrays import from_record, payload_bytes, to_record
from orchestra_flwr.flower.object_store import Broadcast
from orchestra_flwr.flower.process_identity import identify_process

identify_process()
VALUES = np.arange(100_000, dtype=np.float32)


def message(record, node=1):
    return Message(RecordDict({"arrays": record, "config": ConfigRecord({"n": 1})}), node, "train")


def test_the_bytes_of_a_reply_are_not_in_its_pickle_and_are_read_where_they_lie():
    sent = message(to_record({"a": VALUES}))
    assert isinstance(sent.content["config"], ConfigRecord)
    buffers = []
    text = pickle.dumps(sent, protocol=5, buffer_callback=buffers.append)
    assert len(text) < 5_000 and sum(len(b.raw()) for b in buffers) >= VALUES.nbytes
    memory = [bytearray(b.raw()) for b in buffers]
    got = pickle.loads(text, buffers=memory)
    array = from_record(got.content.array_records["arrays"])["a"]
    np.testing.assert_array_equal(array, VALUES)
    assert np.shares_memory(array, np.frombuffer(memory[0], np.uint8))
    assert payload_bytes(got.content) == payload_bytes(sent.content)


def test_a_pickler_that_knows_no_buffers_carries_the_bytes_as_well():
    sent = message(to_record({"a": VALUES}))
    got = pickle.loads(pickle.dumps(sent, protocol=5))
    np.testing.assert_array_equal(from_record(got.content.array_records["arrays"])["a"], VALUES)


class Store:
    """Ray's object store, as far as a broadcast uses it."""

    def __init__(self):
        self.puts = []

    is_initialized = staticmethod(lambda: True)

    def put(self, value):
        self.puts.append(value)
        return len(self.puts) - 1

    def get(self, reference):
        return self.puts[reference]


def test_a_round_is_stored_once_and_the_next_one_anew(monkeypatch):
    store = Store()
    monkeypatch.setitem(sys.modules, "ray", store)
    broadcast = Broadcast()
    for value in (1.0, 2.0):
        record = to_record({"a": VALUES * np.float32(value), "b": VALUES[:3]})
        messages = [message(record, node) for node in (1, 2, 3)]
        for message_ in messages:
            broadcast(message_)
            assert len(pickle.dumps(message_)) < 5_000
        for message_ in messages:
            got = from_record(pickle.loads(pickle.dumps(message_)).content.array_records["arrays"])
            np.testing.assert_array_equal(got["a"], VALUES * np.float32(value))
    assert len(store.puts) == 4  # two arrays in each of two rounds
    broadcast(message_)  # sent again
    assert len(store.puts) == 4


def test_what_was_stored_is_freed_with_the_last_message(monkeypatch):
    """Ray frees what no reference is left of: a model would fill its store between the rounds."""
    monkeypatch.setitem(sys.modules, "ray", Store())
    broadcast, record = Broadcast(), to_record({"a": VALUES})
    sent = message(record)
    broadcast(sent)
    stored = weakref.ref(sent.content["arrays"]["a"])
    del record
    assert stored() is not None
    del sent
    gc.collect()
    assert stored() is None


@pytest.mark.parametrize("ray", [None, SimpleNamespace(), SimpleNamespace(is_initialized=bool)])
def test_without_ray_messages_stay_as_they_are(monkeypatch, ray):
    monkeypatch.setitem(sys.modules, "ray", ray)
    record = to_record({"a": VALUES})
    sent = message(record)
    Broadcast()(sent)
    assert sent.content["arrays"] is record
