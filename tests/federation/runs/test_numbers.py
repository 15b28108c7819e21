"""The number of a client in a run: a term or a method may rely on it."""

import pytest

from orchestra_flwr.federation.messages.fields import CONFIG
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.reporting import RunFolder


@pytest.fixture
def noted(watched):
    """A ClientApp, and the numbers that it was sent: {round: {client: index}}."""

    def make(kill=None):
        seen = {}

        def look(client, round_, sent, reply):
            seen.setdefault(round_, {})[client] = sent[CONFIG]["index"]
            if round_ == kill:
                raise KeyboardInterrupt

        return watched(look), seen

    return make


def test_in_a_simulation_it_is_the_rank_among_all(toy, federate, noted):
    app, seen = noted()
    federate(toy("federation.rounds=4", "federation.participation=0.5"), app=app, evaluate=False)
    ranks = {"a": 0, "b": 1, "c": 2, "d": 3}
    assert all(index == ranks[c] for numbers in seen.values() for c, index in numbers.items())
    assert all(len(numbers) == 2 for numbers in seen.values())
    assert {client for numbers in seen.values() for client in numbers} == set(ranks)


def coming_and_going(*present):
    """Clients as of a deployment: in each round others are there."""

    class Members(SimulatedMembers):
        def __init__(self, grid, names):
            super().__init__(grid, names)
            super().connected()  # as long as it knows the names
            self.names = ()
            self.rounds = iter(present)

        def connected(self):
            nodes = super().connected()
            return {name: nodes[name] for name in next(self.rounds)}

    return Members


def test_who_comes_later_gets_the_next_number_and_keeps_it(toy, federate, noted):
    app, seen = noted()
    members = coming_and_going("db", "bca", "da", "cab")
    federate(toy("federation.rounds=4"), app=app, members=members, evaluate=False)
    assert seen == {
        1: {"b": 0, "d": 1},
        2: {"b": 0, "a": 2, "c": 3},
        3: {"a": 2, "d": 1},
        4: {"a": 2, "b": 0, "c": 3},
    }


def test_numbers_outlive_the_servers_process(toy, federate, noted):
    config = toy("federation.rounds=4")
    folder = RunFolder.create(config)
    app, _ = noted(kill=3)
    members = coming_and_going("db", "bc", "bc")
    with pytest.raises(KeyboardInterrupt):
        federate(config, app=app, members=members, folder=folder, evaluate=False)
    app, seen = noted()
    members = coming_and_going("a", "abcd")  # nobody of them is there when the server is back
    resumed = RunFolder.resume(folder.path)
    federate(config, app=app, members=members, folder=resumed, evaluate=False)
    assert seen == {3: {"a": 3}, 4: {"a": 3, "b": 0, "c": 2, "d": 1}}
