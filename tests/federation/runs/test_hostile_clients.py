"""Whole federations in which one client sends what is finite, of the right shape, and absurd."""

import numpy as np
import pytest
import torch

from orchestra_flwr import load_encoder
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import ARRAYS, METRICS
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.plausibility import Plausibility
from orchestra_flwr.flower.arrays import from_record, to_record
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.training import build_learner

HUGE = np.float32(1e30)
MOST = float(np.finfo(np.float32).max)


def sends(change):
    """An attack: `change(arrays, schema)` returns the arrays that take the places of others."""

    def attack(reply, schema):
        arrays = from_record(reply.content[ARRAYS])
        reply.content[ARRAYS] = to_record({**arrays, **change(arrays, schema)})

    return attack


def says(**metrics):
    return lambda reply, schema: reply.content[METRICS].update(metrics)


def filled(value):
    return sends(lambda arrays, schema: {"shared": np.full_like(arrays["shared"], value)})


def statistics(value):
    """BatchNorm's running statistics alone."""

    def change(arrays, schema):
        state = arrays["shared"].copy()
        for span, _ in schema.statistics:
            state[span] = value
        return {"shared": state}

    return sends(change)


def one_value(arrays, schema):
    state = arrays["shared"].copy()
    state[len(state) // 2] = 1e5
    return {"shared": state}


# What is refused, with a part of the reason.
REFUSED = {
    "1e30": (filled(HUGE), "federation.max_update=20"),
    "-1e30": (filled(-HUGE), "shared holds variances below 0"),
    "x1000": (sends(lambda arrays, _: {"shared": arrays["shared"] * 1000}), "model's weights by"),
    "one value": (sends(one_value), "model's weights by 1e+05"),
    "statistics": (statistics(HUGE), "model's statistics by"),
    "variances": (statistics(-1), "shared holds variances below 0"),
    "centroids": (
        sends(lambda arrays, _: {"local_centroids": arrays["local_centroids"] * HUGE}),
        "local_centroids holds a row of length 1e+30, at most 1",
    ),
    "groups": (says(smallest_group=-5), "rows of -5 images"),
    "10^9 images": (says(examples=10**9), "it reports 1e+09 images"),
    "2^40 images": (says(examples=2**40), "images"),
}


def lies(reply, schema):
    metrics = reply.content[METRICS]
    for name in [name for name in metrics if name.startswith("loss/")]:
        metrics[name] = MOST
    metrics.update({"seconds": MOST, "steps": 2**60, "loss/invented": 1.0})


def silence(reply, schema):
    for name in [name for name in reply.content[METRICS] if name.startswith("loss/")]:
        del reply.content[METRICS][name]


def absent(reply, schema):
    """What is refused for a reason of its own."""
    reply.content[METRICS]["examples"] = 0


@pytest.fixture
def attacked(tiny, tmp_path, federate, watched):
    """A run in which client 1 does something to its replies in some rounds."""

    def run(name, attack, *overrides, rounds=(1, 2), **arguments):
        config = tiny(*overrides, f"run_dir={tmp_path / name}")
        schema = Schemas.of(build_learner(config, 1), config).shared

        def look(client, round_, sent, reply):
            if client == "1" and round_ in rounds:
                return attack(reply, schema)
            return None

        return federate(config, app=watched(look), **arguments)

    return run


@pytest.fixture(scope="module")
def remembered():
    return {}


@pytest.fixture
def without(attacked, remembered):
    """The state of the same run without that client's replies; each is made once."""

    def run(*overrides):
        if overrides not in remembered:
            remembered[overrides] = attacked("without", absent, *overrides).state
        return remembered[overrides]

    return run


def same_bits(run, state):
    return all(torch.equal(tensor, state[name]) for name, tensor in run.state.items())


def dropped(run):
    return [(r["round"], d["client"], d["reason"]) for r in run.records
            for d in r["clients"]["dropped"]]  # fmt: skip


def assert_usable(run):
    """The run ended, with a model that works."""
    assert run.summary["rounds"] == 2 and np.isfinite(run.summary["knn"])
    encoder = load_encoder(run.folder.path)
    assert encoder(torch.full((2, 1, 8, 8), 9, dtype=torch.uint8)).abs().max() < 1e3


BY_THE_OTHERS = ("1e30", "x1000", "one value", "statistics")  # judged by what they changed


@pytest.mark.parametrize(
    ("name", "clients"),
    [
        *((name, 4) for name in REFUSED),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in BY_THE_OTHERS),
    ],
)
def test_an_absurd_reply_is_refused_from_the_first_round_on(attacked, without, name, clients):
    """It is named with a figure; all else is as if it had not come."""
    attack, reason = REFUSED[name]
    clusters = name in ("centroids", "groups")
    overrides = (f"federation.clients={clients}", *(() if clusters else ("method=simclr",)))
    run = attacked("run", attack, *overrides)
    assert [(round_, client) for round_, client, _ in dropped(run)] == [(1, "1"), (2, "1")]
    assert all(reason in why for *_, why in dropped(run))
    assert same_bits(run, without(*overrides))
    assert_usable(run)


