"""A client's bounds, and what it counts over runs, servers and restarts."""

import json
from types import SimpleNamespace

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.privacy.accounting import ClusteringMechanism, spent
from orchestra_flwr.privacy.client_ledger import ClientBounds, ClientLedger
from orchestra_flwr.privacy.release import Release

DELTA = 1e-3
WEAK = ClusteringMechanism(10.0, 1e-3, 4, 0.42, 0.12)  # the noise of about epsilon 10
STRONG = ClusteringMechanism(1.0, 1e-3, 4, 2.6, 0.019)
COST = {noise: spent({noise: 1}, DELTA) for noise in (WEAK, STRONG)}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "releases.jsonl"


@pytest.fixture
def open_ledger(file):
    usual = {"k_min": 1, "epsilon": None, "total_epsilon": None, "delta": DELTA}
    return lambda **bounds: ClientLedger(file, ClientBounds(**(usual | bounds)))


def check(ledger, mechanism=WEAK, run="monday", k_min=2, images=100):
    release = SimpleNamespace(mechanism=mechanism, min_images=k_min, label="centroids")
    release.check_images = Release({}, "centroids", epsilon=1.0, delta=DELTA).check_images
    ledger.check(run, release, images)


def refusal(ledger, *arguments, **named):
    with pytest.raises(ConfigError) as raised:
        check(ledger, *arguments, **named)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("mechanism", [WEAK, None])
def test_without_bounds_everything_is_allowed(open_ledger, file, mechanism):
    check(open_ledger(), mechanism, k_min=1)
    assert not file.exists()


def test_bounds_that_are_respected_refuse_nothing(open_ledger):
    check(open_ledger(k_min=2, epsilon=COST[WEAK], total_epsilon=COST[WEAK]))


def test_too_few_images_behind_a_row(open_ledger):
    ledger = open_ledger(k_min=3)
    assert refusal(ledger) == "privacy.k_min=2: this client asks for at least 3"
    check(ledger, k_min=3)
    check(ledger, k_min=None)  # rows that do not stand for images


@pytest.mark.parametrize(
    ("bounds", "allows"),
    [
        ({"epsilon": 10.0}, "privacy.epsilon=10"),
        ({"total_epsilon": 20.0}, "privacy.total_epsilon=20"),
        ({"epsilon": 10.0, "total_epsilon": 20.0}, "privacy.epsilon=10"),
    ],
)
def test_a_release_without_noise(open_ledger, bounds, allows):
    ledger = open_ledger(**bounds)
    assert refusal(ledger, None) == (
        "privacy.epsilon: the run's centroids must be differentially private with this client, "
        f"which allows {allows}"
    )


def test_a_release_that_costs_too_much(open_ledger):
    assert refusal(open_ledger(epsilon=5.0)) == (
        f"privacy.epsilon=10 at privacy.delta=0.001: one release costs epsilon {COST[WEAK]:.3g} "
        "at this client's privacy.delta=0.001, it allows at most 5"
    )
    check(open_ledger(epsilon=5.0), STRONG)


def test_the_cost_is_that_at_the_clients_delta(open_ledger):
    """Not at the run's, at which the same noise may look cheaper."""
    check(open_ledger(epsilon=COST[WEAK] + 1e-6))
    text = refusal(open_ledger(epsilon=COST[WEAK] + 1e-6, delta=1e-5))
    assert (
        f"costs epsilon {spent({WEAK: 1}, 1e-5):.3g} at this client's privacy.delta=1e-05" in text
    )


def test_a_total_that_one_release_exceeds(open_ledger, file):
    ledger = open_ledger(total_epsilon=5.0)
    assert refusal(ledger) == (
        "privacy.epsilon=10: one more release would exceed this client's privacy.total_epsilon=5, "
        "of which 0 is spent"
    )
    assert not ledger.release("monday", 0, WEAK)
    assert not file.exists() and ledger.releases == {}


def test_counts_over_runs_and_restarts(open_ledger, file):
    """Two releases of one run and a third of another spend all; a repeated round counts again."""
    total = spent({WEAK: 2, STRONG: 1}, DELTA)
    bounds = {"total_epsilon": total + 1e-6}
    for _ in range(2):
        assert open_ledger(**bounds).release("monday", 1, WEAK)
    last = open_ledger(**bounds)
    assert last.release("tuesday", 0, STRONG)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["run"], line["round"]) for line in lines] == [
        ("monday", 1), ("monday", 1), ("tuesday", 0)
    ]  # fmt: skip
    assert last.releases == {WEAK: 2, STRONG: 1}
    # Spent in the middle of a run: no release. It may come back to that run, but to no other one.
    for ledger in (last, open_ledger(**bounds)):
        assert not ledger.release("tuesday", 1, STRONG)
        check(ledger, STRONG, run="tuesday")
        text = refusal(ledger, STRONG, run="wednesday")
        assert text.endswith(f"privacy.total_epsilon={total:g}, of which {total:.3g} is spent")
    assert len(file.read_text().splitlines()) == 3


def test_the_ledger_knows_the_noise_exactly_after_a_restart(open_ledger):
    open_ledger().release("monday", 0, WEAK)
    assert open_ledger().releases == {WEAK: 1}


def test_a_record_lacks_a_release_of_another_round_or_noise(open_ledger):
    """So a client notices that its record was removed; the run's name may have changed."""
    ledger = open_ledger()
    assert ledger.lacks(1, WEAK)
    for run, round_, noise in (("monday", 1, WEAK), ("tuesday", 2, STRONG)):
        ledger.release(run, round_, noise)
    recorded = {(round_, noise) for round_ in (0, 1, 2) for noise in (WEAK, STRONG)
             if not ledger.lacks(round_, noise)}  # fmt: skip
    assert recorded == {(1, WEAK), (2, STRONG)}


def test_too_many_images_for_the_runs_delta(open_ledger):
    assert refusal(open_ledger(), images=1000).startswith("privacy.delta=0.001: must be below")


def test_nothing_is_released_that_cannot_be_written_down(open_ledger, file):
    ledger = open_ledger()
    file.mkdir()
    with pytest.raises(OSError, match=r"releases\.jsonl"):
        ledger.release("monday", 0, WEAK)
    assert ledger.releases == {}


def test_a_damaged_record_is_no_empty_one(open_ledger, file):
    file.write_text('{"run": "a"}\n')
    with pytest.raises(ConfigError, match=r"releases\.jsonl, line 1: no record of a release"):
        open_ledger()
    file.write_text('{"run": "a", "rou')  # a crash cut it off before anything was sent
    assert open_ledger().releases == {}
