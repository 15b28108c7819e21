"""Which clients a server asked, and who may be asked again."""

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.privacy.accounting import calibrate, spent
from orchestra_flwr.privacy.server_ledger import ServerLedger

DELTA = 1e-3


@pytest.fixture(scope="module")
def mechanism():
    return calibrate(1.0, DELTA)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "checkpoint" / "releases.jsonl"


@pytest.fixture
def open_ledger(file, mechanism):
    return lambda total_epsilon=2.5, replays=True: ServerLedger(
        file, mechanism, delta=DELTA, total_epsilon=total_epsilon, replays=replays
    )


def test_counts_who_was_asked_and_survives_a_crash(open_ledger, mechanism):
    ledger = open_ledger()
    assert ledger.spent() == 0 and ledger.counts == {}
    ledger.ask(0, ["a", "b"])
    ledger.ask(1, ["b"])
    for reader in (ledger, open_ledger()):  # nothing was closed or flushed in between
        assert reader.counts == {"a": 1, "b": 2}
        assert reader.metrics() == {
            "epsilon": spent({mechanism: 2}, DELTA),
            "delta": DELTA,
            "epsilon_each": 1.0,
            "releases": {"a": 1, "b": 2},
        }


def test_a_repeated_round_counts_once_where_it_draws_the_same_noise(open_ledger):
    for _ in range(2):
        open_ledger().ask(3, ["a"])
    assert open_ledger(replays=True).counts == {"a": 1}
    assert open_ledger(replays=False).counts == {"a": 2}


def test_a_round_that_is_repeated_with_another_model_counts_again(open_ledger):
    for model in ("one", "other", "one"):
        open_ledger().ask(3, ["a"], model)
    ledger = open_ledger(total_epsilon=1.5)  # one release costs 1
    assert ledger.counts == {"a": 2}
    assert ledger.exhausted(["a"], 3, "other") == set()
    assert ledger.exhausted(["a"], 3, "third") == {"a"}


@pytest.mark.parametrize("replays", [True, False])
def test_who_was_asked_in_one_attempt_of_a_round_only_has_released(open_ledger, replays):
    """A round that is repeated with another cohort does not undo the first attempt."""
    open_ledger().ask(3, ["a", "b"])
    open_ledger().ask(3, ["b", "c"])
    assert open_ledger(replays=replays).counts == {"a": 1, "b": 1 if replays else 2, "c": 1}


def test_who_has_spent_the_total_is_not_asked_again(open_ledger, mechanism):
    ledger = open_ledger()
    rounds = 0
    while not ledger.exhausted(["a", "b"], rounds):
        ledger.ask(rounds, ["a"])
        rounds += 1
    assert ledger.exhausted(["a", "b"], rounds) == {"a"}
    assert spent({mechanism: rounds}, DELTA) <= 2.5 < spent({mechanism: rounds + 1}, DELTA)
    # The last round may be repeated, as after a crash, if that releases nothing new.
    assert open_ledger().exhausted(["a"], rounds - 1) == set()
    assert open_ledger(replays=False).exhausted(["a"], rounds - 1) == {"a"}


def test_without_a_total_nobody_is_exhausted(open_ledger):
    ledger = open_ledger(total_epsilon=None)
    for round_ in range(20):
        ledger.ask(round_, ["a"])
    assert ledger.exhausted(["a"], 20) == set()


def test_a_line_that_a_crash_cut_off_was_never_acted_on(open_ledger, file):
    open_ledger().ask(0, ["a"])
    file.write_text(file.read_text() + '{"round": 1, "cli')
    ledger = open_ledger()
    assert ledger.counts == {"a": 1}
    ledger.ask(1, ["a"])
    assert open_ledger().counts == {"a": 2}


def test_nobody_is_asked_where_it_cannot_be_written(open_ledger, file):
    file.parent.write_text("a file in the way")
    ledger = open_ledger()
    with pytest.raises(OSError):
        ledger.ask(0, ["a"])
    assert ledger.counts == {}


def test_a_damaged_record_is_no_empty_one(open_ledger, file):
    open_ledger().ask(0, ["a"])
    file.write_text('{"round": 0}\n' + file.read_text())
    with pytest.raises(ConfigError, match=r"releases\.jsonl, line 1: no record of a release"):
        open_ledger()
