"""Flower's virtual client engine: clients in worker processes of Ray, here or on a cluster."""

import contextlib
import importlib
import importlib.util
import io
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, Self

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from pydantic import Field, model_validator

from orchestra_flwr.config import Config, ConfigError, Section
from orchestra_flwr.federation.client.answers import ran_out_of_memory
from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.engines import Engine, Serve
from orchestra_flwr.federation.engines.resources import (
    against_one_gpu,
    available_nodes,
    ray_backend,
    worker_count,
)
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import CONFIG
from orchestra_flwr.federation.server.members import registered_nodes
from orchestra_flwr.flower.object_store import Broadcast
from orchestra_flwr.flower.ray_start import RayStart, RayStartError, ended_process
from orchestra_flwr.flower.ray_workers import RayWorkers
from orchestra_flwr.flower.streaming_grid import StreamingGrid
from orchestra_flwr.training import resolve_device

logger = logging.getLogger("orchestra_flwr.federation")

POLL_SECONDS = 0.005  # between two polls for a reply, in this process's own memory
MAX_FAREWELL = 30.0  # seconds that a signal waits for the server's thread, perhaps in a probe
AHEAD = 2  # messages in flight beyond one per worker: keeps all busy, and bounds the memory
MAX_NODES = 100  # of Flower, which polls for messages to each of them ten times a second


class RayIsMissingError(FederationError):
    """Ray did not start, and nothing was begun; `reason` is Ray's own line."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"engine=ray: Ray does not start here: {reason} (is the machine too busy? "
            "engine=inline needs no Ray)"
        )
        self.reason = reason


class RayEngine(Engine):
    """Worker processes of Ray.

    Args:
        settings, config: as of every engine.
        tries: how often to try to start Ray; on a busy machine the first try may fail.
    """

    class Settings(Section):
        workers: int | None = Field(None, ge=1)  # None: as many as the resources hold
        gpus_per_client: float | None = Field(None, ge=0)  # None: by the memory that a client needs
        address: str | None = Field(None, min_length=1)  # of a cluster to join; None: this machine

        @model_validator(mode="after")
        def _a_cluster_has_its_own_workers(self) -> Self:
            if self.address is not None and self.workers is not None:
                raise ValueError(
                    f"engine.workers={self.workers}: must not be given with engine.address, "
                    "the cluster's resources say how many clients it trains"
                )
            return self

    settings: Settings
    _start: RayStart | None = None

    def __init__(self, settings: Settings, config: Config, *, tries: int = 2) -> None:
        super().__init__(settings, config)
        self._tries = tries

    @classmethod
    def is_remote(cls, settings: Settings) -> bool:
        """Whether a cluster was joined."""
        return settings.address is not None

    def check_resources(self) -> None:
        """Refuses a missing Ray, and cores or a GPU that Ray's workers would wait for in vain."""
        if self.settings.address is None:
            resolve_device(self.config.device)
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "engine=ray: Ray is not installed; pip install 'orchestra-flwr[simulation]', "
                "or use engine=inline"
            )
        if reason := against_one_gpu(self.config):
            raise ConfigError(f"engine=ray: {reason}; engine=inline keeps to it as well")
        ray_backend(self.config)

    def begin(self) -> None:
        """Begins to start Ray, unless a cluster is joined."""
        if self.settings.address is None:
            self._start = RayStart(ray_backend(self.config)["init_args"], self._tries)

    def end(self) -> None:
        """Ends a Ray that was started here."""
        if self._start is not None:
            self._start.end()

    def run(self, serve: Serve, clients: int) -> dict[str, Any]:
        """Serves once Ray is there, while its workers load the images."""
        backend = ray_backend(self.config)
        resources = backend["client_resources"]

        def capacity() -> int:
            nodes = available_nodes(self.config)
            return worker_count(nodes, resources["num_cpus"], resources["num_gpus"])

        workers = RayWorkers(capacity)
        nodes = min(clients, max(MAX_NODES, workers.num_actors + AHEAD))

        def warmed(grid: Grid) -> dict[str, Any]:
            warm_up(grid, workers.num_actors, self.config)
            return serve(grid, workers.num_actors)

        self._wait_for_ray()
        return _run_ray(nodes, backend, warmed, workers, self.is_over)

    def _wait_for_ray(self) -> None:
        importlib.import_module("flwr.simulation")  # takes seconds, in which Ray starts
        try:
            if self._start is not None:
                self._start.wait()
        except RayStartError as error:
            raise RayIsMissingError(str(error)) from None


