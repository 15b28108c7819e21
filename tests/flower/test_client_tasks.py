"""Waits of a client's messages; the rest is in deployment/processes/test_foreign_messages.py."""

import threading
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.runtime import RuntimeHttpClient

from orchestra_flwr.flower import client_tasks
from orchestra_flwr.flower.client_tasks import (
    RETRY_SECONDS,
    ClientTasks,
    NodeLostError,
    Task,
    TaskError,
    pull_task_input,
)
from orchestra_flwr.flower.socket_client import connected


def test_what_still_arrives_is_asked_for_again_after_a_moment(monkeypatch):
    """With Flower's own wait of a second every round of a real federation would take one more."""
    waits = []

    class Recorded(threading.Event):
        def wait(self, timeout=None):
            waits.append(timeout)
            return False

    content = RecordDict({"config": ConfigRecord({"round": 3})})
    objects = {i: o.deflate() for i, o in get_all_nested_objects(content).items()}
    missing = set(objects)

    def pull(object_id):
        if object_id in missing:
            missing.remove(object_id)
            raise inflatable_utils.ObjectUnavailableError(object_id)
        return objects[object_id]

    threads = SimpleNamespace(Event=Recorded, Lock=threading.Lock)
    monkeypatch.setattr(inflatable_utils, "threading", threads)
    pulled = pull_task_input.__globals__["pull_and_inflate_object_from_tree"](
        get_object_tree(content), pull, lambda object_id: None, return_type=RecordDict
    )
    assert pulled["config"]["round"] == 3
    assert len(waits) == len(objects)
    assert all(0 < wait <= 1.2 * RETRY_SECONDS for wait in waits)


def test_a_supernode_that_ends_meanwhile_has_sent_no_bad_message(tmp_path):
    """A client said "a message of the server cannot be read: No such file or directory"."""
    with pytest.raises(NodeLostError):
        Task(connected(RuntimeHttpClient, tmp_path / "gone", None, []))


def test_a_busy_supernode_has_time_to_answer(tmp_path):
    """It gives a task and its message once: after Flower's own 30 s both would be lost."""
    assert ClientTasks(tmp_path / "gone")._client._client.timeout.read > 100


def test_an_answer_that_is_handed_over_too_late_does_not_end_the_client(monkeypatch):
    """Flower gives it three minutes by the wall clock: a board sets its own while it trains."""

    def refused(*_):
        raise inflatable_utils.ObjectPushError("ab", 1, "session")

    monkeypatch.setattr(client_tasks, "push_message", refused)
    monkeypatch.setattr(client_tasks, "Message", lambda answer, reply_to: None)
    task = object.__new__(Task)
    task._client = task._message = task._context = None
    with pytest.raises(TaskError, match=r"it took too long here \(ObjectPushError\)"):
        task.reply(RecordDict())
