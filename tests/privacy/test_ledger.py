import json

import pytest

from orchestra_flwr.privacy import ClusteringMechanism, Ledger, calibrate, spent

MECHANISM = ClusteringMechanism(1.0, 1e-3, 4, 2.6, 0.019)


def test_counts_releases_by_name():
    empty = Ledger(MECHANISM)
    ledger = empty.released("ann", "bob").released("ann")
    assert ledger.releases == {"ann": 2, "bob": 1}
    assert empty.releases == {}
    assert ledger.spent("ann") == spent(MECHANISM, 2, 1e-3) == ledger.worst()
    assert 0 < ledger.spent("bob") < ledger.spent("ann")
    assert ledger.spent("eve") == empty.worst() == 0


def test_fifty_rounds():
    ledger = Ledger(calibrate(0.8, 1e-3), {"ann": 50})
    assert ledger.spent("ann") == pytest.approx(9.04, rel=0.01)  # published, rounded up more


def test_a_release_is_allowed_only_if_the_budget_covers_it():
    ledger = Ledger(MECHANISM, {"ann": 3})
    after = ledger.released("ann").spent("ann")
    assert ledger.may_release("ann", after)
    assert not ledger.may_release("ann", after - 1e-9)
    assert ledger.may_release("bob", after - 1e-9)


def test_json_keeps_it_exactly():
    ledger = Ledger(calibrate(0.8, 1e-3), {"ann": 2, "bob": 7})
    again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert again == ledger
    assert again.mechanism.sum_noise == ledger.mechanism.sum_noise
    assert again.worst() == ledger.worst()


def test_nobody_can_rewrite_it():
    releases = {"ann": 1}
    ledger = Ledger(MECHANISM, releases)
    releases["ann"] = 0
    with pytest.raises(TypeError):
        ledger.releases["ann"] = 0
    assert ledger.releases["ann"] == 1


@pytest.mark.parametrize("times", [-1, 1.5, True, "2", None])
def test_refuses_what_is_no_number_of_releases(times):
    with pytest.raises(ValueError, match="releases of ann"):
        Ledger(MECHANISM, {"ann": times})


@pytest.mark.parametrize("total", [0, -1, float("nan"), float("inf")])
def test_refuses_what_is_no_total(total):
    with pytest.raises(ValueError, match="epsilon must be positive"):
        Ledger(MECHANISM).may_release("ann", total)


@pytest.mark.parametrize("plain", [{}, {"mechanism": {}, "releases": {}}, {"mechanism": None}])
def test_refuses_what_is_no_ledger(plain):
    with pytest.raises(ValueError, match="not a privacy ledger"):
        Ledger.from_dict(plain)
