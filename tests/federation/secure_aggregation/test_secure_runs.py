"""Whole runs whose server sees sums only, beside plain ones of the same seeds."""

import functools
import json

import numpy as np
import pytest
import torch
from flwr.app import Error, Message

from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, SECURE_STAGE, SECURE_TEXT
from orchestra_flwr.federation.secure_aggregation import sum_codec
from orchestra_flwr.federation.server import cohorts
from orchestra_flwr.federation.server.checkpoint import SUM_FILE
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.privacy.secure_sums.sum_client import STAGES
from orchestra_flwr.reporting import RunFolder
from tests.federation.conftest import scrambled

SIMCLR = ("method=simclr", "federation.weighting=uniform", "federation.clients=6",
          "federation.participation=1", "federation.rounds=1", "evaluation.every=9")  # fmt: skip
SECURE = (*SIMCLR, "privacy.secure_aggregation=true")


class Dropping:
    """Clients of which some do not answer in a stage; all messages and replies are recorded."""

    def __init__(self, gone=None, change=lambda stage, client, reply: reply):
        self.gone, self.change, self.sent = gone or {}, change, []

    def __call__(self, message, context):
        if message.metadata.message_type != "train":
            return client_app(message, context)
        task = dict(message.content.config_records[CONFIG])
        stage, client = task.get(SECURE_STAGE, "train"), task["client"]
        if client in self.gone.get(stage, ()):
            return Message(Error(0, "its process was killed"), reply_to=message)
        reply = self.change(stage, client, client_app(message, context))
        self.sent.append((stage, client, task, reply))
        return reply


def far(one, other):
    return max(
        float((one.state[k].float() - v.float()).abs().max()) for k, v in other.state.items()
    )


@pytest.fixture
def federate(federate):
    return functools.partial(federate, evaluate=False)


@pytest.fixture
def plain(tiny, federate):
    return lambda app=client_app, *more: federate(tiny(*SIMCLR, *more), app=app)


def test_no_more_clients_are_asked_than_a_sum_may_have(tiny, federate, monkeypatch, capsys):
    """More may join a real server than its configuration speaks of."""
    monkeypatch.setattr(cohorts, "MAX_CLIENTS", 4)
    run = federate(tiny(*SECURE, "federation.rounds=2"), shown="plain")
    assert [r["clients"]["cohort"] for r in run.records[1:]] == [4, 4]
    assert capsys.readouterr().out.count("a round asks 4 clients: no more fit into a sum") == 1


@pytest.mark.parametrize(
    ("wire", "apart"), [pytest.param("float32", 2e-5, marks=pytest.mark.slow), ("int8", 5e-3)]
)
def test_the_model_is_that_of_a_plain_run(tiny, federate, plain, wire, apart):
    one = federate(tiny(*SECURE, f"federation.wire={wire}"))
    other = plain(client_app, f"federation.wire={wire}")
    began = federate(tiny(*SIMCLR, "training.lr=1e-12"))
    assert far(one, other) < apart < far(other, began) / 2
    ours, theirs = (run.records[-1] for run in (one, other))
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert ours["clients"]["examples"] == theirs["clients"]["examples"]
    assert ours["clients"]["cohort"] == ours["clients"]["ok"] == 6
    names = {"n", "weights"}  # what the model's update is measured by stands in the record as well
    assert ours["moved"].keys() & names == theirs["moved"].keys() & names


def test_weights_are_in_the_sum(tiny, federate):
    """Clients of different sizes, none of which the server knows."""
    sizes = ("federation.weighting=samples", "partition=dirichlet", "partition.alpha=0.3")
    chosen = [o for o in SECURE if "weighting" not in o]
    one = federate(tiny(*chosen, *sizes, "privacy.full_weight=120"))
    other = federate(tiny(*[o for o in SIMCLR if "weighting" not in o], *sizes,
                          "federation.max_weight=null"))  # fmt: skip
    uniform = federate(tiny(*SIMCLR, "partition=dirichlet", "partition.alpha=0.3"))
    assert far(one, other) < 1e-4 < far(uniform, other)


