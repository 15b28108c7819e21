"""Messages at a real SuperNode's API, most of which ask for anything but this app's work."""

import time

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.constant import TaskType

from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.flower.deployed_app import APP

REFUSED = (Failure.OTHER_APP.code, Failure.OTHER_APP.word)


class Worker:
    """Stands for a client's work: what reaches it."""

    KINDS = {"query": "greet"}

    def __init__(self):
        self.requests = []

    def answer(self, request):
        self.requests.append(request)
        return RecordDict({"task": ConfigRecord({"n": len(self.requests)})})


@pytest.mark.parametrize(
    "message",
    [
        {"app": "evil/evilapp"},
        {"app": ""},
        {"kind": "query.other"},
        {"kind": "train.shell"},
        {"app": "evil/agent", "task_type": TaskType.AGENT_APP},
        {"app": APP, "task_type": TaskType.AGENT_APP, "kind": "evaluate.shell"},
    ],
    ids=str,
)
def test_a_foreign_message_is_refused_in_one_line_and_reaches_nobody(serving, message):
    worker, said = Worker(), []
    node = serving(worker, said.append)
    for _ in range(2):
        node.put(RecordDict(), **{"kind": "query", **message, "run": 5})
        assert node.answer()[0] == REFUSED
    assert worker.requests == []
    (line,) = said
    assert line.startswith("refused a message of another app: ") and "(run 5)" in line
    node.put(RecordDict(), "query", run=6)  # and the client goes on
    assert node.answer()[0] is None
    assert [request.run for request in worker.requests] == [6]


def test_a_message_is_content_and_its_archive_is_not_opened(serving, tmp_path, monkeypatch):
    """That of these messages is one byte, which nobody could install."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    worker = Worker()
    node = serving(worker, print)
    node.put(RecordDict({"task": ConfigRecord({"text": "hello"})}), "query")
    assert node.answer()[0] is None
    assert worker.requests[0].content["task"]["text"] == "hello"
    assert not (tmp_path / "flwr").exists()


def test_an_app_cannot_bring_escape_sequences_to_the_terminal(serving):
    said = []
    node = serving(Worker(), said.append)
    node.put(RecordDict(), app="evil/\x1b[2Japp")
    assert node.answer()[0] == REFUSED
    assert "\x1b" not in said[0] and "evil/?[2Japp" in said[0]


def test_a_message_is_waited_for_whose_task_can_be_had_already(serving, monkeypatch):
    """A SuperNode makes the task first. Asked for the message in between, on a busy board, it
    waited for ever for the answer to it, and took no other message."""
    worker, said = Worker(), []
    node = serving(worker, said.append)
    store = node.state.store_message

    def store_late(message):
        time.sleep(0.5)
        return store(message)

    with monkeypatch.context() as patch:
        patch.setattr(node.state, "store_message", store_late)
        node.put(RecordDict(), "query")
    assert node.answer(10)[0] is None
    assert said == [] and len(worker.requests) == 1
