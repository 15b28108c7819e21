"""Flower's SuperExec of a client: it forks the program that takes a message, without texts.

A SuperExec starts `flwr-clientapp` anew for every message, and its imports take 2 seconds of a
server's core and far more of a small board's. Here a process that has imported all of it once is
forked instead.

What goes wrong in the program before our app is asked becomes an error with the exception's text,
which the SuperNode sends to the server. That text may hold paths of this machine: only the code is
sent, and the text is in the SuperNode's log.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from importlib import import_module
from multiprocessing import forkserver

from flwr.app import Error
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates

POLL_SECONDS = 1.0
GRACE_SECONDS = 20.0
PROGRAM = "flwr.supernode.runtime.run_clientapp"
IMPORTED_ONCE = [__name__, PROGRAM, "orchestra_flwr.deployment.channel.relay_app"]


class ForkingExecutor(SubprocessExecutor):
    """Runs `flwr-clientapp` in forks of a process that has imported it."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(IMPORTED_ONCE)
        forkserver.ensure_running()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Starts the process for a message; other tasks than a client's as Flower does."""
        if spec.task_type != TaskType.CLIENT_APP:
            return super().launch(spec)
        # Ended with this process, and waited for whenever the next one starts.
        self._context.Process(target=run_client_app, args=(spec,), daemon=True).start()
        return LaunchResult.accepted()


def main() -> None:
    """`flower-superexec`, which forks."""
    executor = ForkingExecutor()  # first: its process imports while this one does
    superexec = import_module("flwr.supercore.superexec.run_superexec")
    vars(superexec)["get_executor"] = lambda *_, **__: executor
    import_module("flwr.supercore.cli").flower_superexec()


def run_client_app(spec: ExecutionSpec) -> None:
    """Flower's `flwr-clientapp` for one message; it ends with :class:`SystemExit`."""
    leave_out_texts()
    end_with_parent()
    import_module(PROGRAM).run_clientapp(
        runtime_api_address=spec.runtime_api_address,
        token=spec.token,
        insecure=spec.insecure,
        certificates=validate_and_resolve_root_certificates(
            spec.root_certificates_path, spec.insecure
        ),
        parent_pid=spec.parent_pid,
        runtime_dependency_install=spec.runtime_dependency_install,
    )


def leave_out_texts() -> None:
    """Makes Flower's program send errors without their texts."""
    # Not by `import ... as`: the package has a function of the module's name.
    vars(import_module(PROGRAM))["Error"] = _without_text


def end_with_parent(grace: float = GRACE_SECONDS) -> None:
    """Ends this process so many seconds after the one that started it, however busy it is.

    Flower ends the program by itself when its parent is killed, but waits for its own threads,
    which can last for ever.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _without_text(code: int, reason: str | None = None) -> Error:
    return Error(code)
