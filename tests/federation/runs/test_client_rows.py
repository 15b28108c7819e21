"""User verification in whole runs: each client trains the row of its number, and no other."""

import pytest
import torch

from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.flower.arrays import from_record
from orchestra_flwr.methods import Role
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.training import build_learner

ROWS = "terms.verification.rows"
SMALL = ("method=simclr", "data.train_limit=60", "terms.verification.hidden=16",
         "terms.verification.dim=8")  # fmt: skip
ON = (*SMALL, "terms.verification.weight=1")
ADAM = ("server_optimizer=adam", "server_optimizer.lr=0.003")


def same_bits(one, other):
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


@pytest.fixture
def run(tiny, tmp_path, federate):
    """Runs a tiny federation in a folder of its name."""

    def run_(name, *overrides, **named):
        config = tiny(*overrides, f"run_dir={tmp_path / name}")
        return federate(config, evaluate=False, **named)

    return run_


def first_rows(tiny, *overrides):
    return build_learner(tiny(*overrides), 1).state(Role.SHARED)[ROWS]


def coming(*present):
    """Clients as of a deployment: in each round others are there."""

    class Members(SimulatedMembers):
        def __init__(self, grid, names):
            super().__init__(grid, names)
            self.names = ()
            self.rounds = iter(present)

        def connected(self):
            nodes = super().connected()
            return {name: nodes.get(name, 0) for name in next(self.rounds)}

    return Members


def test_killed_and_resumed_or_answered_in_another_order_it_ends_in_the_same_bits(
    run, tiny, tmp_path, federate, watched, scrambled_grid
):
    """With Adam, whose moments of rows count as well, and with half of the clients a round."""
    overrides = (*ON, *ADAM, "federation.rounds=3", "federation.participation=0.5")
    whole = run("whole", *overrides)
    calls = []

    def pull_the_plug(client, round_, sent, reply):
        calls.append(client)
        if len(calls) == 4:  # in the second round
            raise KeyboardInterrupt

    config = tiny(*overrides, f"run_dir={tmp_path / 'torn'}")
    folder = RunFolder.create(config)
    with pytest.raises(KeyboardInterrupt):
        federate(config, app=watched(pull_the_plug), folder=folder, evaluate=False)
    resumed = federate(config, folder=RunFolder.resume(folder.path), evaluate=False)
    permuted = run("permuted", *overrides, grid=scrambled_grid)
    for other in (resumed, permuted):
        assert same_bits(whole.state, other.state)
        for key in ("loss", "measures"):
            assert [r.get(key) for r in whole.records] == [r.get(key) for r in other.records]
    assert all(r["measures"]["information"] < 10 for r in whole.records[1:])
    assert all(r["loss"]["verification"] > 0 for r in whole.records[1:])


@pytest.mark.parametrize("server", [(), ADAM], ids=["mean", "adam"])
def test_rows_of_clients_that_were_not_asked_stay_bit_identical(tiny, run, watched, server):
    asked = {}

    def look(client, round_, sent, reply):
        asked[client] = sent[CONFIG]["index"]
        assert sent[CONFIG]["population"] == 4

    overrides = (*ON, *server, "federation.participation=0.5", "federation.rounds=1")
    after = run("run", *overrides, app=watched(look)).state[ROWS]
    before = first_rows(tiny, *overrides)
    assert len(asked) == 2 and all(index == int(client) for client, index in asked.items())
    changed = [n for n in range(4) if not torch.equal(after[n], before[n])]
    assert changed == sorted(asked.values())


def test_a_row_moves_by_its_share_of_what_its_client_did(tiny, run, watched):
    """The mean of four clients, of which one alone trained the row."""
    trained = {}

    def look(client, round_, sent, reply):
        trained[int(client)] = reply

    overrides = (*ON, "federation.rounds=1", "federation.weighting=uniform", "training.lr=0.05")
    after = run("run", *overrides, app=watched(look)).state[ROWS]
    before = first_rows(tiny, *overrides)
    learner = build_learner(tiny(*overrides), 1)

    schema = Schemas.of(learner, tiny(*overrides)).shared
    for number, reply in trained.items():
        (shared,) = from_record(reply.content[ARRAYS]).values()
        schema.unpack(shared, learner.state(Role.SHARED))
        rows = learner.state(Role.SHARED)[ROWS]
        others = [n for n in range(4) if n != number]
        assert torch.equal(rows[others], before[others])
        expected = before[number] + (rows[number] - before[number]) / 4
        torch.testing.assert_close(after[number], expected)


@pytest.mark.parametrize("wire", ["float32", pytest.param("int8", marks=pytest.mark.slow)])
def test_weight_0_leaves_bits_and_bytes_and_fixed_rows_do_not_travel(run, wire):
    short = ("federation.rounds=1", f"federation.wire={wire}")
    plain = run("plain", "method=simclr", "data.train_limit=60", *short)
    off = run("off", *SMALL, "terms.verification.weight=0", *short)
    assert same_bits(plain.state, off.state)
    for key in ("bytes_up", "bytes_down", "loss"):
        assert [r[key] for r in plain.records] == [r[key] for r in off.records]
    own, fixed = (run(rows, *ON, f"terms.verification.rows={rows}", *short)
                  for rows in ("own", "fixed"))  # fmt: skip
    assert own.state.keys() - fixed.state.keys() == {ROWS}
    assert own.records[1]["bytes_up"] > fixed.records[1]["bytes_up"] > plain.records[1]["bytes_up"]


def test_a_real_client_gets_the_next_row_and_keeps_it(tiny, run, watched):
    """First come, first served; chance is log of the clients that have come so far."""
    sent = {}

    def look(client, round_, task, reply):
        sent.setdefault(round_, {})[client] = (task[CONFIG]["index"], task[CONFIG]["population"])

    members = coming("31", "013", "12")
    run("run", *ON, "federation.rounds=3", app=watched(look), members=members)
    assert sent == {
        1: {"1": (0, 2), "3": (1, 2)},
        2: {"0": (2, 3), "1": (0, 3), "3": (1, 3)},
        3: {"1": (0, 4), "2": (3, 4)},
    }


def test_who_comes_when_all_rows_have_been_given_out_is_said_and_left_out(
    run, watched, monkeypatch
):
    """Rows for the two clients that the server knows of; others come as well."""
    said, asked = [], []
    monkeypatch.setattr(
        "orchestra_flwr.reporting.progress.Progress.message", lambda self, line: said.append(line)
    )

    def look(client, round_, sent, reply):
        asked.append(client)

    overrides = (*ON, "federation.rounds=2", "federation.clients=2")
    run("run", *overrides, app=watched(look), members=coming("01", "013"))
    assert sorted(set(asked)) == ["0", "1"]
    assert [line for line in said if "place" in line] == [
        "client 3 does not take part: all 2 places of this run have been given to other clients "
        "(terms.verification.capacity)"
    ]
    with pytest.raises(FederationError, match="^client 2 cannot take part: all 2 places"):
        run("other", *overrides, members=coming("01", "23"))
