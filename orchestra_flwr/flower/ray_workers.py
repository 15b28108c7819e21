"""The workers of a run on Ray, some of which may be lost, one by one or with their machine.

Flower binds a client to an actor. If Ray is to start the actor again while the cores of the
remaining machines are taken, it waits for ever, and its client with it. Here the client goes to
whichever worker is free next, and the worker's successor takes part as soon as there is room.

Checked against Flower 1.41 and 1.42, whose backend makes a `BasicActorPool` and calls what is here,
and whose engine makes a `ThreadPoolExecutor` without a number, and Ray 2.55: `ray.kill`,
`__ray_ready__`, and that only what a client raises is a `RayTaskError`.
"""

import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from orchestra_flwr.flower.ray_start import ended_process, load_ray

logger = logging.getLogger("orchestra_flwr.federation")

PAUSE = 0.1  # seconds between two looks for a free worker
LOOK = 1.0  # seconds between two looks at the machines, while a worker is lost
PATIENCE = 60.0  # seconds to wait for another machine, where none is left


class RayWorkers:
    """A pool of Flower's actors, in the place of Flower's own.

    Args:
        capacity: returns how many workers the machines that are there now can hold.

    Attributes:
        num_actors: how many workers there are as long as no machine is lost.
        why_ended: one line, when no machine was left and none came; None before.
    """

    _create: Callable[[], Any]  # starts one

    def __init__(self, capacity: Callable[[], int]) -> None:
        self._capacity = capacity
        self.num_actors = self.actors_capacity = self._room = capacity()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._all: list[Any] = []
        self._idle: list[Any] = []
        self._starting: dict[Any, Any] = {}  # by references to what they answer when they are up
        self._looked_at = self._room_at = 0.0  # moments
        self.why_ended: str | None = None

    @contextlib.contextmanager
    def in_place_of_flowers(self) -> Iterator[None]:
        """In the block, Flower's simulation engine uses these workers, all at the same time.

        Flower waits for each worker in a thread, but has at most four threads more than this
        machine has cores, and never more than 32.
        """
        engine: Any = importlib.import_module("flwr.server.superlink.fleet.vce.vce_api")
        backend: Any = importlib.import_module("flwr.server.superlink.fleet.vce.backend.raybackend")
        before = engine.ThreadPoolExecutor, backend.BasicActorPool
        engine.ThreadPoolExecutor = partial(ThreadPoolExecutor, self.num_actors)
        backend.BasicActorPool = self._made
        try:
            yield
        finally:
            engine.ThreadPoolExecutor, backend.BasicActorPool = before

    def _made(
        self, actor_type: Any, client_resources: dict[str, float], actor_kwargs: dict[str, Any]
    ) -> "RayWorkers":
        self._create = lambda: actor_type.options(**client_resources).remote(**actor_kwargs)
        self._ray: Any = load_ray()
        return self

    def add_actors_to_pool(self, num_actors: int) -> None:
        """Starts workers, which are given clients before they are up."""
        self._all = [self._create() for _ in range(num_actors)]
        self._idle = [*self._all]

    def submit(self, actor_fn: Callable[..., Any], job: tuple[Any, ...]) -> Any:
        """A client's task, which begins when its result is fetched."""
        return actor_fn, job

    def fetch_result_and_return_actor_to_pool(self, task: Any) -> tuple[Any, Any]:
        """The reply and context of a client, which is tried once more if its worker is lost.

        Raises:
            RayError: the client's own, or its second worker was lost as well.
            RuntimeError: the run is over.
        """
        actor_fn, job = task
        for is_last in (False, True):
            actor = self._take()
            try:
                _, reply, context = self._result(actor_fn(actor, *job))
            except self._ray.exceptions.RayTaskError:
                self._give_back(actor)
                raise
            except self._ray.exceptions.RayError:
                self._replace(actor)
                if is_last:
                    raise
            else:
                self._give_back(actor)
                break
        return reply, context

    def add_actor_back_to_pool(self, task: Any) -> None:
        """Does nothing: Flower calls it after an error, when the worker is back already."""

    def terminate_all_actors(self) -> None:
        """Ends all workers, whatever they do; clients that wait for one get an error."""
        self._is_over.set()
        with self._lock:
            for actor in self._all:
                self._ray.kill(actor)
            self._all.clear()

    def _take(self) -> Any:
        while True:
            with self._lock:
                if self._has_ended():
                    break
                self._admit()
                if self._idle:
                    return self._idle.pop()
            self._is_over.wait(PAUSE)
        raise RuntimeError(self.why_ended or "the run is over")

    def _result(self, reference: Any) -> Any:
        """What a worker answers, as soon as it is there.

        Ray itself waits on where its server of the cluster's state (GCS) has ended, and ends this
        process after a minute.
        """
        while not self._ray.wait([reference], num_returns=1, timeout=LOOK)[0]:
            if self._has_ended():
                raise RuntimeError("the run is over")
        return self._ray.get(reference)

    def _has_ended(self) -> bool:
        """Whether Ray must not be called: a call after its end ends this process without a word."""
        return self._is_over.is_set() or ended_process() is not None

    def _give_back(self, actor: Any) -> None:
        with self._lock:
            self._idle.append(actor)

    def _replace(self, lost: Any) -> None:
        """Starts a successor; idle workers, perhaps of the same machine, have to answer first."""
        with self._lock:
            if self._has_ended():
                return
            self._succeed(lost)
            self._starting |= {idle.__ray_ready__.remote(): idle for idle in self._idle}
            self._idle.clear()

    def _succeed(self, lost: Any) -> None:
        self._ray.kill(lost)  # in case it merely could not be reached
        actor = self._create()
        self._all[self._all.index(lost)] = actor
        self._starting[actor.__ray_ready__.remote()] = actor

    def _admit(self) -> None:
        """Admits the workers that have answered."""
        if not self._starting:
            return
        answers, _ = self._ray.wait([*self._starting], num_returns=len(self._starting), timeout=0)
        for answer in answers:
            actor = self._starting.pop(answer)
            try:
                self._ray.get(answer)
                self._idle.append(actor)
            except self._ray.exceptions.RayError:
                self._succeed(actor)
        if (now := time.monotonic()) > self._looked_at + LOOK:
            self._looked_at = now
            self._look_at_machines(now)

    def _look_at_machines(self, now: float) -> None:
        before, self._room = self._room, self._capacity()
        if self._room < before:
            logger.warning(
                "engine=ray: a machine of the cluster was lost: its clients are trained again; "
                f"workers left: {self._room}"
            )
        if self._room or before:
            self._room_at = now
        elif now > self._room_at + PATIENCE:
            self.why_ended = (
                f"engine=ray: no machine of the cluster is left, and none came in {PATIENCE:.0f} s"
            )
            self._is_over.set()
