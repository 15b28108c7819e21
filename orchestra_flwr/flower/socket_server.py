"""Runs a program of Flower so that it listens at a Unix socket and at no port.

    python -P socket_server.py SOCKET SIGNING_TIME flower-superlink [ARGUMENT ...]

A SuperLink takes any code to run from whoever reaches its port, and a SuperNode gives a client's
messages to whoever reaches its own: on 127.0.0.1 that is every user of the machine. A socket in a
folder with mode 0700 is reached by its owner alone.

A SuperNode signs the time of each request, and a SuperLink refuses one that is 5 s ahead of its
own. So SIGNING_TIME says what is to be added to `clock()` to get the server's time; "" leaves the
machine's own.

A SuperLink takes the server's app for dead when it has heard nothing of it for a minute, and ends
the run: a machine that is overloaded, or was suspended, takes that long. Here it waits for
`PATIENCE_SECONDS`; whether the app lives is known to `run_server.py`, which has started it.

A SuperNode never forgets the task of a message, and looks at all of them whenever its client asks
for work, some ten times a second: after 50,000 messages that takes half a core. Here it forgets
those that are finished.

When a client has not worked on its task for a minute, its SuperNode answers the message with an
error, but only if the client had fetched it: where that had failed, the SuperNode waits for the
answer for ever, and takes no other message. Here it answers that one, too. If the client had begun
to give its own answer, the SuperNode waits for the rest of that for ever. Here it gives it up.

A SuperNode whose server answers with an unforeseen error stops to ask for messages, or to send
heartbeats, and stays, because a thread of it serves the socket. Here it ends, so that its client
notices, and starts another one.

Both store a part of a message once, and refuse it when it is sent again, as it is where the network
failed while the answer was on its way: the sender then gave up the whole message. Here the same
part may be sent again. So may the head of a reply, even if the server's app has seen it meanwhile:
a SuperNode that sends it again would be told that no part of the reply is missing.

Checked against Flower 1.41 and 1.42: both programs serve by uvicorn, which prefers a socket (`uds`)
to a port. If that ever changes, the socket does not appear, and what waits for it says so. The time
that a SuperNode signs is that of `now` in `flwr.supernode.node_auth_http_interceptor`; the patience
with apps is `HEARTBEAT_PATIENCE` in `flwr.supercore.corestate.in_memory_corestate`, in intervals;
after `finish_task` of a SuperNode's state nobody reads a task of its `task_store` again;
`_store_error_replies` answers what `is_retrieved`; a SuperNode gives up a reply of which a part is
deleted, and waits for one that is empty; `store_object` of a state in memory refuses what no
session waits for, also where it is stored; and `store_message_and_object_tree` a reply to a message
that is answered.
"""

import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 600.0
PROGRAMS = {
    "flower-superlink": ("flwr.superlink.cli", "flower_superlink"),
    "flower-supernode": ("flwr.supernode.cli", "flower_supernode"),
}


def socket_server_command(
    socket: Path, program: str, signing_time: float | None = None
) -> list[str]:
    """The command that runs one of Flower's programs at a socket; its arguments come after it.

    Args:
        signing_time: the server's time in seconds less `clock()`; None: this machine's own time.
    """
    shift = "" if signing_time is None else f"{signing_time:.3f}"
    return [sys.executable, "-P", __file__, str(socket), shift, program]


def clock() -> float:
    """Seconds on a clock that nobody sets, the same in all processes of this machine."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def main(arguments: list[str]) -> None:
    """Serves until the program ends."""
    socket, signing_time, name, *sys.argv[1:] = arguments
    sys.argv[0] = name
    listen_at(socket)
    store_again()
    if name == "flower-superlink":
        wait_for_apps()
        announce_again()
    else:
        forget_finished_tasks()
        answer_unfetched()
        end_with_any_thread()
    if signing_time:
        sign_at(float(signing_time))
    module, function = PROGRAMS[name]
    getattr(import_module(module), function)()
    if name == "flower-supernode":
        os._exit(1)  # it is over, and the thread that serves the socket would go on


def listen_at(socket: str) -> None:
    """Makes every server of this process that uvicorn starts listen at `socket`."""
    config = import_module("uvicorn").Config
    original = config.__init__

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        original(self, *arguments, **{**options, "uds": socket})

    config.__init__ = __init__


def wait_for_apps() -> None:
    """Lets a SuperLink of this process wait for the heartbeat of an app for `PATIENCE_SECONDS`."""
    state: Any = import_module("flwr.supercore.corestate.in_memory_corestate")
    state.HEARTBEAT_PATIENCE = PATIENCE_SECONDS / state.HEARTBEAT_DEFAULT_INTERVAL


def store_again() -> None:
    """Lets a program of this process accept a part of a message that it has stored already."""
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
    """Lets a SuperLink of this process accept the head of a reply that it has already, and keep
    nothing of one that it refuses."""
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
    """Lets a SuperNode of this process forget each task that is finished."""
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
    """Lets a SuperNode of this process answer a message, too, that its client could not fetch, and
    give up the answer that a client did not end."""
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


def end_with_any_thread() -> None:
    """Ends a SuperNode of this process, as SIGTERM does, when one of its threads has failed."""
    report = threading.excepthook

    def failed(arguments: threading.ExceptHookArgs) -> None:
        report(arguments)
        if arguments.exc_type is not SystemExit:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.excepthook = failed


def sign_at(signing_time: float) -> None:
    """Lets a SuperNode of this process sign the time of its server, whatever the machine's is."""

    def now() -> datetime:
        return datetime.fromtimestamp(clock() + signing_time, tz=UTC)

    interceptor: Any = import_module("flwr.supernode.node_auth_http_interceptor")
    interceptor.now = now


if __name__ == "__main__":
    main(sys.argv[1:])