def warm_up(grid: Grid, workers: int, config: Config) -> None:
    """Lets all workers load their code and the run's images while the server does something else.

    Nobody waits for the answers: workers take a round's messages when they have done this.
    """
    nodes = registered_nodes(grid)
    task = RecordDict({CONFIG: ConfigRecord({"config": config.to_json()})})
    grid.push_messages(
        [Message(task, nodes[i % len(nodes)], MessageType.QUERY) for i in range(workers)]
    )


def _stop_clients(grid: StreamingGrid, workers: RayWorkers) -> None:
    """Ends clients that are at work, and returns when Flower's threads have noticed.

    A thread that still waits for a client when Ray is shut down waits for ever, and with it the
    whole process.
    """
    with contextlib.suppress(Exception):  # a cluster that was joined may be gone
        workers.terminate_all_actors()
    until = time.monotonic() + MAX_FAREWELL
    while grid.unanswered and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        grid.pull_messages(set(grid.unanswered))


def _why_stopped(over: threading.Event, workers: RayWorkers) -> str | None:
    if over.is_set():
        return "Flower's simulation engine stopped while clients were at work"
    return workers.why_ended or ended_process()


def _run_ray(
    nodes: int,
    backend: dict[str, Any],
    serve: Callable[[Grid], dict[str, Any]],
    workers: RayWorkers,
    over: threading.Event,
) -> dict[str, Any]:
    from flwr.simulation import run_simulation  # takes seconds, which inline runs are spared

    served = threading.Event()
    served.set()  # nothing is served yet
    outcome: dict[str, Any] = {}
    ended: list[str] = []  # lines about ended processes that Ray cannot go on without
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        served.clear()
        streaming = StreamingGrid(
            grid,
            workers.num_actors + AHEAD,
            partial(_why_stopped, over, workers),
            prepare=Broadcast(),
            retry=ran_out_of_memory,
            poll=POLL_SECONDS,
        )
        try:
            outcome.update(serve(streaming))
        except Exception:
            # An ended process may be why this failed; once Ray is down nobody can tell.
            ended.extend(filter(None, [workers.why_ended, ended_process()]))
            raise
        finally:
            # From here on Ray only logs retries of tasks whose workers are being stopped.
            farewell.enter_context(contextlib.redirect_stdout(io.StringIO()))
            if ended_process() is None:
                _stop_clients(streaming, workers)
            served.set()

    # Flower's log repeats, with tracebacks, what the progress shows and the metrics keep.
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    try:
        with (
            contextlib.ExitStack() as farewell,
            _ended_before_ray(over, served),
            workers.in_place_of_flowers(),
        ):
            run_simulation(server, client_app, nodes, "ray", backend_config=backend)
    except Exception as error:
        if ended:
            raise FederationError(ended[0]) from error
        if isinstance(error, FederationError) or not isinstance(error, RuntimeError):
            raise
        cause = error.__cause__ or error
        raise FederationError(f"Flower's simulation engine failed: {cause}") from error
    finally:
        over.set()  # ends the server's thread if the engine died under it
    return outcome


@contextlib.contextmanager
def _ended_before_ray(over: threading.Event, served: threading.Event) -> Iterator[None]:
    """Makes a signal that ends the run end the server's thread first.

    Flower shuts Ray down as soon as the signal's exception reaches it. A thread that calls Ray
    after that ends the whole process at once, before it has said how to resume the run.

    Args:
        over: set to make the server's thread end.
        served: set by the server's thread when it has ended.
    """
    if threading.current_thread() is not threading.main_thread():  # where no handler can be set
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, frame: FrameType | None) -> None:
        over.set()
        served.wait(MAX_FAREWELL)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
