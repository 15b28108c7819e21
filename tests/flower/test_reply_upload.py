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
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.task_identity import TaskIdentity

from orchestra_flwr.flower.reply_upload import UnreadableReplyError, bytes_of_arrays, put_together

CHUNK = b"x" * 1000


def pushed(listed):
    """The contents of an array of one chunk, whose list of chunks is `listed`; its id first."""
    chunk = ArrayChunk(CHUNK)
    key, content = array_of(chunk.object_id, listed)
    return key, {chunk.object_id: chunk.deflate(), key: content}


def array_of(part, listed):
    """The id and the content of an array that is made of one part."""
    body = {"dtype": "uint8", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": listed}
    head = type(Array.__qualname__, (), {"children": {part: None}})()
    content = add_header_to_object_body(json.dumps(body).encode(), head)
    validate_object_content(content)  # which is all that a SuperLink looks at
    return get_object_id(content), content


def test_an_honest_reply_is_as_ever(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    record = ArrayRecord({"a": Array("uint8", (1000,), "numpy.ndarray", CHUNK)})
    sent = Message(RecordDict({"arrays": record}), 7, "train")
    contents = {key: nested.deflate() for key, nested in get_all_nested_objects(sent).items()}
    assert bytes_of_arrays(contents) == 1000
    received = put_together(sent.object_id, contents, 1000)
    assert received.content["arrays"]["a"].data == CHUNK
    assert received.metadata.message_id == sent.object_id


def test_a_chunk_that_is_joined_again_and_again_is_refused_before_it_is():
    key, contents = pushed([0] * 3)
    assert bytes_of_arrays(contents) == 3000
    with pytest.raises(UnreadableReplyError, match="more than 2999 bytes"):
        put_together(key, contents, 2999)
    assert len(contents) == 2  # nothing was made of it


def test_an_array_is_no_chunk_of_another():
    """A hundred times a hundred chunks would come from two lists of a hundred numbers."""
    inner, contents = pushed([0] * 100)
    outer, content = array_of(inner, [0] * 100)
    contents[outer] = content
    with pytest.raises(UnreadableReplyError, match="KeyError"):
        put_together(outer, contents, 10**9)
    assert len(contents) == 3  # nothing was made of it


def test_an_array_alone_is_no_reply():
    key, contents = pushed([0])
    with pytest.raises(UnreadableReplyError, match="it is no message"):
        put_together(key, contents, None)


@pytest.mark.parametrize("listed", [[7], "x", None, {}, 3])
@pytest.mark.parametrize("most", [None, 10**6])
def test_what_is_no_list_of_chunks_is_one_error(listed, most):
    key, contents = pushed(listed)
    with pytest.raises(UnreadableReplyError, match="cannot be read"):
        put_together(key, contents, most)


@pytest.mark.parametrize("kind", [Message, MetricRecord, ConfigRecord])
def test_what_is_no_message_of_protobuf_is_one_error(kind):
    content = add_header_to_object_body(b"\xff", type(kind.__name__, (), {"children": {}})())
    validate_object_content(content)
    key = get_object_id(content)
    with pytest.raises(UnreadableReplyError, match="DecodeError"):
        put_together(key, {key: content}, 1000)
