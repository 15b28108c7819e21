"""A client's own bound on noisy sums: what it refuses, and that its record outlives it."""

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.privacy.client_ledger import BudgetSpentError
from orchestra_flwr.privacy.noisy_sums import sums_epsilon
from orchestra_flwr.privacy.sum_ledger import SumLedger

DELTA = 1e-3
TWO = sums_epsilon([4.0, 4.0], DELTA)


@pytest.fixture
def ledger(tmp_path):
    """Begins, or goes on."""
    return lambda limit: SumLedger(tmp_path / "noisy_sums.jsonl", limit, DELTA)


def test_all_runs_and_rounds_together_are_bounded(ledger):
    first = ledger(TWO)
    first.check(4.0)
    first.add("a run", 1, 4.0)
    again = ledger(TWO)
    again.check(4.0)
    again.add("another run", 1, 4.0)
    for one in (again, ledger(TWO)):
        with pytest.raises(BudgetSpentError) as caught:
            one.check(4.0)
        assert str(caught.value) == (
            "privacy.noise_multiplier=4: one more sum would exceed this client's "
            f"privacy.updates_epsilon={TWO:g}, of which {TWO:.3g} is spent"
        )
    ledger(2 * TWO).check(4.0)


def test_less_noise_costs_more(ledger):
    with pytest.raises(BudgetSpentError):
        ledger(TWO).check(0.5)


def test_without_noise_there_is_no_epsilon(ledger):
    with pytest.raises(ConfigError, match="allows only sums with noise: set privacy.secure_aggr"):
        ledger(1e6).check(0.0)


def test_without_a_bound_all_is_allowed_and_recorded(ledger):
    free = ledger(None)
    free.check(0.0)
    free.add("a run", 1, 4.0)
    free.add("a run", 2, 4.0)
    with pytest.raises(BudgetSpentError):
        ledger(TWO).check(4.0)


def test_a_record_that_was_cut_is_noticed(ledger, tmp_path):
    ledger(TWO).add("a run", 1, 4.0)
    (tmp_path / "noisy_sums.jsonl").unlink()
    with pytest.raises(ConfigError, match="1 releases were written down and 0 are there"):
        ledger(TWO)