@pytest.mark.parametrize("stage", STAGES)
def test_two_of_six_drop_out_between_any_two_stages(tiny, federate, plain, stage):
    gone = ["1", "4"]
    one = federate(tiny(*SECURE), app=Dropping({stage: gone}))
    trained_without = stage in ("keys", "shares", "boxes", "input")
    other = plain(Dropping({"train": gone}) if trained_without else client_app)
    assert far(one, other) < 2e-5
    (record,) = [r for r in one.records if r["round"] == 1]
    assert [entry["client"] for entry in record["clients"]["dropped"]] == gone
    assert record["loss"] == pytest.approx(other.records[-1]["loss"], rel=1e-5)


@pytest.mark.parametrize(("stage", "what"), [
    ("keys", "round 1: 3 of 6 clients answered well"), ("shares", "3 of 6 clients gave out shares"),
    ("boxes", "3 of 6 clients hold and gave out shares"),
    ("input", "3 of 6 clients sent their vectors, 4 are needed"),
    ("confirm", "3 of 6 clients confirmed"), ("unmask", "clients gave out their share"),
])  # fmt: skip
def test_with_fewer_the_run_ends_in_one_line(tiny, federate, stage, what):
    app = Dropping({stage: ["0", "2", "4"]})
    config = tiny(*SECURE, "federation.min_success=0.9")
    with pytest.raises(FederationError) as caught:
        federate(config, app=app)
    assert what in str(caught.value) and "\n" not in str(caught.value)
    # All that must come back are named.
    assert "; clients 0, 2, 4: " in str(caught.value)
    assert "its process was killed" in str(caught.value)
    if stage not in ("keys", "unmask"):
        assert "Nothing is known of the clients' updates" in str(caught.value)
        assert "unmask" not in {stage for stage, *_ in app.sent}


class Lasting(SimulatedMembers):
    """As real clients, who remember which lists they confirmed when the server comes back."""

    is_simulated = False


@pytest.mark.parametrize(
    ("stage", "confirmed"), [("input", False), ("confirm", True), ("unmask", True)]
)
def test_a_round_whose_list_was_confirmed_is_left_out_when_the_run_goes_on(
    tiny, federate, tmp_path, capsys, stage, confirmed
):
    """Clients would refuse any other list for that round, and so the run could never go on."""
    config = tiny(*SECURE, "federation.rounds=3", f"run_dir={tmp_path / 'run'}")
    folder = RunFolder.create(config)
    failing = Dropping({stage: ["0", "2", "4"]})

    def in_round_2(message, context):
        begins = message.content.get(CONFIG, {}).get("round") != 2
        return (client_app if begins else failing)(message, context)

    with pytest.raises(FederationError, match="round 2: no sum"):
        federate(config, app=in_round_2, members=Lasting, folder=folder)
    run = federate(config, members=Lasting, folder=RunFolder.resume(folder.path), shown="plain")
    left_out = [r["round"] for r in run.records[1:] if not r["clients"]["cohort"]]
    assert left_out == [2] * confirmed
    assert ("round 2 is left out" in capsys.readouterr().out) is confirmed
    assert [r["round"] for r in run.records if r["loss"]] == [1, *[2] * (not confirmed), 3]
    assert run.summary["rounds"] == 3
    assert not (folder.checkpoint / SUM_FILE).exists()


def test_the_same_seed_gives_the_same_bits(tiny, federate):
    """However clients are masked, in whichever order they answer, and resumed after a round."""
    config = tiny(*SECURE, "federation.rounds=2", "federation.wire=int8")
    once = federate(config)
    for again in (federate(config, grid=scrambled), _resumed(tiny, federate)):
        assert all(torch.equal(once.state[name], values) for name, values in again.state.items())
        assert once.records[-1]["loss"] == again.records[-1]["loss"]


def _resumed(tiny, federate):
    first = federate(tiny(*SECURE, "federation.wire=int8"))
    return federate(
        tiny(*SECURE, "federation.rounds=2", "federation.wire=int8"), folder=first.folder
    )


def test_bytes_are_at_most_twice_those_of_eight_bits(tiny, federate):
    wide = ("model.width=32", "federation.wire=int8")
    one, other = federate(tiny(*SECURE, *wide)), federate(tiny(*SIMCLR, *wide))
    text = 40_000  # keys and shares of six clients
    assert one.summary["bytes_up"] < 2 * other.summary["bytes_up"] + text
    assert one.summary["bytes_down"] < other.summary["bytes_down"] + 4 * text


