"""Ray's start on this machine, which takes seconds: in a thread, while images are decoded.

Left to Flower, it would begin when these are there, and a start that fails would not be repeated.

Checked against Ray 2.55: the life of its processes, and its variable for niceness.
"""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from orchestra_flwr.flower.ray_processes import load_ray

logger = logging.getLogger("orchestra_flwr.federation")

NICENESS = "RAY_worker_niceness"  # Ray's variable for how far workers give way to others

_one_at_a_time = threading.Lock()


class RayStartError(RuntimeError):
    """Ray does not start on this machine; the text is Ray's."""


class RayStart:
    """Ray, started in a thread, which lives as long as Ray does.

    Ray has its processes killed when what started them ends, and to Linux that is the thread.
    """

    def __init__(self, init_args: dict[str, Any], tries: int = 2) -> None:
        self._tries = tries
        self._started: Future[None] = Future()
        self._is_over = threading.Event()
        # Not a daemon: a process that ends meanwhile waits, so that nothing of Ray outlives it.
        threading.Thread(target=self._run, args=(init_args,), name="ray start").start()

    def _run(self, init_args: dict[str, Any]) -> None:
        with _one_at_a_time:
            try:
                ray = load_ray()
                _start(init_args, self._tries)
            except BaseException as error:  # wait() raises it in the thread that needs Ray
                damaged = isinstance(error, ImportError | OSError)  # the installation
                self._started.set_exception(RayStartError(str(error)) if damaged else error)
                return
            self._started.set_result(None)
            self._is_over.wait()
            ray.shutdown()  # does nothing if Flower has done it

    def wait(self) -> None:
        """Returns when Ray is up.

        Raises:
            RayStartError: it did not start.
        """
        self._started.result()

    def end(self) -> None:
        """Lets Ray end as soon as it is up, without waiting for that."""
        self._is_over.set()


def _start(init_args: dict[str, Any], tries: int) -> None:
    """Starts Ray, which Flower then uses; tries again if it fails on a busy machine."""
    import ray

    for left in reversed(range(tries)):
        try:
            with _environment_of_its_processes():
                ray.init(logging_level=logging.CRITICAL, **init_args)
            return
        except Exception as error:  # whatever Ray raises where it does not start
            ray.shutdown()
            if not left:
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                raise RayStartError(reason) from None
            logger.warning("Ray did not start: starting it again")


@contextlib.contextmanager
def _environment_of_its_processes() -> Iterator[None]:
    """Lets Ray's processes find modules where this one does, and workers give way to nobody.

    Flower passes the paths to Ray in a `runtime_env`, with which each worker's start takes seconds
    more. At Ray's own niceness of 15, workers would wait for the server, which evaluates the
    untrained encoder meanwhile, and for whatever else is at work on the machine.
    """
    variables = {"PYTHONPATH": os.pathsep.join(sys.path)}
    variables |= {NICENESS: "0"} if NICENESS not in os.environ else {}
    replaced = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(replaced)
