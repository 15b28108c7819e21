"""Ray's processes: their start on this machine, and whether they live, as a run needs them.

The start takes seconds: it is in a thread, while images are decoded. Left to Flower, it would begin
when these are there, and one that fails would not be repeated.

Checked against Ray 2.55: the life of its processes, its variable for niceness, where its workers
look for modules, and `ray._private`, which no public call replaces.
"""

import contextlib
import importlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from types import ModuleType
from typing import Any

logger = logging.getLogger("orchestra_flwr.federation")

NICENESS = "RAY_worker_niceness"  # Ray's variable for how far workers give way to others
VITAL = ("raylet", "gcs_server")  # in Ray's words: schedules and stores objects; knows all nodes

_one_at_a_time = threading.Lock()


def ended_process() -> str | None:
    """One line about a process of Ray that has ended while Ray is in use; None: all of them run.

    Those of a cluster that was joined were not started from here, and are not looked at.
    """
    from ray._private import worker

    node = worker._global_node
    dead: dict[str, Any] = dict(node.dead_processes()) if node is not None else {}
    for name in VITAL:
        if name in dead:
            code = dead[name].returncode
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            return f"engine=ray: Ray's process {name} {how}, perhaps for want of memory"
    return None


def load_ray() -> ModuleType:
    """Imports Ray, and keeps it from ending this process before it has said how to go on.

    Ray ends a driver whose raylet is gone if process 1 is the driver's parent, as under systemd or
    in a container. It takes that for the death of the process that matters, unless a variable, read
    when Ray is loaded, names another one: here this process, which is always alive.

    One way remains: a thread that hands an object to Ray's store, which is in the raylet, in the
    moment when the raylet ends. Ray's client of the store then ends this process, and has no option
    against it. The run's checkpoint is whole.
    """
    os.environ["RAY_RAYLET_PID"] = str(os.getpid())
    # Python 3.14 finds fault with a `return` in Ray's code, where it is first compiled.
    warnings.filterwarnings("ignore", category=SyntaxWarning, module=r".*/ray/")
    return importlib.import_module("ray")


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
                ray.init(job_config=_job(), logging_level=logging.CRITICAL, **init_args)
            return
        except Exception as error:  # whatever Ray raises where it does not start
            ray.shutdown()
            if not left:
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                raise RayStartError(reason) from None
            logger.warning("Ray did not start: starting it again")


def _job() -> Any:
    """A job whose workers find modules where this process does, by PYTHONPATH.

    Otherwise Ray has them look into the working folder first, which may hold a checkout of another
    version, or a file of the name of one of Python's own.
    """
    from ray.job_config import JobConfig

    class Job(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # as if all were in a folder that Ray hands to the workers

    return Job()


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
