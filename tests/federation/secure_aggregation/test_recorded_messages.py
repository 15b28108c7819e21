"""What somebody who has all recorded messages of runs finds out about one client's update.

The attacker has the configuration and the documentation, and picks the client's update out of those
of all others, by likeness. Replayed messages and shares below the threshold are tried in
tests/privacy/secure_sums.
"""

import secrets
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.flower.arrays import to_record
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner
from tests.federation.secure_aggregation.test_secure_runs import SECURE, SIMCLR, Dropping

MORE = ("model.norm=group", "federation.wire=float32")
NOISE = ("privacy.clip=1", "privacy.noise_multiplier=1")


class Recorder(Dropping):
    """Also what clients were sent."""

    def __call__(self, message, context):
        if "shared" in message.content.array_records.get(ARRAYS, ()):
            self.received = flat(message.content[ARRAYS]["shared"], np.float32)
        return super().__call__(message, context)


def flat(array, kind):
    return array.numpy().ravel().view(kind).astype(np.float64)


@pytest.fixture
def recorded(tiny, federate):
    """Runs a federation: what each client sent by round, and the sum of the updates of the last."""

    def run(*overrides, gone=None):
        app, config = Recorder(gone), tiny(*SIMCLR, *MORE, *overrides)
        state = federate(config, app=app, evaluate=False).state
        sent = {
            (client, int(task["round"])): reply.content[ARRAYS]
            for _, client, task, reply in app.sent if ARRAYS in reply.content.array_records
        }  # fmt: skip
        after = Schemas.of(build_learner(config, 1), config).shared.pack(state)
        return SimpleNamespace(sent=sent, began=app.received, moved=after - app.received)

    return run


@pytest.fixture
def updates(recorded):
    """The true updates of the first round, by client; the attacker does not have them."""
    run = recorded()
    return {c: flat(sent["shared"], np.float32) - run.began for (c, _), sent in run.sent.items()}


def likeness(one, other):
    return float(np.corrcoef(one, other)[0, 1])


def looks_like_noise(values):
    """Whether integers of 32 bits are spread evenly over their ring.

    Masks differ in each run: of a billion one would be taken for something else.
    """
    counts = np.bincount((values % 2**32 // 2**24).astype(int), minlength=256)
    return stats.chisquare(counts).pvalue > 1e-9


def test_masked_vectors_say_nothing_alone_or_subtracted(recorded, updates):
    """Of one round, of two rounds, of two clients, and of two runs from the same seed."""
    two = "federation.rounds=2"
    runs = [recorded(*SECURE[len(SIMCLR) :], two) for _ in range(2)]
    one, other = ({k: flat(s["ring32"], np.int32) for k, s in run.sent.items()} for run in runs)
    update = updates["1"]
    combined = [
        one["1", 1], one["1", 2] - one["1", 1], one["1", 1] - one["4", 1],
        one["1", 1] + one["4", 1], one["1", 1] - other["1", 1],
    ]  # fmt: skip
    for values in combined:
        assert looks_like_noise(values)
        assert abs(likeness(values, update)) < 5 / np.sqrt(len(update))
    assert not looks_like_noise(np.round(2**20 * update))  # as it would look without its mask


@pytest.mark.parametrize(
    "noise", [pytest.param((), marks=pytest.mark.slow), NOISE], ids=["sums", "noisy sums"]
)
def test_two_cohorts_that_differ_by_a_client_give_it_away_but_for_noise(
    recorded, updates, noise, monkeypatch
):
    """The same round with and without one client, as a server that repeats a run gets it."""
    monkeypatch.setattr(ClientSeed, "noise_key", lambda self: secrets.token_bytes(32))
    chosen = (*SECURE[len(SIMCLR) :], *noise)
    whole = recorded(*chosen).moved * 6
    without = recorded(*chosen, gone={"input": ["1"]}).moved * 5
    likenesses = {client: likeness(whole - without, update) for client, update in updates.items()}
    if noise:
        assert likenesses["1"] < 0.1
    else:
        assert (
            likenesses["1"] > 0.99 > max(value for c, value in likenesses.items() if c != "1") + 0.1
        )


class ZeroToOthers(Recorder):
    """A server that sends all clients but one weights from which no update comes."""

    def __call__(self, message, context):
        arrays = message.content.array_records.get(ARRAYS, {})
        if "shared" in arrays and message.content[CONFIG]["client"] == "1":
            self.sent_to_one = flat(arrays["shared"], np.float32)
        elif "shared" in arrays:
            zeros = np.zeros_like(arrays["shared"].numpy())
            message.content[ARRAYS] = to_record({"shared": zeros})
        return super().__call__(message, context)


def test_a_server_that_sends_one_client_another_model_gets_noise(tiny, federate, updates):
    """Otherwise what is left in the sum would be that client's update (arXiv 2111.07380)."""
    config, app = tiny(*SECURE, *MORE, "federation.max_update=null"), ZeroToOthers()
    state = federate(config, app=app, evaluate=False).state
    opened = Schemas.of(build_learner(config, 1), config).shared.pack(state) - app.sent_to_one
    assert np.abs(opened).max() > 50 * np.abs(updates["1"]).max()  # masks are left in it
    assert abs(likeness(opened, updates["1"])) < 5 / np.sqrt(len(opened))
