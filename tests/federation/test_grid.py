"""The streaming grid over a scripted grid that answers out of order."""

import itertools

import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from orchestra_flwr.federation.grid import EngineStoppedError, StreamingGrid
from orchestra_flwr.federation.inline import identify_process

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
            key = str(next(self.numbers))
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


def test_a_vanished_node_gets_an_error_reply():
    replies = list(StreamingGrid(ScriptedGrid(), None).send_and_receive(messages(404, 1)))
    assert [r.has_error() for r in replies] == [True, False]


def test_a_dead_engine_ends_the_wait():
    grid = StreamingGrid(ScriptedGrid(silent={1}), None, cancelled=lambda: True)
    with pytest.raises(EngineStoppedError):
        list(grid.send_and_receive(messages(1)))
