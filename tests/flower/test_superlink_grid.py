"""What a SuperLink keeps of clients that do not answer: on Flower's own state and handlers."""

import threading
import time
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.control_pb2 import ListRunsRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.constant import NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import iterate_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.control import control_handlers
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from orchestra_flwr.flower import program_faults, streaming_grid, superlink_grid
from orchestra_flwr.flower.streaming_grid import NODE_GONE
from orchestra_flwr.flower.superlink_grid import SuperLinkGrid

FLOATS = 10_000
HANDLERS = {
    "PushMessages": runtime_handlers.push_messages,
    "PullMessages": runtime_handlers.pull_messages,
    "PushObject": runtime_handlers.push_object,
    "PullObject": runtime_handlers.pull_object,
    "ConfirmMessageReceived": runtime_handlers.confirm_message_received,
}


class SuperLink:
    """Flower's state in memory, with its handlers, and no network between it and the others."""

    def __init__(self):
        self.store = InMemoryObjectStore()
        self.state = InMemoryLinkState(NoOpFederationManager(), self.store)
        run_id = self.state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP
        )
        (self.run,) = self.state.get_run_info(run_ids=[run_id])
        (task,) = self.state.get_tasks()
        self.state.claim_task(task.task_id)
        assert self.state.activate_task(task.task_id)
        self.grid = HttpGrid(token="not asked for")  # noqa: S106
        self.grid.set_run(self.run)
        self.grid._client = SimpleNamespace(
            **{
                name: partial(handler, state=self.state, task=task)
                for name, handler in HANDLERS.items()
            }
        )

    def connected(self, name):
        """A client's number, with a heartbeat that lasts a minute."""
        node = self.state.create_node(NOOP_FEDERATION_ID, name, name.encode(), 60)
        assert self.state.activate_node(node, 60)
        return node

    def kept(self):
        """How many models lie in the store, in their bytes."""
        return sum(len(object_.content) for object_ in self.store.store.values()) // (4 * FLOATS)