def test_the_server_is_sent_nothing_that_tells_clients_apart(tiny, federate):
    """Number of images, losses and seconds are in no reply; masked integers look like any."""
    app = Dropping()
    federate(tiny(*SECURE), app=app)
    replies = [(stage, reply.content) for stage, _, _, reply in app.sent]
    assert [stage for stage, _ in replies] == [s for s in STAGES for _ in range(6)]
    for stage, content in replies:
        assert not content.metric_records
        about = dict(content.config_records[CONFIG])
        assert about.keys() <= {"schema", SECURE_TEXT, "secure_state"}  # simulated clients' memory
        assert bool(content.array_records) == (stage == "input")
    for _, content in replies[18:24]:
        for array in content[ARRAYS].values():
            raw = np.frombuffer(array.numpy().tobytes(), np.uint8)
            assert abs(raw.mean() - 127.5) < 6 * 73.9 / len(raw) ** 0.5
    for _, content in replies[18:24]:
        said = json.loads(content.config_records[CONFIG][SECURE_TEXT])
        assert said.keys() == {"metrics", "view"} and "loss/contrastive" in said["metrics"]


def test_who_measures_other_things_leaves_the_round_without_losses(tiny, federate):
    def change(stage, client, reply):
        if (stage, client) == ("input", "3"):
            about = reply.content.config_records[CONFIG]
            about[SECURE_TEXT] = json.dumps({"metrics": ["loss/other"], "view": ""})
        return reply

    run = federate(tiny(*SECURE), app=Dropping(change=change))
    assert run.records[-1]["loss"] == {} and run.records[0]["loss"] == {}


@pytest.mark.parametrize(("stage", "text"), [
    ("keys", '["0"]'), ("keys", "x"), ("keys", '["1", "00", "00", ""]'), ("shares", '{"boxes": 3}'),
    ("shares", "{}"), ("confirm", "3"), ("unmask", '{"own": {"9": "00"}, "keys": {}}'),
    ("input", ""), ("input", '"loss"'), ("keys", "[" * 100_000),
    ("input", json.dumps({"metrics": ["m"] * 65, "view": ""})),
])  # fmt: skip
def test_a_reply_that_is_none_drops_its_client(tiny, federate, stage, text):
    def change(now, client, reply):
        if (now, client) == (stage, "0"):
            reply.content.config_records[CONFIG][SECURE_TEXT] = text
        return reply

    run = federate(tiny(*SECURE), app=Dropping(change=change))
    assert [d["client"] for d in run.records[-1]["clients"]["dropped"]] == ["0"]


def test_who_signs_wrongly_is_named_and_drops_out(tiny, federate, monkeypatch):
    """As with real clients, whose registered keys the server has."""
    checked = staticmethod(lambda name, statement, signature: name != "2")
    monkeypatch.setattr(SimulatedMembers, "verify", checked)
    run = federate(tiny(*SECURE))
    ((dropped, reason),) = (
        (d["client"], d["reason"]) for d in run.records[-1]["clients"]["dropped"]
    )
    assert dropped == "2" and "not signed by the client's registered key" in reason


def test_a_sum_that_is_not_plausible_ends_the_run(tiny, federate, monkeypatch):
    """One client sends what no mask covers: integers far from any that it may send."""
    monkeypatch.setattr(sum_codec, "WIDE", 1e6)

    def change(stage, client, reply):
        if (stage, client) == ("input", "0"):
            record = reply.content[ARRAYS]
            values = record["ring32"].numpy() + np.uint32(2**30)
            record["ring32"] = type(record["ring32"])(values)
        return reply

    with pytest.raises(FederationError, match="the sum: it changed the model's weights by"):
        federate(tiny(*SECURE), app=Dropping(change=change))


def test_an_update_is_never_sent_as_it_is(tiny, federate):
    """A server that knows the configuration asks for a plain round."""

    def app(message, context):
        if message.metadata.message_type == "train":
            del message.content.config_records[CONFIG][SECURE_STAGE]
        return client_app(message, context)

    with pytest.raises(FederationError, match="this run's updates are sent masked, and the server"):
        federate(tiny(*SECURE), app=app)


