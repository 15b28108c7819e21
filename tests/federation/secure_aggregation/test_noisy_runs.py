"""Whole runs in which each client adds noise to what it masks."""

import functools
import json

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, SECURE_TEXT
from orchestra_flwr.federation.server.run_privacy import RunPrivacy
from orchestra_flwr.privacy.noisy_sums import sums_epsilon
from orchestra_flwr.privacy.updates import composed_epsilon
from tests.federation.conftest import scrambled
from tests.federation.secure_aggregation.test_secure_runs import SECURE, SIMCLR, Dropping, far

CLIPPED = (*SIMCLR, "model.norm=group", "privacy.clip=1")
NOISY = (*CLIPPED, *SECURE[len(SIMCLR) :], "privacy.noise_multiplier=0.5")


@pytest.fixture
def federate(federate):
    return functools.partial(federate, evaluate=False)


@pytest.fixture
def almost_silent(tiny, federate):
    return federate(tiny(*NOISY, "privacy.noise_multiplier=0.001"))


def test_almost_without_noise_it_is_the_run_with_a_clip(tiny, federate, almost_silent):
    clipped = federate(tiny(*CLIPPED))
    began = federate(tiny(*CLIPPED, "training.lr=1e-12"))
    assert far(almost_silent, clipped) < 3e-3 < far(clipped, began)


def test_the_server_sees_nothing_that_noise_does_not_cover(tiny, federate):
    app = Dropping()
    run = federate(tiny(*NOISY), app=app)
    replies = [reply.content for stage, _, _, reply in app.sent if stage == "input"]
    assert len(replies) == 6
    for content in replies:
        assert content[ARRAYS].keys() == {"ring32"} and not content.metric_records
        assert json.loads(content.config_records[CONFIG][SECURE_TEXT])["metrics"] == []
    (record,) = (r for r in run.records if r["round"] == 1)
    assert record["clients"]["examples"] == 0 and record["loss"] == {}
    assert "overhead" not in record and "moved" not in record


def test_the_account_is_of_all_rounds_and_no_drawing_helps(tiny, federate):
    more = ("federation.rounds=2", "federation.clients=8", "federation.participation=0.5")
    run = federate(tiny(*NOISY, *more, "privacy.noise_multiplier=2"))
    updates = run.summary["privacy"]["updates"]
    assert updates["epsilon"] == pytest.approx(sums_epsilon([2, 2], 1e-3))
    assert updates["epsilon"] > 1.1 * composed_epsilon(2, [(8, 4, 2)], 1e-3)
    assert updates["protects"] == "a whole client"
    mode = {"noise": "a share of each client", "keys": "not signed"}
    assert run.summary["secure_aggregation"] == mode
    assert "noise.key" not in {path.name for path in run.folder.checkpoint.iterdir()}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits(tiny, federate):
    """In whichever order clients answer, and resumed after a round."""
    twice = tiny(*NOISY, "federation.rounds=2")
    once = federate(twice)
    first = federate(tiny(*NOISY))
    for again in (federate(twice, grid=scrambled), federate(twice, folder=first.folder)):
        assert all(torch.equal(once.state[name], values) for name, values in again.state.items())
        assert once.records[-1]["privacy"] == again.records[-1]["privacy"]


@pytest.mark.parametrize("stage", ["keys", "input", "unmask"])
def test_noise_suffices_when_as_many_drop_out_as_may(tiny, federate, stage):
    """What the model moved by is mostly noise: as much as is relied on, or more."""
    noise = "privacy.noise_multiplier=50"
    run = federate(tiny(*NOISY, noise), app=Dropping({stage: ["1", "4"]}))
    began = federate(tiny(*NOISY, "privacy.noise_multiplier=0.001", "training.lr=1e-12"))
    moved = torch.cat([
        (run.state[name] - began.state[name]).flatten() for name in run.state
        if run.state[name].is_floating_point()
    ])  # fmt: skip
    survivors = 6 if stage == "unmask" else 4
    assert float(moved.std()) * survivors > 50 * 1.0
    assert float(moved.std()) * survivors < 50 * 2


def test_noise_that_does_not_fit_ends_the_run_in_one_line(tiny, federate):
    """Before any client trains."""
    app = Dropping()
    with pytest.raises(FederationError) as caught:
        federate(tiny(*NOISY, "privacy.noise_multiplier=1e6"), app=app)
    assert "privacy.noise_multiplier=1e+06: updates of" in str(caught.value)
    assert "\n" not in str(caught.value) and {stage for stage, *_ in app.sent} == {"keys"}


def test_the_first_lines_say_what_the_server_sees(tiny, tmp_path):
    said = []
    for config in (tiny(*NOISY), tiny(*SECURE), tiny(*SIMCLR)):
        RunPrivacy(config, None, tmp_path, made_with=None, signed=True, message=said.append)
    assert said == [
        "secure aggregation: the server sees sums of updates alone (noise: a share of each client; "
        "keys: signed)",
        "secure aggregation: the server sees sums of updates alone (noise: none; keys: signed)",
    ]


@pytest.mark.parametrize(("override", "what"), [
    ("privacy.clip=null", "privacy.noise_multiplier=0.5: privacy.clip must be given"),
    ("federation.weighting=samples", "federation.weighting=samples: must be uniform"),
    ("aggregation=krum", "aggregation=krum: must be mean"),
    ("exchange=clusters", "exchange=clusters: must be star"),
    ("evaluation.unsupervised=true", "evaluation.unsupervised=true: "),
    ("evaluation.personal_labels=5", "evaluation.personal_labels=5: "),
    ("method=orchestra", "privacy.noise_multiplier=0.5: must be 0 with method=orchestra"),
    ("method=cbafed", "privacy.noise_multiplier=0.5: must be 0 with method=cbafed"),
    ("privacy.delta=0.5", "privacy.delta=0.5: must be below 1 / federation.clients"),
])  # fmt: skip
def test_what_the_account_does_not_cover_is_refused(tiny, override, what):
    with pytest.raises(ConfigError) as caught:
        tiny(*NOISY, override)
    assert str(caught.value).startswith(what) and "\n" not in str(caught.value)


@pytest.mark.parametrize("more", [("server_optimizer=adam",), ("adaptation=norms",)])
def test_it_works_with_other_choices(tiny, federate, more):
    run = federate(tiny(*NOISY, *more))
    assert run.records[-1]["clients"]["ok"] == 6
    assert all(torch.isfinite(values).all() for values in run.state.values())