class Client:
    def __init__(self, superlink, name):
        self.superlink, self.node_id = superlink, superlink.connected(name)
        self.node = Node(node_id=self.node_id)

    def fetch(self):
        """The message that waits, None without one."""
        state, store = self.superlink.state, self.superlink.store
        request = PullMessagesRequest(node=self.node)
        answer = fleet_handlers.pull_messages(request, state, store)
        if not answer.messages_list:
            return None
        for part in iterate_object_tree(answer.message_object_trees[0]):
            pull = PullObjectRequest(
                node=self.node, run_id=self.superlink.run.run_id, object_id=part.object_id
            )
            assert fleet_handlers.pull_object(pull, state).object_available
        message = message_from_proto(answer.messages_list[0])
        confirmed = ConfirmMessageReceivedRequest(
            node=self.node,
            run_id=self.superlink.run.run_id,
            message_object_id=message.metadata.message_id,
        )
        fleet_handlers.confirm_message_received(confirmed, state, store)
        return message

    def answer(self, message, value):
        """Pushes a model as the reply."""
        assert all(self.upload(message, value))

    def upload(self, message, value, meanwhile=None):
        """As :meth:`answer`, one part at a time; yields whether it was stored.

        `meanwhile` happens before the announcement is sent again, as its receipt was lost.
        """
        reply = Message(model(value), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        request = PushMessagesRequest(
            node=self.node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
        )
        answer = fleet_handlers.push_messages(request, self.superlink.state)
        if meanwhile:
            meanwhile()
            answer = fleet_handlers.push_messages(request, self.superlink.state)
        objects = get_all_nested_objects(reply)
        for object_id in answer.objects_to_push:
            push = PushObjectRequest(
                node=self.node,
                run_id=self.superlink.run.run_id,
                session_id=answer.session_id,
                object_id=object_id,
                object_content=objects[object_id].deflate(),
            )
            yield fleet_handlers.push_object(push, self.superlink.state).stored


def model(value):
    return RecordDict({"arrays": ArrayRecord({"w": Array(np.full(FLOATS, value, np.float32))})})


def messages(*clients, value=0.0):
    content = model(value)
    return [Message(content, client.node_id, "train", ttl=1000) for client in clients]


@pytest.fixture
def superlink(monkeypatch):
    superlink = SuperLink()
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_run_id", superlink.run.run_id)
    monkeypatch.setattr(TaskIdentity, "_node_id", SUPERLINK_NODE_ID)
    return superlink


@pytest.fixture
def grid(superlink):
    return SuperLinkGrid(superlink.grid)


def a_round(grid, clients, at_work, value):
    """One round of the grid: what each client does when the messages are there, and the replies."""
    replies = grid.send_and_receive(messages(*clients, value=value), timeout=0.2)
    push = grid.grid.push_messages

    def pushed(sent):
        ids = push(sent)
        at_work()
        return ids

    grid.grid.push_messages = pushed
    try:
        return list(replies)
    finally:
        grid.grid.push_messages = push


def test_a_round_that_is_answered_leaves_nothing(superlink, grid):
    client = Client(superlink, "a")
    (reply,) = a_round(grid, [client], lambda: client.answer(client.fetch(), 2.0), 1.0)
    assert reply.content["arrays"]["w"].numpy()[0] == 2
    assert superlink.kept() == 0


def test_who_was_sent_a_message_is_reported_once_it_can_be_fetched(superlink):
    clients = {
        client.node_id: client for client in (Client(superlink, "a"), Client(superlink, "b"))
    }
    fetched = []
    grid = SuperLinkGrid(superlink.grid, sent=lambda node: fetched.append(clients[node].fetch()))
    list(grid.push_messages(messages(*clients.values(), value=1.0)))
    assert [message.metadata.dst_node_id for message in fetched] == list(clients)


def test_replies_of_many_are_looked_for_by_one_request(superlink, grid):
    """With a thousand clients that join, one for each kept the SuperLink from all else."""
    asked, pull = [], superlink.grid._client.PullMessages

    def counted(request):
        asked.append(len(request.message_ids))
        return pull(request)

    superlink.grid._client.PullMessages = counted
    clients = [Client(superlink, f"c{number}") for number in range(5)]
    ids = list(grid.push_messages(messages(*clients)))
    assert grid.begun(ids) == []
    clients[3].answer(clients[3].fetch(), 1.0)
    assert grid.begun(ids) == [ids[3]]
    assert asked == [5, 5]
    (reply,) = grid.pull_messages([ids[3]])
    assert reply.metadata.src_node_id == clients[3].node_id
    assert asked == [5, 5]


def test_a_message_that_nobody_fetched_in_time_is_deleted(superlink, grid):
    silent = Client(superlink, "silent")
    for number in range(3):
        (reply,) = a_round(grid, [silent], lambda: None, float(number))
        assert "round_timeout" in reply.error.reason
        assert superlink.kept() == 0
    assert silent.fetch() is None  # what it would train on is out of date


def test_a_client_that_was_unregistered_meanwhile_is_said_to_be_gone(superlink, grid):
    """A SuperLink takes no message to it and gives an empty id; it was said to take too long."""
    gone, there = Client(superlink, "gone"), Client(superlink, "there")
    superlink.state.nodes[gone.node_id].status = NodeStatus.UNREGISTERED

    def at_work():
        if (message := there.fetch()) is not None:
            there.answer(message, 2.0)

    first, second = a_round(grid, [gone, there], at_work, 1.0)
    assert first.error.reason == NODE_GONE and second.has_content()
    assert grid.send(*messages(gone)) is None


def test_a_message_to_a_client_that_is_lost_is_deleted(superlink, grid):
    client = Client(superlink, "lost")

    def lose():
        superlink.state.nodes[client.node_id].online_until = 0

    (reply,) = a_round(grid, [client], lose, 1.0)
    assert reply.has_error() and "round_timeout" not in reply.error.reason
    assert superlink.kept() == 0


def test_others_still_get_the_model_of_a_message_that_is_given_up(superlink, grid):
    slow, lost = Client(superlink, "slow"), Client(superlink, "lost")
    superlink.grid.push_messages(messages(slow, value=1.0))
    grid.give_up(superlink.grid.push_messages(messages(lost, value=1.0))[0])
    assert superlink.kept() == 1
    assert slow.fetch() is not None
    assert superlink.kept() == 0


def test_a_reply_that_came_too_late_is_deleted_in_the_next_round(superlink, grid):
    slow, quick = Client(superlink, "slow"), Client(superlink, "quick")
    fetched = []
    (reply,) = a_round(grid, [slow], lambda: fetched.append(slow.fetch()), 1.0)
    assert reply.has_error()
    slow.answer(fetched[0], 5.0)
    assert superlink.kept() == 1
    (reply,) = a_round(grid, [quick], lambda: quick.answer(quick.fetch(), 3.0), 2.0)
    assert reply.content["arrays"]["w"].numpy()[0] == 3
    assert superlink.kept() == 0
    assert not grid._given_up


@pytest.fixture
def patched(superlink, monkeypatch):
    """Flower's state as a SuperLink that a server starts has it."""
    name = "store_message_and_object_tree"
    monkeypatch.setattr(InMemoryLinkState, name, getattr(InMemoryLinkState, name))
    program_faults.announce_again()


@pytest.mark.parametrize("seen", [False, True])
def test_a_reply_may_be_announced_twice(superlink, grid, patched, seen):
    """The server's app has seen it meanwhile: the client was told that nothing of it is missing,
    sent nothing, and the round waited for it in vain."""
    client = Client(superlink, "a")
    (key,) = grid.push_messages(messages(client))
    parts = client.upload(client.fetch(), 3.0, lambda: grid.begun([key] * seen))
    assert len([*parts]) == 5
    (reply,) = grid.pull_messages([key])
    assert reply.content["arrays"]["w"].numpy()[0] == 3
    assert superlink.kept() == 0 and not superlink.state._object_push_sessions


def test_a_reply_that_was_given_up_is_not_taken_when_it_is_announced_again(
    superlink, grid, patched
):
    client = Client(superlink, "a")
    (key,) = grid.push_messages(messages(client))
    message = client.fetch()

    def give_up():
        grid.begun([key])
        grid.give_up(key)

    assert [*client.upload(message, 3.0, give_up)] == []
    assert superlink.kept() == 0


def test_refused_replies_leave_nothing(superlink, grid, patched):
    """A session of each was kept, whatever a client sent, until the run ended."""
    client = Client(superlink, "a")
    (key,) = grid.push_messages(messages(client))
    message = client.fetch()
    client.answer(message, 3.0)
    assert len([*grid.pull_messages([key])]) == 1
    for value in (3.0, 4.0):  # again, and another one
        assert [*client.upload(message, value)] == []
    assert not superlink.state._object_push_sessions and superlink.kept() == 0


def test_an_upload_that_expires_while_another_begins_locks_nobody_out(
    superlink, grid, patched, monkeypatch
):
    """Each waited for the other, and the SuperLink answered nobody any more."""
    stalled, quick = Client(superlink, "stalled"), Client(superlink, "quick")
    key, other = grid.push_messages(messages(stalled, quick))
    fetched = {client: client.fetch() for client in (stalled, quick)}
    next(stalled.upload(fetched[stalled], 1.0))  # and no other part
    assert grid.look([key]) == {}
    for session in superlink.state._object_push_sessions.values():
        session.expires_at -= timedelta(seconds=200)
    begun, store = threading.Event(), superlink.state.store_message_res

    def slowly(message):
        begun.set()
        time.sleep(0.2)
        return store(message)

    monkeypatch.setattr(superlink.state, "store_message_res", slowly)
    begin = threading.Thread(target=quick.answer, args=(fetched[quick], 3.0), daemon=True)
    begin.start()
    assert begun.wait(5)
    look = threading.Thread(target=grid.look, args=([key],), daemon=True)
    look.start()
    for thread in (begin, look):
        thread.join(5)
        assert not thread.is_alive()
    (reply,) = grid.pull_messages([other])
    assert reply.content["arrays"]["w"].numpy()[0] == 3


def test_a_reply_that_never_comes_is_not_asked_for_forever(superlink, grid):
    lost = Client(superlink, "lost")
    a_round(grid, [lost], lambda: None, 1.0)
    assert len(grid._given_up) == 1
    superlink.state.nodes[lost.node_id].online_until = 0
    a_round(grid, [], lambda: None, 1.0)
    assert not grid._given_up


def in_order(grid, clients, steps, timeout, **more):
    """A stage whose replies are yielded in their order; a step is taken before each pause."""
    left = iter(steps)
    grid.poll = 0.001
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NOTICE_SECONDS", "LOOK_SECONDS"):
            patch.setattr(superlink_grid, name, -1.0)
        patch.setattr(streaming_grid.time, "sleep", lambda _: next(left, lambda: None)())
        return list(grid.send_and_receive(messages(*clients, value=1.0), timeout=timeout, **more))


def test_replies_are_told_when_they_come_and_yielded_in_their_order(superlink, grid):
    """Behind one client that hangs all others seemed to be at work."""
    slow, quick, lost, stalled = (Client(superlink, name) for name in "abcd")
    told, uploads = [], []
    steps = [
        lambda: quick.answer(quick.fetch(), 2.0),
        lambda: superlink.state.deactivate_node(lost.node_id),
        lambda: uploads.append(stalled.upload(stalled.fetch(), 4.0)),
        lambda: next(uploads[0]),
        *5 * [lambda: None],
        lambda: told.append("slow"),
        lambda: (slow.answer(slow.fetch(), 1.0), list(uploads[0])),
    ]
    replies = in_order(
        grid, [slow, quick, lost, stalled], steps, 5.0,
        came=lambda message, good: told.append((message.metadata.dst_node_id, good)),
    )  # fmt: skip
    # One whose arrays are on their way is told as well: to know when they are there, the server
    # would read each reply twice.
    assert told == [(quick.node_id, True), (lost.node_id, False), (stalled.node_id, True), "slow"]
    values = [r.has_error() or r.content["arrays"]["w"].numpy()[0] for r in replies]
    assert values == [1.0, 2.0, True, 4.0]
    assert superlink.kept() == 0 and not grid._told and not grid._uploads


def test_a_reply_counts_whose_client_leaves_before_its_turn_comes(superlink, grid):
    """Flower answers with an error for who is away, whatever lies there, and never deletes it."""
    slow, quick = Client(superlink, "slow"), Client(superlink, "quick")
    steps = [
        lambda: quick.answer(quick.fetch(), 2.0),
        lambda: None,
        lambda: superlink.state.deactivate_node(quick.node_id),
        lambda: slow.answer(slow.fetch(), 1.0),
    ]
    replies = in_order(grid, [slow, quick], steps, 5.0)
    assert [reply.content["arrays"]["w"].numpy()[0] for reply in replies] == [1.0, 2.0]
    assert superlink.kept() == 0


def test_a_client_that_is_started_again_before_its_turn_comes_is_not_waited_for(superlink, grid):
    """It does not have the message any more, and is there when it is asked for its reply."""
    slow, killed = Client(superlink, "slow"), Client(superlink, "killed")
    steps = [
        killed.fetch,
        lambda: superlink.state.deactivate_node(killed.node_id),
        lambda: None,
        lambda: superlink.state.activate_node(killed.node_id, 60),
        lambda: slow.answer(slow.fetch(), 1.0),
    ]
    good, lost = in_order(grid, [slow, killed], steps, 2.0)
    assert not good.has_error()
    assert "round_timeout" not in lost.error.reason
    assert superlink.kept() == 0


def first(grid, clients, at_work, needed, timeout=5.0, **more):
    """A stage that ends early; `at_work(number of looks so far)` is called before each look."""
    looks = iter(range(10**6))
    look = grid._look

    def watched(ids):
        at_work(next(looks))
        return look(ids)

    grid._look = watched
    grid.poll = 0.001
    good = []

    def left():
        return needed - len(good)

    arrivals = []
    for arrival in grid.receive_first(messages(*clients, value=1.0), left, timeout, **more):
        arrivals.append(arrival)
        if not arrival.reply.has_error():
            good.append(arrival)
    return arrivals


def values_of(arrivals):
    def value(reply):
        return None if reply.has_error() else reply.content["arrays"]["w"].numpy()[0]

    return [(arrival.place, value(arrival.reply)) for arrival in arrivals]


def test_a_stage_ends_with_enough_good_replies_in_the_order_of_its_messages(superlink, grid):
    slow, second, third = (Client(superlink, name) for name in "abc")
    fetched = {}

    def work(look):
        if look == 0:
            fetched[slow] = slow.fetch()
            third.answer(third.fetch(), 3.0)
        elif look == 1:
            second.answer(second.fetch(), 2.0)

    arrivals = first(grid, [slow, second, third], work, needed=2)
    assert values_of(arrivals) == [(1, 2.0), (2, 3.0)]
    assert arrivals[0].seconds >= arrivals[1].seconds  # when it came, not when it was fetched
    assert superlink.kept() == 0
    slow.answer(fetched[slow], 1.0)  # the next stage goes on without it, and deletes it
    again = first(grid, [second], lambda look: look or second.answer(second.fetch(), 4.0), needed=1)
    assert values_of(again) == [(0, 4.0)]
    assert superlink.kept() == 0 and not grid._given_up


def test_replies_that_wait_for_others_are_told_when_they_come(superlink, grid):
    slow, quick = Client(superlink, "slow"), Client(superlink, "quick")
    told = []

    def work(look):
        if look == 0:
            quick.answer(quick.fetch(), 2.0)
        elif look == 5:
            told.append("five looks")
            slow.answer(slow.fetch(), 1.0)

    came = lambda message, good: told.append(good)  # noqa: E731
    arrivals = first(grid, [slow, quick], work, needed=2, came=came)
    assert values_of(arrivals) == [(0, 1.0), (1, 2.0)]
    assert told == [True, "five looks", True]


def test_an_error_is_no_good_reply(superlink, grid):
    lost, good = Client(superlink, "lost"), Client(superlink, "good")

    def work(look):
        if look == 0:
            superlink.state.nodes[lost.node_id].online_until = 0
        elif look == 2:
            good.answer(good.fetch(), 2.0)

    assert values_of(first(grid, [lost, good], work, needed=1)) == [(0, None), (1, 2.0)]
    assert superlink.kept() == 0


def test_nobody_is_waited_for_beyond_the_limit_and_a_sleeping_client_gets_no_old_message(
    superlink, grid
):
    quick, asleep = Client(superlink, "quick"), Client(superlink, "asleep")
    work = lambda look: look or quick.answer(quick.fetch(), 2.0)  # noqa: E731
    assert values_of(first(grid, [asleep, quick], work, needed=2, timeout=0.1)) == [(1, 2.0)]
    assert asleep.fetch() is None and superlink.kept() == 0


def test_an_upload_counts_when_it_is_whole(superlink, grid):
    client = Client(superlink, "a")
    uploads = []

    def work(look):
        if look == 0:
            uploads.append(client.upload(client.fetch(), 2.0))
        elif look > 3:
            next(uploads[0], None)
        arrivals_before.append(look)

    arrivals_before = []
    (arrival,) = first(grid, [client], work, needed=1)
    assert arrival.reply.content["arrays"]["w"].numpy()[0] == 2
    assert len(arrivals_before) > 6  # several parts, one a look
    assert superlink.kept() == 0 and not grid._uploads


@pytest.mark.parametrize("stalled_place", [0, 1])
def test_a_stalled_upload_neither_ends_a_stage_nor_holds_it_up(superlink, grid, stalled_place):
    stalled, quick = Client(superlink, "stalled"), Client(superlink, "quick")
    uploads = []

    def work(look):
        if look == 0:
            uploads.append(stalled.upload(stalled.fetch(), 5.0))
            assert next(uploads[0])
        elif look == 5:
            quick.answer(quick.fetch(), 2.0)

    clients = [quick]
    clients.insert(stalled_place, stalled)
    assert values_of(first(grid, clients, work, needed=1)) == [(1 - stalled_place, 2.0)]
    assert superlink.kept() == 0 and not grid._uploads
    assert not any(uploads[0])  # nobody waits for what follows


def test_all_but_a_stalled_upload_count_when_time_is_up(superlink, grid):
    stalled, quick = Client(superlink, "stalled"), Client(superlink, "quick")

    def work(look):
        if look == 0:
            assert next(stalled.upload(stalled.fetch(), 5.0))
            quick.answer(quick.fetch(), 2.0)

    arrivals = first(grid, [stalled, quick], work, needed=2, timeout=0.1)
    assert values_of(arrivals) == [(1, 2.0)]
    assert superlink.kept() == 0


def test_an_ordinary_round_waits_for_a_stalled_upload_until_its_own_time_is_up(superlink, grid):
    stalled, quick = Client(superlink, "stalled"), Client(superlink, "quick")

    def work():
        for client, parts in ((stalled, 1), (quick, 100)):
            if (message := client.fetch()) is not None:
                list(zip(client.upload(message, 2.0), range(parts), strict=False))

    began = time.monotonic()
    lost, good = a_round(grid, [stalled, quick], work, 1.0)
    assert time.monotonic() - began < 5
    assert "not uploaded whole within federation.round_timeout" in lost.error.reason
    assert good.content["arrays"]["w"].numpy()[0] == 2
    assert superlink.kept() == 0 and not grid._uploads


def test_an_upload_that_is_withdrawn_is_an_error(superlink, grid):
    client, good = Client(superlink, "a"), Client(superlink, "b")

    def work(look):
        if look == 0:
            assert next(client.upload(client.fetch(), 5.0))
        elif look == 2:
            (upload,) = grid._uploads.values()
            superlink.store.delete(upload.message_id)
        elif look == 4:
            good.answer(good.fetch(), 2.0)

    arrivals = first(grid, [client, good], work, needed=1)
    assert values_of(arrivals) == [(0, None), (1, 2.0)]
    assert arrivals[0].reply.error.reason == "its reply was given up before it was there whole"
    assert superlink.kept() == 0 and not grid._uploads


def test_what_comes_when_a_run_is_over_is_dropped_when_the_run_is_listed(superlink, grid):
    """As :meth:`SuperLinkControl.forget_messages` does: a queue's SuperLink outlives its runs."""
    client = Client(superlink, "a")
    fetched = []
    a_round(grid, [client], lambda: fetched.append(client.fetch()), 1.0)
    client.answer(fetched[0], 2.0)
    (task,) = superlink.state.get_tasks()
    output = PushTaskOutputRequest(sub_status=SubStatus.COMPLETED)
    runtime_handlers.push_task_output(output, superlink.state, task)
    assert superlink.kept() == 1
    superlink.state.run_ids[superlink.run.run_id].run.flwr_aid = NOOP_FLWR_AID
    account = AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name="")
    listed = ListRunsRequest(run_id=superlink.run.run_id)
    control_handlers.list_runs(listed, account, superlink.state)
    assert superlink.kept() == 0