def in_codes(arrays, schema):
    """The largest codes with large scales: finite, and absurd once decoded."""
    return {
        name: np.full_like(array, 127 if array.dtype == np.int8 else 1e30)
        for name, array in arrays.items()
        if name.startswith("update.") and array.dtype in (np.int8, np.float32)
    }


@pytest.mark.parametrize(
    "overrides",
    [
        ("federation.wire=int4", "method=simclr"),
        ("merging=fedema",),
        *(
            pytest.param(overrides, marks=pytest.mark.slow)
            for overrides in (
                ("exchange=clusters", "method=simclr", "exchange.warm_rounds=1"),
                ("exchange=tree", "method=simclr"),
                ("server_optimizer=adam", "method=simclr"),
                ("exchange=cycle", "method=simclr"),
                ("exchange=random", "method=simclr", "exchange.edge=1"),
                ("federation.wire=float16", "method=simclr"),
                ("federation.wire=int8", "method=simclr"),
                ("merging=fedbn", "method=simclr"),
                ("clustering=features", "privacy.k_min=1"),
                ("terms.verification.weight=1", "method=simclr"),
                ("federation.weighting=batches", "method=simclr"),
            )
        ),
    ],
    ids=" ".join,
)
def test_whatever_the_run_is_made_of(attacked, overrides):
    attack = sends(in_codes) if "wire" in overrides[0] else filled(HUGE)
    run = attacked("run", attack, *overrides)
    assert [(round_, client) for round_, client, _ in dropped(run)] == [(1, "1"), (2, "1")]
    assert all("model's" in why for *_, why in dropped(run))
    assert same_bits(run, attacked("without", absent, *overrides).state)
    assert_usable(run)


@pytest.fixture
def late(monkeypatch):
    """The clients whose replies had to wait and were taken then."""
    names, original = [], Plausibility.late

    def late(self):
        for task, reply, reason in original(self):
            names.extend([task.client] if reason is None else [])
            yield task, reply, reason

    monkeypatch.setattr(Plausibility, "late", late)
    return names


@pytest.mark.parametrize("exchange", ["star", pytest.param("cycle", marks=pytest.mark.slow)])
def test_the_order_of_replies_makes_no_difference(attacked, scrambled_grid, late, exchange):
    """Honest replies wait as well, since in a first round they move the model by its own size."""
    overrides = ("method=simclr", "training.lr=0.1", "training.local_epochs=6",
                 f"exchange={exchange}")  # fmt: skip
    attack = REFUSED["x1000"][0]
    one = attacked("one", attack, *overrides)
    assert late and set(late) <= {"0", "2", "3"}
    other = attacked("other", attack, *overrides, grid=scrambled_grid)
    assert same_bits(one, other.state) and dropped(one) == dropped(other)
    assert [r["moved"] for r in one.records[1:]] == [r["moved"] for r in other.records[1:]]


