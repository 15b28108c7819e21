"""Clients in threads: the same bits as one after another, and no thread that is left."""

import threading
import time
from functools import partial

import pytest
import torch

from orchestra_flwr import simulate
from orchestra_flwr.methods import Received
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, client_threads, train_round

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = (24, 40, 17, 33)  # other batches, and other numbers of them


@pytest.fixture
def deterministic():
    """On a GPU two calls are equal to the bit only where it is demanded."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


def train(config, client):
    """A client's round, from building its learner on."""
    draw = torch.Generator().manual_seed(client)
    images = torch.randint(0, 256, (SIZES[client], 1, 8, 8), dtype=torch.uint8, generator=draw)
    images, labels = images.to(DEVICE), (torch.arange(SIZES[client]) % 10).to(DEVICE)
    learner = build_learner(config, 1).to(DEVICE)
    for name, tensor in learner.method.named_buffers():
        if name == "global_centroids":
            tensor.copy_(torch.eye(*tensor.shape))
    seed = ClientSeed(0, 1, str(client))
    received = Received(str(client), client, 1, images, population=len(SIZES))
    result = train_round(learner, images, config, seed, labels=labels, received=received)
    return {k: v.cpu() for k, v in learner.state_dict().items()}, result.losses


@pytest.mark.parametrize(
    ("method", "graphs"),
    [
        ("orchestra", "true"),
        ("byol", "false"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("orchestra", "false"),
                ("mocov2", "false"),
                ("swav", "false"),
                ("supervised", "false"),
                *((name, "true") for name in ("byol", "swav", "mocov2", "supervised")),
            )
        ),
    ],
)
def test_clients_in_threads_train_to_the_same_bits(tiny, deterministic, method, graphs):
    config = tiny(f"method={method}", f"training.cuda_graphs={graphs}", "training.local_epochs=4")
    alone = [train(config, client) for client in range(len(SIZES))]
    with client_threads(3, DEVICE) as threads:
        beside = list(threads.map(partial(train, config), range(len(SIZES))))
    for (state, losses), (expected, their_losses) in zip(beside, alone, strict=True):
        assert losses == their_losses
        assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())


def test_they_really_run_at_the_same_time():
    together = threading.Barrier(3, timeout=30)
    with client_threads(3, torch.device("cpu")) as threads:
        assert [f.result() >= 0 for f in [threads.submit(together.wait) for _ in range(3)]]


def test_networks_that_threads_build_begin_with_the_runs_bits(tiny):
    """Torch's own generator is one for the whole process."""
    config = tiny("model=resnet18", "model.width=16")
    expected = build_learner(config, 1).state_dict()
    with client_threads(4, torch.device("cpu")) as threads:
        built = [threads.submit(build_learner, config, 1) for _ in range(8)]
        states = [future.result().state_dict() for future in built]
    for state in states:
        assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())


def test_at_an_error_what_was_not_begun_is_dropped_and_no_thread_is_left():
    before, begun = threading.active_count(), []

    def work(number):
        begun.append(number)
        time.sleep(0.2)

    with pytest.raises(KeyboardInterrupt), client_threads(2, torch.device("cpu")) as threads:
        for number in range(50):
            threads.submit(work, number)
        raise KeyboardInterrupt
    assert len(begun) < 10
    assert threading.active_count() == before


def test_a_run_ends_like_one_with_clients_one_after_another(tiny_overrides, tmp_path):
    """To the bit: Orchestra, with clustering and clients of several sizes, and evaluation."""
    results = []
    for count in (1, 3):
        chosen = [
            *tiny_overrides, "engine=inline", "method=orchestra", f"engine.side_by_side={count}",
            "federation.clients=5", "device=cpu", f"run_dir={tmp_path / str(count)}",
        ]  # fmt: skip
        results.append(simulate(chosen))
    one, other = (result.encoder.state_dict() for result in results)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    for one, other in zip(*(result.metrics for result in results), strict=True):
        assert other.loss == one.loss
