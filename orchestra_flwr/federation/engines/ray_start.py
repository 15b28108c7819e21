"""Ray's start on this machine, which takes seconds: in a thread, while images are decoded."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from orchestra_flwr.federation.engines.ray_processes import load_ray
from orchestra_flwr.federation.server.round_report import FederationError

logger = logging.getLogger("orchestra_flwr.federation")

NICENESS = "RAY_worker_niceness"  # Ray's variable for how far workers give way to others

_one_at_a_time = threading.Lock()
_begun: list[_RayStart] = []  # none or one, as there is one Ray in a process


class _RayStart:
    """Ray, started in a thread, which lives as long as Ray does.

    Ray has its processes killed when what started them ends, and to Linux that is the thread.

    Args:
        init_args: of `ray.init`.
    """

    def __init__(self, init_args: dict[str, Any]) -> None:
        self.init_args = init_args
        self._error: BaseException | None = None
        self._is_up, self._is_over = threading.Event(), threading.Event()
        # No daemon: a process that ends meanwhile waits, so that nothing of Ray outlives it.
        threading.Thread(target=self._run, name="ray start").start()

    def _run(self) -> None:
        with _one_at_a_time:
            try:
                load_ray()
                start_ray(self.init_args)
            except BaseException as error:  # wait() raises it in the thread that needs Ray
                self._error = error
                return
            finally:
                self._is_up.set()
            self._is_over.wait()
            _shut_down()  # nothing, where Flower has done it

    def wait(self) -> None:
        """Returns when Ray is up, or raises what kept it from starting."""
        self._is_up.wait()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Lets Ray end as soon as it is up, for which nobody waits."""
        self._is_over.set()


def begin(init_args: dict[str, Any]) -> None:
    """Begins to start Ray, with arguments of `ray.init`; :func:`end` must follow."""
    end()
    _begun.append(_RayStart(init_args))


def finish(init_args: dict[str, Any]) -> None:
    """Returns when Ray is up, whether its start was begun before or not.

    Raises:
        FederationError: it did not start.
    """
    if _begun and _begun[0].init_args == init_args:
        _begun[0].wait()
        return
    end()
    with _one_at_a_time:
        start_ray(init_args)


def end() -> None:
    """Ends a Ray whose start was begun, if it has not ended yet."""
    if _begun:
        _begun.pop().end()


def start_ray(init_args: dict[str, Any]) -> None:
    """Starts Ray, of which Flower then makes use; a second time if a busy machine lets it fail.

    Raises:
        FederationError: it did not start.
    """
    import ray

    if ray.is_initialized():  # a cluster that was joined
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.suppress(Exception):  # whatever Ray raises where it does not start
            _init_ray(init_args)
        if not ray.is_initialized():
            logger.warning("Ray did not start: starting it again")
            _init_ray(init_args)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise FederationError(
            f"engine=ray: Ray does not start here: {reason} (is the machine too busy? "
            "engine=inline needs no Ray)"
        ) from None
    finally:
        # Ray's own handler would end the process before anything is told.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _init_ray(init_args: dict[str, Any]) -> None:
    import ray

    try:
        with _environment_of_its_processes():
            ray.init(logging_level=logging.CRITICAL, **init_args)
    except BaseException:
        ray.shutdown()
        raise


@contextlib.contextmanager
def _environment_of_its_processes() -> Iterator[None]:
    """They look for modules where this one does, and workers give way to nobody.

    Flower tells the paths to Ray by a `runtime_env`, with which each worker's start takes seconds
    more. At Ray's own niceness of 15 workers would wait for the server, which evaluates the
    untrained encoder meanwhile, and for whatever else is at work on the machine.
    """
    variables = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        NICENESS: os.environ.get(NICENESS, "0"),
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _shut_down() -> None:
    import ray

    ray.shutdown()