def test_more_images_than_a_client_joined_with_do_not_count(attacked, capsys):
    honest = attacked("honest", says())
    run = attacked("run", says(examples=10**8))
    assert same_bits(run, honest.state) and not dropped(run)
    assert [r["clients"]["examples"] for r in run.records] == [120] * 3


def test_absurd_metrics_are_in_no_mean_and_named(attacked):
    honest, run = attacked("honest", says()), attacked("run", lies)
    assert same_bits(run, honest.state) and not dropped(run)
    for ours, theirs in zip(run.records[1:], honest.records[1:], strict=True):
        assert ours["loss"].keys() == theirs["loss"].keys()
        assert ours["loss"]["total"] == pytest.approx(theirs["loss"]["total"], rel=0.2)
        assert {(e["client"], e["metric"]) for e in ours["clients"]["left_out"]} == {
            ("1", "loss/cluster"), ("1", "loss/rotation")
        }  # fmt: skip
        assert "left_out" not in theirs["clients"]
        assert 0 < ours["clients"]["mean_seconds"] < ours["seconds"]


def test_who_says_nothing_of_its_loss_does_not_silence_the_others(attacked):
    run = attacked("run", silence)
    assert all(0 < r["loss"]["total"] < 10 for r in run.records[1:])


def test_who_sends_back_what_it_got_does_not_make_the_other_implausible(
    tiny, federate, watched, tmp_path
):
    """Of two: the median of the others is then 0."""

    def look(client, round_, sent, reply):
        if client == "1" and round_ > 0:
            shared = from_record(sent[ARRAYS])["shared"]
            reply.content[ARRAYS] = to_record(
                {**from_record(reply.content[ARRAYS]), "shared": shared}
            )

    config = tiny("federation.clients=2", "federation.rounds=3", f"run_dir={tmp_path / 'run'}")
    run = federate(config, app=watched(look))
    assert not dropped(run)


def test_the_first_attack_in_a_cohort_of_one_is_judged_by_the_rounds_before(
    tiny, tmp_path, federate, watched
):
    """As well after a resume: what was usual is in the checkpoint."""

    def attack(client, round_, sent, reply):
        if round_ == 4:
            shared = from_record(reply.content[ARRAYS])["shared"]
            arrays = {**from_record(reply.content[ARRAYS]), "shared": shared * np.float32(3)}
            reply.content[ARRAYS] = to_record(arrays)

    overrides = ("federation.participation=0.25", "federation.rounds=5", "method=simclr")
    whole = tiny(*overrides, f"run_dir={tmp_path / 'whole'}")
    with pytest.raises(FederationError, match=r"round 4: 0 of 1 .* changed the model's weights by"):
        federate(whole, app=watched(attack))

    def plug(client, round_, sent, reply):
        if round_ == 4:
            raise KeyboardInterrupt

    torn = tiny(*overrides, f"run_dir={tmp_path / 'torn'}")
    folder = RunFolder.create(torn)
    with pytest.raises(KeyboardInterrupt):
        federate(torn, app=watched(plug), folder=folder)
    with pytest.raises(FederationError, match=r"round 4: 0 of 1 .* changed the model's weights by"):
        federate(torn, app=watched(attack), folder=RunFolder.resume(folder.path))
    assert federate(torn, folder=RunFolder.resume(folder.path)).summary["rounds"] == 5


def test_without_the_bound_nothing_is_refused(attacked):
    """As a run that needs it can be continued."""
    overrides = ("federation.max_update=null", "method=simclr", "evaluation.every=9")
    run = attacked("run", sends(lambda a, _: {"shared": a["shared"] * 30}), *overrides, rounds=(2,))
    assert not dropped(run) and "moved" not in run.records[-1]
