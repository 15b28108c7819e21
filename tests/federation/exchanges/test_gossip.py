"""One model a client, mixed with those of its neighbours; no model is everybody's."""

import numpy as np
import pytest
import torch

from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.methods import Role

GOSSIP = """
    from orchestra_flwr.federation.exchanges import Exchange, Stage, Task

    class Gossip(Exchange):
        "A ring: half of a client's model stays, a quarter goes to each neighbour."
        deployable = False

        def models(self, clients):
            self.clients = tuple(clients)
            return self.clients

        def stages(self, round_, cohort):
            yield Stage(tuple(Task(client, (client,)) for client in cohort))

        def enters(self, task, trained):
            place, count = self.clients.index(trained), len(self.clients)
            left, right = self.clients[place - 1], self.clients[(place + 1) % count]
            return {trained: 0.5, left: 0.25, right: 0.25}
"""
# Doubly stochastic: who mixes in how much of whom.
MIX = np.array([[2, 1, 0, 1], [1, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]]) / 4
BRIGHTNESS = np.array([0, 0.2, 0.4, 1])


@pytest.fixture
def gossip(toy):
    toy.package({"exchanges/gossip.py": GOSSIP})
    uniform = "federation.weighting=uniform"
    return lambda *overrides, **run: toy(
        "exchange=star", "exchange.name=gossip", uniform, *overrides, **run
    )


def nodes(state):
    """(4, 8) the flat models of all clients."""
    first = torch.cat([tensor.reshape(-1) for name, tensor in fields(state)])
    return torch.stack([first, *(state[f"models/{name}/shared"] for name in "bcd")]).numpy()


def fields(state):
    return sorted(((n, t) for n, t in state.items() if "/" not in n), key=lambda each: each[0])


@pytest.mark.parametrize(
    ("wire", "tolerance"),
    [("float32", 1e-6), pytest.param("float16", 1e-3, marks=pytest.mark.slow), ("int8", 1e-2)],
)
def test_models_are_mixed_by_the_matrix_and_their_mean_is_fedavgs(
    gossip, toy, federate, wire, tolerance
):
    overrides = ("federation.rounds=3", f"federation.wire={wire}")
    mixed = nodes(federate(gossip(*overrides), evaluate=False).state)
    by_hand = np.zeros(4)
    for _ in range(3):
        by_hand = MIX @ ((by_hand + BRIGHTNESS) / 2)
    np.testing.assert_allclose(mixed, np.repeat(by_hand[:, None], 8, 1), atol=tolerance)
    assert np.ptp(by_hand) > 0.1
    config = toy("federation.weighting=uniform", *overrides, run="star")
    star = federate(config, evaluate=False).state
    average = torch.cat([tensor.reshape(-1) for _, tensor in fields(star)]).numpy()
    np.testing.assert_allclose(mixed.mean(0), average, atol=tolerance)


def test_no_models_rounding_adds_up(gossip, federate):
    """Nothing is learned, so that all that could move a model is how it is rounded when sent.

    In int8 a value is wrong by up to half a step. A neighbour mixes in what a client has, not what
    the client was sent of it.
    """
    config = gossip("federation.rounds=6", "federation.wire=int8", "training.lr=1e-12")
    start = np.linspace(0.1, 1, 8, dtype=np.float32)
    original = Models.__init__

    def begin(self, *arguments):
        original(self, *arguments)
        for scale, name in enumerate(self.names, 1):
            state = self.load(name).state(Role.SHARED)
            self.schemas.shared.unpack(start * scale, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Models, "__init__", begin)
        mixed = nodes(federate(config, evaluate=False).state)
    expected = np.linalg.matrix_power(MIX, 6) @ (np.arange(1, 5)[:, None] * start[None])
    steps = np.abs(np.sort(mixed, 1) - np.sort(expected, 1)) / (4 / 127)
    assert steps.max() < 1e-3


def test_in_any_order_the_same_bits(gossip, federate, scrambled_grid):
    overrides = ("federation.rounds=2", "federation.wire=int8", "federation.participation=0.75")
    straight = federate(gossip(*overrides), evaluate=False)
    crossed = federate(gossip(*overrides, run="x"), grid=scrambled_grid, evaluate=False)
    assert all(torch.equal(t, crossed.state[name]) for name, t in straight.state.items())
