"""Replies as a stranger may push them, put together by Flower's own functions."""

import json

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_id,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflatable_class_registry,
    inflate_object_from_contents,
    validate_object_content,
)

from orchestra_flwr.flower.received_arrays import (
    UnreadableReplyError,
    bounded_arrays,
)

CHUNK = b"x" * 1000


def pushed(listed):
    """The contents of an array of one chunk, whose list of chunks is `listed`; its id first."""
    chunk = ArrayChunk(CHUNK)
    body = {"dtype": "uint8", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": listed}
    head = type(Array.__qualname__, (), {"children": {chunk.object_id: chunk}})()
    content = add_header_to_object_body(json.dumps(body).encode(), head)
    validate_object_content(content)  # which is all that a SuperLink looks at
    key = get_object_id(content)
    return key, {chunk.object_id: chunk.deflate(), key: content}


def test_an_honest_reply_is_as_ever():
    record = ArrayRecord({"a": Array("uint8", (1000,), "numpy.ndarray", CHUNK)})
    sent = RecordDict({"arrays": record})
    contents = {key: each.deflate() for key, each in get_all_nested_objects(sent).items()}
    with bounded_arrays(1000):
        received = inflate_object_from_contents(sent.object_id, contents)
    assert received["arrays"]["a"].data == CHUNK


def test_a_chunk_that_is_joined_again_and_again_is_refused_before_it_is():
    key, contents = pushed([0] * 3)
    with bounded_arrays(3000):
        assert len(inflate_object_from_contents(key, dict(contents)).data) == 3000
    flowers = inflatable_class_registry["Array"]
    with pytest.raises(UnreadableReplyError, match="more than 2999 bytes"), bounded_arrays(2999):
        inflate_object_from_contents(key, dict(contents))
    assert inflatable_class_registry["Array"] is flowers is Array


@pytest.mark.parametrize("listed", [[7], "x", None, {}, 3])
@pytest.mark.parametrize("most", [None, 10**6])
def test_what_is_no_list_of_chunks_is_one_error(listed, most):
    key, contents = pushed(listed)
    with pytest.raises(UnreadableReplyError, match="cannot be read"), bounded_arrays(most):
        inflate_object_from_contents(key, contents)


@pytest.mark.parametrize("kind", [Message, MetricRecord, ConfigRecord])
def test_what_is_no_message_of_protobuf_is_one_error(kind):
    content = add_header_to_object_body(b"\xff", type(kind.__name__, (), {"children": {}})())
    validate_object_content(content)
    key = get_object_id(content)
    with pytest.raises(UnreadableReplyError, match="DecodeError"), bounded_arrays(1000):
        inflate_object_from_contents(key, {key: content})


def test_other_errors_are_their_own():
    with pytest.raises(ConnectionError), bounded_arrays(1):
        raise ConnectionError
