import pytest

from orchestra_flwr.privacy import ClusteringMechanism, Ledger, calibrate, spent

STRONG = ClusteringMechanism(1.0, 1e-3, 4, 2.6, 0.019)
WEAK = ClusteringMechanism(10.0, 1e-3, 4, 0.42, 0.12)


def test_counts_releases_of_every_mechanism():
    empty = Ledger(1e-3)
    ledger = empty.released(STRONG).released(WEAK).released(STRONG)
    assert ledger.releases == {STRONG: 2, WEAK: 1}
    assert empty.releases == {} and empty.spent() == 0
    assert ledger.spent() == spent({WEAK: 1, STRONG: 2}, 1e-3)
    assert ledger.spent() > Ledger(1e-3, {WEAK: 1}).spent() > Ledger(1e-3, {STRONG: 2}).spent() > 0
    assert Ledger(1e-5, ledger.releases).spent() > ledger.spent()


def test_fifty_rounds():
    ledger = Ledger(1e-3, {calibrate(0.8, 1e-3): 50})
    assert ledger.spent() == pytest.approx(9.04, rel=0.01)  # published, rounded up more


def test_a_release_is_allowed_only_if_the_budget_covers_it():
    ledger = Ledger(1e-3, {STRONG: 3})
    after = ledger.released(STRONG).spent()
    assert ledger.may_release(STRONG, after)
    assert not ledger.may_release(STRONG, after - 1e-9)
    assert not ledger.may_release(WEAK, after)
    assert Ledger(1e-3).may_release(STRONG, after - 1e-9)


def test_nobody_can_rewrite_it():
    releases = {STRONG: 1}
    ledger = Ledger(1e-3, releases)
    releases[STRONG] = 0
    with pytest.raises(TypeError):
        ledger.releases[STRONG] = 0
    assert ledger.releases[STRONG] == 1


@pytest.mark.parametrize("times", [-1, 1.5, True, "2", None])
def test_refuses_what_is_no_number_of_releases(times):
    with pytest.raises(ValueError, match="releases must be at least 0"):
        Ledger(1e-3, {STRONG: times})


@pytest.mark.parametrize("total", [0, -1, float("nan"), float("inf")])
def test_refuses_what_is_no_total(total):
    with pytest.raises(ValueError, match="epsilon must be positive"):
        Ledger(1e-3).may_release(STRONG, total)


def test_refuses_what_is_no_delta():
    with pytest.raises(ValueError, match="delta must be between 0 and 1"):
        Ledger(0.0)