def test_what_clients_had_to_cut_is_said(tiny, federate, monkeypatch, capsys):
    monkeypatch.setattr(sum_codec, "WIDE", 1e-9)
    run = federate(tiny(*SECURE, "federation.max_update=null"))
    assert run.records[-1]["clients"]["ok"] == 6


@pytest.mark.parametrize(("override", "what"), [
    ("exchange=clusters", "exchange=clusters: must be star"),
    ("aggregation=median", "aggregation=median: must be mean"),
    ("privacy.clip=1", "privacy.clip=1: must be null, or privacy.noise_multiplier be given"),
    ("evaluation.drift=true", "evaluation.drift=true: must be false"),
    ("evaluation.unsupervised=true", "evaluation.unsupervised=true: must be false"),
    ("evaluation.clients=true", "evaluation.clients=true: must be false"),
    ("evaluation.personal_labels=5", "evaluation.personal_labels=5: must be null"),
    ("method=orchestra", "method=orchestra: must be one without contributions, such as simclr or "
     "byol, or clustering=private be given with"),
    ("method=cbafed", "method=cbafed: must be one without contributions, such as simclr or byol"),
    ("federation.weighting=samples", "federation.weighting=samples: must be uniform, or priv"),
    ("federation.participation=0.3", "federation.clients=6: must be so many that 3 are asked"),
    ("federation.clients=1001", "federation.clients=1001: must be so many that 1,000 are asked"),
    ("terms.verification.weight=1", "terms.verification.rows=own: must be fixed"),
    ("privacy.full_weight=0", "privacy.full_weight=0"),
])  # fmt: skip
def test_what_needs_more_than_the_sum_is_refused(tiny, override, what):
    with pytest.raises(ConfigError) as caught:
        tiny(*SECURE, override)
    assert str(caught.value).startswith(what) and "\n" not in str(caught.value)


def test_its_own_key_is_read_with_it_alone(tiny):
    assert "privacy.full_weight" in tiny(*SIMCLR).unread()
    weighted = ("federation.weighting=samples", "privacy.full_weight=9")
    assert "privacy.full_weight" not in tiny(*SECURE, *weighted).unread()


def test_the_bound_of_weights_is_refused_where_all_weigh_the_same(tiny_overrides):
    read = [override for override in tiny_overrides if not override.startswith("clustering.")]
    chosen = [*read, *SECURE, "privacy.full_weight=9"]
    with pytest.raises(ConfigError, match="not read with federation.weighting=uniform; leave it"):
        load_config(chosen, all_read=True)


@pytest.mark.slow  # the account takes half a minute
def test_private_centroids_go_beside_the_sum(tiny, federate):
    """The sum changes nothing of them but their noise, of which there is next to none here.

    Noise depends on the model, whose last bits are those of the sum.
    """
    private = ("clustering=private", "privacy.epsilon=1e5", "federation.clients=6",
               "federation.participation=1", "federation.weighting=uniform", "federation.rounds=3",
               "evaluation.every=9")  # fmt: skip
    one = federate(tiny(*private, "privacy.secure_aggregation=true"))
    other = federate(tiny(*private))
    centroids = [run.state["global_centroids"] for run in (one, other)]
    assert torch.allclose(*centroids, atol=1e-2) and centroids[0].any()
    assert far(one, other) < 1e-2
    assert one.summary["epsilon_spent"] == other.summary["epsilon_spent"] > 1e5


@pytest.mark.parametrize("more", [
    pytest.param(("method=byol",), marks=pytest.mark.slow), ("adaptation=norms",),
    pytest.param(("server_optimizer=adam",), marks=pytest.mark.slow), ("merging=fedbn",),
    ("terms.verification.weight=1", "terms.verification.rows=fixed"),
])  # fmt: skip
def test_it_works_with_other_choices(tiny, federate, more):
    chosen = [o for o in SECURE if not more[0].startswith("method") or not o.startswith("method")]
    run = federate(tiny(*chosen, *more))
    assert run.records[-1]["loss"]["total"] > 0 and run.records[-1]["clients"]["ok"] == 6
