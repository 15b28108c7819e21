"""Faults of Flower's programs: what they do once they are mended."""

import subprocess
import sys

import pytest

from orchestra_flwr.flower import program_faults


def printed_by(script, *arguments):
    """What a script prints in a process of its own, whose classes it may change."""
    command = [sys.executable, "-c", script, program_faults.__file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# What a SuperLink does when an app begins its task, and then hears nothing of it.
BEGIN = """
import runpy, sys
module = runpy.run_path(sys.argv[1])
module["wait_for_apps"]()
from datetime import UTC, datetime
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
state = InMemoryLinkState(NoOpFederationManager(), InMemoryObjectStore())
state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
(task,) = state.get_tasks()
state.claim_task(task.task_id)
for begun in (state.activate_task, state.acknowledge_task_heartbeat):
    assert begun(task.task_id)
    until = state.task_token_store[task.task_id].active_until
    print((until - datetime.now(UTC)).total_seconds())
"""


def test_a_superlink_takes_no_app_for_dead_that_is_late():
    """A minute is soon over where a machine is overloaded, or was suspended."""
    printed = printed_by(BEGIN)
    first, renewed = map(float, printed.split())
    assert 590 < first <= program_faults.PATIENCE_SECONDS
    assert 590 < renewed <= program_faults.PATIENCE_SECONDS


# What a SuperNode does for each message of the Runtime API, and what it still holds afterwards.
WORK = """
import runpy, sys
module = runpy.run_path(sys.argv[1])
module["forget_finished_tasks"]()
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.servicer.runtime import runtime_handlers
state = InMemoryNodeState(InMemoryObjectStore())
asked = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
for status in (SubStatus.COMPLETED, SubStatus.FAILED) * 20:
    state.create_task(TaskType.CLIENT_APP, run_id=1)
    acquired = runtime_handlers.acquire_task(asked, state)
    assert state.activate_task(acquired.task.task_id)
    assert state.get_task_by_token(acquired.token).task_id == acquired.task.task_id
    output = PushTaskOutputRequest(sub_status=status)
    runtime_handlers.push_task_output(output, state, acquired.task)
    assert state.get_task_by_token(acquired.token) is None
    assert not state.acknowledge_task_heartbeat(acquired.task.task_id)
state.create_task(TaskType.CLIENT_APP, run_id=1)
print(len(state.get_tasks()), bool(runtime_handlers.acquire_task(asked, state).token))
"""


def test_a_supernode_holds_no_task_that_is_finished():
    """Its client asks for work ten times a second, and each time it looked at all there ever were:
    76 ms after 50,000 messages, and 84 MB."""
    printed = printed_by(WORK)
    assert printed.split() == ["1", "True"]


# What a SuperLink says to the parts of a reply, some of which are sent again.
STORE = """
import runpy, sys
module = runpy.run_path(sys.argv[1])
module["store_again"]()
from flwr.app import ConfigRecord, RecordDict
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
state = InMemoryLinkState(NoOpFederationManager(), InMemoryObjectStore())
reply = RecordDict({"a": ConfigRecord({"a": 1}), "b": ConfigRecord({"b": 2})})
parts = {key: part.deflate() for key, part in get_all_nested_objects(reply).items()}
other = ConfigRecord({"c": 3})
session = state.start_session(1)
state.preregister_object_tree(get_object_tree(reply), session)
first, *rest = parts
for key in (first, first, *rest, first):
    print(state.store_object(1, session, key, parts[key]))
print(state.store_object(1, session, first, other.deflate()))
print(state.store_object(1, session, other.object_id, other.deflate()))
state.object_store.delete(reply.object_id)
print(state.store_object(1, session, first, parts[first]))
"""


def test_a_part_whose_receipt_was_lost_may_be_sent_again():
    """The network failed behind the last byte of a part: Flower's SuperNode sends it again, was
    refused, and gave up the whole reply."""
    printed = printed_by(STORE)
    *stored, other_content, unknown, deleted = printed.split()
    assert set(stored) == {"True"} and len(stored) == 5
    assert {other_content, unknown, deleted} == {"False"}


# A SuperNode's state, and a client that takes its tasks.
SUPERNODE = '''
import runpy, sys
module = runpy.run_path(sys.argv[1])
module["forget_finished_tasks"]()
module["answer_unfetched"]()
module["drop_of_ended_runs"]()
from datetime import timedelta
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.servicer.runtime import runtime_handlers
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
state, now = InMemoryNodeState(InMemoryObjectStore()), in_memory_corestate.now
asked = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])

def begun(number):
    """A message that has come to the SuperNode, and the task of it, which the client has."""
    message = Message(RecordDict({"c": ConfigRecord({"n": number})}), 1, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    state.create_task(TaskType.CLIENT_APP, run_id=1)
    acquired = runtime_handlers.acquire_task(asked, state)
    assert state.activate_task(acquired.task.task_id)
    state.store_message(message)
    return message, acquired.task
'''

# A message whose client got its task, and then failed to fetch the message itself.
LOSE = (
    SUPERNODE
    + """
for number in (1, 2):
    message, _ = begun(number)
    assert not state.get_messages_legacy(is_reply=True)
    if number == 2:  # another task is there, and so somebody who will fetch the message
        state.create_task(TaskType.CLIENT_APP, run_id=1)
    in_memory_corestate.now = lambda: now() + timedelta(seconds=61)
    replies = state.get_messages_legacy(is_reply=True)
    in_memory_corestate.now = now
    right = [reply.metadata.reply_to_message_id == message.object_id for reply in replies]
    print(*right, len(state.get_messages_legacy(is_reply=False)))
    state.delete_messages()
"""
)


def test_a_message_that_a_client_could_not_fetch_is_answered_for_it():
    """The SuperNode took no other message, for ever, and looked well."""
    printed = printed_by(LOSE)
    assert printed.splitlines() == ["True 0", "1"]


# A client that stored the first part of its answer, and then no more; its SuperNode sends it on.
HALF = (
    SUPERNODE
    + """
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.runtime_pb2 import PushAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supernode import start_client_internal
message, task = begun(1)
assert state.get_messages_legacy(is_reply=False)
answer = RecordDict({"a": ConfigRecord({"a": 1}), "b": ConfigRecord({"b": 2})})
reply = Message(answer, reply_to=message)
reply.metadata.__dict__["_message_id"] = reply.object_id
head, tree = message_to_proto(remove_content_from_message(reply)), get_object_tree(reply)
pushed = PushAppMessagesRequest(messages_list=[head], message_object_trees=[tree])
stored = runtime_handlers.push_messages(pushed, state, task)
parts = get_all_nested_objects(reply)
there = [*stored.objects_to_push][: int(sys.argv[2])]
for key in there:
    assert state.store_object(1, stored.session_id, key, parts[key].deflate())

class Time:
    def sleep(seconds):  # it waits for the rest, while the client asks for work
        if silent:
            in_memory_corestate.now = lambda: now() + timedelta(seconds=61)
        silent.append(seconds)
        if len(silent) == 5:
            raise SystemExit("it waits for ever")
        runtime_handlers.acquire_task(asked, state)

silent, sent = [], []
start_client_internal.time = Time

def push(run, session, key, content):
    if len(there) == len(parts):  # slowly, after the client has gone silent
        Time.sleep(1)
        silent[1:] = []
    if not content:
        raise ValueError("there is no such part any more")
    sent.append(key)

send = lambda *reply: (set(parts), "")
start_client_internal._push_messages(state, state.object_store, send, push)
print(len(sent), len(state.msg_store), len(state.object_store))
"""
)


@pytest.mark.parametrize("stored", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_an_answer_that_a_client_did_not_end_is_given_up(stored):
    """Its SuperNode waited for the rest of it for ever: it took no other message, and looked well.
    One that is there whole is sent."""
    printed = printed_by(HALF, str(stored))
    sent, *left = map(int, printed.splitlines()[-1].split())
    assert left == [0, 0]
    assert (sent == 4) == (stored == 4)


# A message whose run ends while its SuperNode fetches the parts, and the client that waits.
ENDS = (
    SUPERNODE
    + """
from types import SimpleNamespace
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supernode import start_client_internal
message = Message(RecordDict({"c": ConfigRecord({"n": 1})}), 1, "train")
message.metadata.__dict__["_message_id"] = message.object_id
state.get_run = lambda run: SimpleNamespace(primary_task_type="", fab_hash="")

def over(*_):
    raise start_client_internal.RunNotRunningException

pulled = start_client_internal._pull_and_store_message(
    state, state.object_store, {}, lambda: (message, get_object_tree(message)), None, None,
    over, None, None,
)
left = [entry.message.metadata.message_id for entry in state.msg_store.values()]
print(pulled, left, len(state.object_store), runtime_handlers.acquire_task(asked, state).token)
"""
)


def test_a_message_whose_run_ends_while_it_comes_leaves_nothing():
    """Its client took the task, and asked for the message for more than an hour: it looked well."""
    assert printed_by(ENDS).splitlines()[-1] == "None [] 0 "
