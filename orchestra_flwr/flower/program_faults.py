"""Mends faults of Flower's programs that end, slow down or deafen a federation of weeks.

Each function changes the program of this process, before it starts. Nothing is imported but Flower:
:mod:`~orchestra_flwr.flower.socket_server` runs this file in a process of Flower's own.

Checked against Flower 1.41 and 1.42: the states in memory of a SuperLink and a SuperNode, whose
methods and locks are named below.
"""

import os
import signal
import threading
from importlib import import_module
from typing import Any

PATIENCE_SECONDS = 600.0


def mend(program: str) -> None:
    """Mends all of a program: `flower-superlink` or `flower-supernode`."""
    store_again()
    if program == "flower-superlink":
        wait_for_apps()
        announce_again()
    else:
        forget_finished_tasks()
        answer_unfetched()
        drop_of_ended_runs()
        end_with_any_thread()


def wait_for_apps() -> None:
    """Lets a SuperLink wait for the heartbeat of the server's app for `PATIENCE_SECONDS`.

    It takes an app for dead, and ends its run, when it has heard nothing of it for a minute: a
    machine that is overloaded takes that long. Whether the app lives is known to `run_server.py`,
    which has started it. `HEARTBEAT_PATIENCE` counts intervals.
    """
    state: Any = import_module("flwr.supercore.corestate.in_memory_corestate")
    state.HEARTBEAT_PATIENCE = PATIENCE_SECONDS / state.HEARTBEAT_DEFAULT_INTERVAL


def store_again() -> None:
    """Lets a program accept a part of a message that it has stored already.

    A part is sent again where the network failed while the answer was on its way. `store_object`
    refuses what no session waits for, also where it is stored, and the sender then gives up the
    whole message.
    """
    state: Any = import_module("flwr.supercore.corestate.in_memory_corestate").InMemoryCoreState
    store = state.store_object

    def store_object(
        self: Any, run_id: int, session_id: str, object_id: str, object_content: bytes
    ) -> bool:
        if store(self, run_id, session_id, object_id, object_content):
            return True
        return bool(object_content) and self.object_store.get(object_id) == object_content

    state.store_object = store_object


def announce_again() -> None:
    """Lets a SuperLink accept the head of a reply again, and keep nothing of one that it refuses.

    To a SuperNode that sends a head again, because the answer did not come, it says that no part is
    missing if the server's app has seen the reply meanwhile: then none is ever sent. The session of
    a refused reply would be kept until the run ends. And it took two locks in one order here and in
    the other where an upload expires: if both happened at once, it hung.
    """
    module: Any = import_module("flwr.server.superlink.linkstate.in_memory_linkstate")
    state = module.InMemoryLinkState
    store = state.store_message_and_object_tree

    def store_message_and_object_tree(
        self: Any, message: Any, object_tree: Any, session_id: str
    ) -> tuple[bool, list[str]]:
        with self._lock_object_push_sessions:  # first, as where an upload expires
            stored, missing = store(self, message, object_tree, session_id)
        if not stored:
            objects, key = self.object_store, object_tree.object_id
            with objects.lock_store:  # unless the reply is withdrawn, given up, or fetched
                stored = key in objects and objects.get_object_tree(key) == object_tree
            if stored:
                missing = self.preregister_object_tree(object_tree, session_id)
            else:  # it would be kept until the run ends
                self._cleanup_push_session(session_id, cleanup_messages=False)
        return stored, missing

    state.store_message_and_object_tree = store_message_and_object_tree


def forget_finished_tasks() -> None:
    """Lets a SuperNode forget each task that is finished.

    It keeps all, and looks through them whenever its client asks for work, some ten times a second:
    after 50,000 messages that takes half a core. After `finish_task` nobody reads a task again.
    """
    state: Any = import_module("flwr.supernode.nodestate.in_memory_nodestate").InMemoryNodeState
    finish = state.finish_task

    def finish_task(self: Any, task_id: int, sub_status: str, details: str) -> bool:
        finished: bool = finish(self, task_id, sub_status, details)
        if finished:
            with self.lock_task_store:
                self.task_store.pop(task_id, None)
        return finished

    state.finish_task = finish_task


def answer_unfetched() -> None:
    """Lets a SuperNode wait for no answer that will not come.

    When its client has not worked on a task for a minute, it answers the message with an error
    (`_store_error_replies`), but only if the client had fetched it (`is_retrieved`). Otherwise, and
    where the client had begun to give its own answer, it waited for ever, and took no other
    message. Here it answers in the first case. In the second it gives the answer up, as it does
    where a part of one is deleted.
    """
    module = import_module("flwr.supernode.nodestate.in_memory_nodestate")
    state: Any = module.InMemoryNodeState
    store = state._store_error_replies

    def _store_error_replies(self: Any, run_ids: set[int], error: Any) -> None:
        at_work = any(task.status.status != "finished" for task in [*self.task_store.values()])
        with self.lock_msg_store:
            for key, entry in [] if at_work else self.msg_store.items():
                if not entry.message.metadata.reply_to_message_id:
                    entry.is_retrieved = True
                elif not _is_whole(self.object_store, key):
                    self.object_store.delete(key)
        store(self, run_ids, error)

    state._store_error_replies = _store_error_replies


def _is_whole(objects: Any, key: str) -> bool:
    """Whether all parts of a message are there; False for one that is given up."""
    inflatable: Any = import_module("flwr.supercore.inflatable.inflatable_object")
    parts = inflatable.iterate_object_tree(objects.get_object_tree(key)) if key in objects else ()
    held = [objects.get(part.object_id) for part in parts]
    return bool(held) and all(held)


def drop_of_ended_runs() -> None:
    """Lets a SuperNode drop a message whose run ends while its parts come.

    It dropped one for any other reason. Of this one it kept the task, which its client took and
    could not fetch: for more than an hour it answered no other message. The exception is none that
    `except Exception` catches.
    """
    module: Any = import_module("flwr.supernode.start_client_internal")
    pull = module.pull_objects

    def pull_objects(*arguments: Any, **options: Any) -> Any:
        try:
            return pull(*arguments, **options)
        except module.RunNotRunningException:
            raise RuntimeError("its run has ended") from None

    module.pull_objects = pull_objects


def end_with_any_thread() -> None:
    """Ends a SuperNode, as SIGTERM does, when one of its threads has failed.

    At an answer that it does not foresee it stops to ask for messages, or to send heartbeats, and
    stays, because a thread of it serves the socket. Its client starts another one if it ends.
    """
    report = threading.excepthook

    def failed(arguments: threading.ExceptHookArgs) -> None:
        report(arguments)
        if arguments.exc_type is not SystemExit:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.excepthook = failed
