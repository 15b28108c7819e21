"""The streaming grid over a scripted grid that answers out of order."""

import itertools

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from orchestra_flwr.federation.client.answers import ran_out_of_memory
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.flower.process_identity import identify_process
from orchestra_flwr.flower.streaming_grid import EngineStoppedError, StreamingGrid

identify_process()


class ScriptedGrid(Grid):
    """Answers messages in reverse order of sending, or never; counts what is under way."""

    def __init__(self, silent=()):
        self.silent = silent
        self.sent: dict[str, Message] = {}
        self.pulled: list[str] = []
        self.most_under_way = 0
        self.numbers = itertools.count()

    def push_messages(self, messages):
        ids = []
        for message in messages:
            if message.metadata.dst_node_id == 404:
                continue
            key = message.metadata.__dict__["_message_id"] = str(next(self.numbers))
            self.sent[key] = message
            ids.append(key)
        self.most_under_way = max(self.most_under_way, len(self.sent) - len(self.pulled))
        return ids

    def pull_messages(self, message_ids):
        replies = []
        for key in message_ids:
            message = self.sent[key]
            if message.metadata.dst_node_id not in self.silent:
                self.pulled.append(key)
                replies.append(Message(RecordDict(), reply_to=message))
        return replies

    run = property(lambda self: None)
    set_run = create_message = get_node_ids = send_and_receive = lambda self, *args, **kwargs: None


def messages(*nodes):
    return [Message(RecordDict(), node, "train") for node in nodes]


def nodes_of(replies):
    return [reply.metadata.src_node_id for reply in replies]


def test_what_cannot_be_read_is_that_clients_failure():
    class Grid(ScriptedGrid):
        def pull_messages(self, message_ids):
            for key in message_ids:
                if self.sent[key].metadata.dst_node_id == 2:
                    raise IndexError("list index out of range")
            return super().pull_messages(message_ids)

    first, second, third = StreamingGrid(Grid(), None).send_and_receive(messages(1, 2, 3))
    assert not first.has_error() and not third.has_error()
    assert second.error.reason == "it cannot be read (IndexError: list index out of range)"


@pytest.mark.parametrize("window", [1, 3, None])
def test_replies_come_in_the_order_of_the_messages(window):
    grid = StreamingGrid(ScriptedGrid(), window)
    assert nodes_of(grid.send_and_receive(messages(5, 3, 9, 1))) == [5, 3, 9, 1]


def test_never_more_under_way_than_the_window():
    inner = ScriptedGrid()
    assert len(list(StreamingGrid(inner, 4).send_and_receive(messages(*range(1, 51))))) == 50
    assert inner.most_under_way == 4


def test_nothing_is_sent_before_it_is_asked_for():
    inner = ScriptedGrid()
    replies = StreamingGrid(inner, 2).send_and_receive(messages(1, 2, 3))
    assert not inner.sent
    next(replies)
    assert len(inner.sent) == 2


def test_a_silent_client_gets_an_error_reply_and_the_others_count():
    grid = StreamingGrid(ScriptedGrid(silent={2}), None)
    replies = list(grid.send_and_receive(messages(1, 2, 3), timeout=0.2))
    assert [r.has_error() for r in replies] == [False, True, False]
    assert "round_timeout" in replies[1].error.reason


def test_what_is_unanswered_can_be_waited_for():
    inner = ScriptedGrid(silent={2})
    grid = StreamingGrid(inner, 3, lambda: "it is over" if inner.pulled else None)
    with pytest.raises(EngineStoppedError):
        list(grid.send_and_receive(messages(1, 2, 3, 404)))
    assert grid.unanswered == {"1", "2"}
    inner.silent = ()
    assert nodes_of(grid.pull_messages(["1"])) == [2]
    assert grid.unanswered == {"2"}


def test_what_is_given_up_is_not_unanswered():
    grid = StreamingGrid(ScriptedGrid(silent={2}), None)
    list(grid.send_and_receive(messages(1, 2), timeout=0.1))
    assert not grid.unanswered


def test_a_vanished_node_gets_an_error_reply():
    replies = list(StreamingGrid(ScriptedGrid(), None).send_and_receive(messages(404, 1)))
    assert [r.has_error() for r in replies] == [True, False]


def test_a_dead_engine_ends_the_wait():
    asked = []

    def stopped():
        asked.append(None)
        return "Ray is gone" if len(asked) > 3 else None

    grid = StreamingGrid(ScriptedGrid(silent={1}), None, stopped)
    with pytest.raises(EngineStoppedError, match="Ray is gone"):
        list(grid.send_and_receive(messages(1)))


def test_nothing_is_sent_to_a_dead_engine():
    inner = ScriptedGrid()
    with pytest.raises(EngineStoppedError):
        list(StreamingGrid(inner, None, lambda: "Ray is gone").send_and_receive(messages(1)))
    assert not inner.sent


def test_an_error_of_a_dead_engine_is_not_the_clients():
    """Otherwise the round would go on without a client that has done nothing wrong."""
    inner = TightGrid(set(), hopeless={1})
    grid = StreamingGrid(inner, None, lambda: "Ray is gone" if inner.tried else None)
    with pytest.raises(EngineStoppedError, match="Ray is gone"):
        list(grid.send_and_receive(messages(1)))


class TightGrid(ScriptedGrid):
    """Clients run out of memory whenever another one is at work beside them, or always."""

    def __init__(self, hungry, hopeless=()):
        super().__init__()
        self.hungry, self.hopeless = hungry, hopeless
        self.tried: list[int] = []

    def pull_messages(self, message_ids):
        (key,) = message_ids
        node = self.sent[key].metadata.dst_node_id
        beside = [k for k in self.sent if k not in self.pulled and k != key]
        self.tried.append(node)
        self.pulled.append(key)
        crowded = node in self.hungry and (beside or self.tried.count(node) == 1)
        if crowded or node in self.hopeless:
            error = Error(code=Failure.OUT_OF_MEMORY.code, reason="OutOfMemoryError")
            return [Message(error, reply_to=self.sent[key])]
        return [Message(RecordDict(), reply_to=self.sent[key])]


@pytest.mark.parametrize("hungry", [{1}, {3}, {6}, {2, 3}, {1, 2, 3, 4, 5, 6}])
@pytest.mark.parametrize("window", [1, 3, None])
def test_who_ran_out_of_memory_is_tried_alone_and_the_order_stays(hungry, window):
    inner = TightGrid(hungry)
    grid = StreamingGrid(inner, window, retry=ran_out_of_memory)
    replies = list(grid.send_and_receive(messages(1, 2, 3, 4, 5, 6)))
    assert nodes_of(replies) == [1, 2, 3, 4, 5, 6]
    assert not any(reply.has_error() for reply in replies)
    assert {node for node in inner.tried if inner.tried.count(node) == 2} == hungry


def test_who_runs_out_of_memory_alone_as_well_has_failed():
    inner = TightGrid(set(), hopeless={2})
    grid = StreamingGrid(inner, 2, retry=ran_out_of_memory)
    replies = list(grid.send_and_receive(messages(1, 2, 3)))
    assert [r.has_error() for r in replies] == [False, True, False]
    assert inner.tried.count(2) == 2


def test_nobody_is_asked_again_after_the_rounds_end():
    inner = TightGrid({1})
    grid = StreamingGrid(inner, 1, retry=ran_out_of_memory)
    (reply,) = grid.send_and_receive(messages(1), timeout=0)
    assert reply.has_error() and inner.tried == [1]
