"""How many clients run at a time; joining a real cluster is in test_cluster.py."""

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.federation.engines import resources
from orchestra_flwr.federation.engines.resources import (
    Node,
    available_nodes,
    gpu_share,
    ray_backend,
    worker_count,
)
from orchestra_flwr.training import devices

RAY = ("engine=ray",)


@pytest.mark.parametrize(
    ("nodes", "threads", "share", "workers"),
    [
        ([Node(8, 0)], 1, 0.0, 8),
        ([Node(8, 0)], 3, 0.0, 2),
        ([Node(2, 0), Node(5, 0)], 3, 0.0, 1),  # cores of two machines make no client
        ([Node(16, 1)], 1, 0.25, 4),
        ([Node(16, 2), Node(16, 0)], 1, 0.5, 4),  # no GPU, no clients
        ([Node(2, 8)], 1, 0.1, 2),
        ([Node(5, 2)], 1, 0.4, 4),  # two on each GPU: a fifth would wait for ever
        ([Node(8, 4)], 1, 0.6, 4),
        ([Node(8, 4)], 1, 2.0, 2),
    ],
)
def test_workers_are_counted_machine_by_machine(nodes, threads, share, workers):
    assert worker_count(nodes, threads, share) == workers


@pytest.mark.parametrize(
    ("nodes", "needs", "share"),
    [
        ([Node(16, 1)], 0.03, 1 / 16),  # cores are what is scarce
        ([Node(16, 1)], 0.2, 0.2),  # memory is: five clients, not sixteen
        ([Node(4, 8)], 0.1, 1.0),  # a client never takes more than one GPU
        ([Node(5, 2)], 0.03, 1 / 3),  # three on one GPU: all five cores are used
    ],
)
def test_a_clients_share_is_what_its_memory_needs(tiny, monkeypatch, nodes, needs, share):
    monkeypatch.setattr(resources, "measured_share", lambda config: needs)
    assert gpu_share(tiny(*RAY, "device=auto"), nodes) == pytest.approx(share)
    assert gpu_share(tiny(*RAY, "device=auto", "engine.gpus_per_client=0.3"), nodes) == 0.3
    assert gpu_share(tiny(*RAY, "device=cpu"), nodes) == 0


def test_a_share_of_no_gpu_is_refused(tiny):
    with pytest.raises(ConfigError, match=r"engine.gpus_per_client=0.5: no GPU"):
        ray_backend(tiny(*RAY, "engine.gpus_per_client=0.5"))


def test_this_machine_has_as_many_cores_as_its_workers_need(tiny):
    config = tiny(*RAY, "engine.workers=3", "training.threads=2")
    assert available_nodes(config) == [Node(6, 0)]
    backend = ray_backend(config)
    assert backend["init_args"]["num_cpus"] == 6
    assert backend["client_resources"]["num_cpus"] == 2


@pytest.mark.parametrize(
    ("gib", "threads", "cores"),
    [(64, 1, 16), (8, 1, 7), (8, 2, 14), (8, 3, 16), (1, 1, 1), (1, 4, 4)],
)
def test_workers_fit_into_memory_unless_their_number_is_given(
    tiny, monkeypatch, gib, threads, cores
):
    """A worker takes a GiB, and so does the server."""
    monkeypatch.setattr(devices, "usable_cpus", lambda: 16)
    monkeypatch.setattr(devices, "usable_memory", lambda: gib * 2**30)
    overrides = (*RAY, f"training.threads={threads}")
    assert available_nodes(tiny(*overrides)) == [Node(cores, 0)]
    assert available_nodes(tiny(*overrides, "engine.workers=5")) == [Node(5 * threads, 0)]


def test_on_a_cluster_nothing_is_asked_of_this_machine(tiny, monkeypatch):
    cluster = [Node(4, 2), Node(2, 0)]
    monkeypatch.setattr(resources, "_cluster_nodes", lambda address: cluster)
    backend = ray_backend(tiny(*RAY, "engine.address=10.0.0.1:6379", "device=cuda"))
    assert backend["client_resources"]["num_gpus"] == 0.5
    assert "num_cpus" not in backend["init_args"]
    with pytest.raises(ConfigError, match=r"training.threads=8: no machine"):
        ray_backend(tiny(*RAY, "engine.address=10.0.0.1:6379", "training.threads=8"))
    cluster[:] = [Node(2, 0)]
    config = tiny(*RAY, "engine.address=10.0.0.1:6379", "device=cuda")
    with pytest.raises(ConfigError, match=r"device=cuda: no machine of engine.address=10.0.0.1"):
        ray_backend(config)
    assert worker_count(available_nodes(config), 1, 0.5) == 0  # as a run finds that has begun


def test_workers_and_a_cluster_exclude_each_other(tiny):
    with pytest.raises(ConfigError, match=r"engine.workers=2: must not be given with engine.add"):
        tiny(*RAY, "engine.workers=2", "engine.address=10.0.0.1:6379")
