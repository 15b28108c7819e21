"""The pool of Ray's workers on a scripted Ray; `test_ray_cluster.py` loses real machines."""

import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from orchestra_flwr.flower import ray_workers
from orchestra_flwr.flower.ray_workers import RayWorkers


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class Worker:
    """Is up, lost, or None while it waits for room; `__ray_ready__` is answered when it is up."""

    def __init__(self, is_up=True):
        self.is_up = is_up
        self.__ray_ready__ = SimpleNamespace(remote=lambda: (self, None))


class ScriptedRay:
    """As far as the pool calls Ray; workers that are started now are up only if there is `room`."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self):
        self.started, self.killed, self.room = [], [], True

    def options(self, **resources):
        return self

    def remote(self):
        self.started.append(Worker(True if self.room else None))
        return self.started[-1]

    def get(self, reference):
        worker, reply = reference
        if not worker.is_up:
            raise RayError
        if isinstance(reply, Exception):
            raise reply
        return reply

    def wait(self, references, num_returns, timeout):
        return [reference for reference in references if reference[0].is_up is not None], []

    def kill(self, worker):
        self.killed.append(worker)


@pytest.fixture
def ray(monkeypatch):
    scripted = ScriptedRay()
    monkeypatch.setattr(ray_workers, "load_ray", lambda: scripted)
    monkeypatch.setattr(ray_workers, "PAUSE", 0.01)
    monkeypatch.setattr(ray_workers, "LOOK", -1.0)
    return scripted


def pool_of(ray, *capacities):
    """Three workers; `capacities` are what later looks at the machines find, the last for good."""
    readings = iter(capacities)
    latest = [3]

    def capacity():
        latest[0] = next(readings, latest[0])
        return latest[0]

    workers = RayWorkers(lambda: 3)
    workers._capacity = capacity
    assert workers._made(ray, {}, {}) is workers
    workers.add_actors_to_pool(workers.num_actors)
    return workers


def trained(workers, reply="reply"):
    """Which workers a client is given to, the one that trains it last."""
    tried = []

    def run(worker, client):
        tried.append(worker)
        return worker, (client, reply, "context") if isinstance(reply, str) else reply

    task = workers.submit(run, ("client",))
    assert workers.fetch_result_and_return_actor_to_pool(task) == ("reply", "context")
    return tried


def test_the_client_of_a_lost_machine_is_trained_by_the_workers_that_are_left(ray, caplog):
    """Two of three are lost, and there is no room for their successors until another one comes."""
    workers = pool_of(ray, 1)
    left, *lost = ray.started
    for worker in lost:
        worker.is_up = False
    ray.room = False
    assert trained(workers) == [lost[1], left]  # the idle one that was lost as well is given nobody
    assert ray.killed == [lost[1], lost[0]]
    assert trained(workers) == trained(workers) == [left]
    assert len(ray.started) == 5
    (line,) = caplog.messages
    assert line.endswith("was lost: its clients are trained again; workers left: 1")
    for worker in ray.started[3:]:
        worker.is_up = True
    left.is_up = False
    assert trained(workers)[-1] in ray.started[3:]


def test_a_client_is_tried_twice_where_each_worker_is_lost_under_it(ray, caplog):
    workers = pool_of(ray)
    tried = []

    def run(worker, client):
        tried.append(worker)
        worker.is_up = False
        return worker, None

    with pytest.raises(RayError):
        workers.fetch_result_and_return_actor_to_pool(workers.submit(run, ("client",)))
    assert ray.killed == tried and len(tried) == 2
    assert caplog.messages == []  # no machine is lost
    assert len(trained(workers)) == 1


def test_a_worker_outlives_the_error_of_a_client(ray):
    workers = pool_of(ray)
    with pytest.raises(RayTaskError):
        trained(workers, RayTaskError())
    assert ray.killed == [] and trained(workers) == [ray.started[-1]]


def test_a_client_at_work_is_not_waited_for_once_ray_has_ended(ray, monkeypatch):
    """Its result never comes, and Ray would end the process after a minute."""
    workers = pool_of(ray)

    def run(worker, client):
        worker.is_up = None
        monkeypatch.setattr(ray_workers, "ended_process", lambda: "gcs_server was killed")
        return worker, None

    with pytest.raises(RuntimeError, match="the run is over"):
        workers.fetch_result_and_return_actor_to_pool(workers.submit(run, ("client",)))
    assert ray.killed == []


def test_without_a_machine_for_a_while_the_run_is_over(ray, monkeypatch):
    monkeypatch.setattr(ray_workers, "PATIENCE", 0.05)
    workers = pool_of(ray, 0)
    for worker in ray.started:
        worker.is_up = False
    ray.room = False
    with pytest.raises(
        RuntimeError, match="no machine of the cluster is left, and none came in 0 s"
    ):
        trained(workers)
    assert workers.why_ended.startswith("engine=ray: no machine of the cluster is left")


def test_a_machine_that_comes_in_time_takes_the_clients_of_the_last_one(ray, monkeypatch):
    workers = pool_of(ray, 0, 0, 1)
    for worker in ray.started:
        worker.is_up = False
    monkeypatch.setattr(workers._is_over, "wait", lambda pause: setattr(ray.started[3], "is_up", 1))
    ray.room = False
    assert trained(workers)[-1] is ray.started[3]


@pytest.mark.parametrize("ends", ["the run", "Ray"])
def test_nothing_is_asked_of_ray_when_the_run_or_ray_has_ended(ray, monkeypatch, ends):
    workers = pool_of(ray)
    if ends == "the run":
        workers.terminate_all_actors()
        assert ray.killed == ray.started
    else:
        monkeypatch.setattr(ray_workers, "ended_process", lambda: "Ray's raylet was killed")
    with pytest.raises(RuntimeError, match="the run is over"):
        trained(workers)
    workers._replace(ray.started[0])
    assert len(ray.started) == 3


def test_flowers_own_pool_is_put_back():
    from flwr.server.superlink.fleet.vce.backend import raybackend

    theirs, workers = raybackend.BasicActorPool, RayWorkers(lambda: 1)
    with workers.in_place_of_flowers():
        assert raybackend.BasicActorPool == workers._made
    assert raybackend.BasicActorPool is theirs


def test_as_many_workers_as_there_are_train_at_the_same_time():
    """Flower's own engine stops at 32, and on small machines before."""
    from flwr.server.superlink.fleet.vce import vce_api

    count, over, met = 40, threading.Event(), threading.Barrier(40, timeout=10)

    def train(message, context):
        with suppress(threading.BrokenBarrierError):
            met.wait()
        over.set()
        return None, None

    message = SimpleNamespace(metadata=SimpleNamespace(dst_node_id=0, run_id=1))
    backend = SimpleNamespace(
        build=lambda app_fn: None, num_workers=count, process_message=train, terminate=lambda: None
    )
    contexts = SimpleNamespace(
        retrieve_context=lambda run_id: None, update_context=lambda run_id, context: None
    )
    with RayWorkers(lambda: count).in_place_of_flowers():
        vce_api.run_api(
            app_fn=lambda: None,
            backend_fn=lambda: backend,
            nodes_mapping=dict.fromkeys(range(count), 0),
            state_factory=SimpleNamespace(
                state=lambda: SimpleNamespace(get_message_ins=lambda node_id, limit: [message])
            ),
            node_info_stores={0: contexts},
            f_stop=over,
            metrics=SimpleNamespace(add_clientapp_runtime=lambda seconds: None),
        )
    assert not met.broken
