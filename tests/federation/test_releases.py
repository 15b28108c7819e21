"""The ledger's lasting record."""

import pytest

from orchestra_flwr.config import PrivacyConfig
from orchestra_flwr.federation.releases import Releases
from orchestra_flwr.privacy import calibrate, spent

PRIVACY = PrivacyConfig(epsilon=1.0, delta=1e-3, total_epsilon=2.5)


@pytest.fixture
def open_releases(tmp_path):
    return lambda privacy=PRIVACY, replays=True: Releases(
        tmp_path / "checkpoint" / "releases.jsonl", privacy, replays=replays
    )


def test_counts_who_was_asked_and_survives_a_crash(open_releases):
    releases = open_releases()
    releases.ask(0, ["a", "b"])
    releases.ask(1, ["b"])
    mechanism = calibrate(1.0, 1e-3)
    for each in (releases, open_releases()):  # nothing was closed or flushed in between
        assert each.counts == {"a": 1, "b": 2}
        assert each.told() == {
            "epsilon": spent({mechanism: 2}, 1e-3),
            "delta": 1e-3,
            "epsilon_each": 1.0,
            "releases": {"a": 1, "b": 2},
        }


def test_a_repeated_round_counts_once_where_it_draws_the_same_noise(open_releases):
    for _ in range(2):
        open_releases().ask(3, ["a"])
    assert open_releases(replays=True).counts == {"a": 1}
    assert open_releases(replays=False).counts == {"a": 2}


def test_who_has_spent_the_total_is_not_asked_again(open_releases):
    releases = open_releases()
    rounds = 0
    while not releases.exhausted(["a", "b"], rounds):
        releases.ask(rounds, ["a"])
        rounds += 1
    assert releases.exhausted(["a", "b"], rounds) == {"a"}
    mechanism = calibrate(1.0, 1e-3)
    assert spent({mechanism: rounds}, 1e-3) <= 2.5 < spent({mechanism: rounds + 1}, 1e-3)
    # The last round may be repeated, as after a crash, if that releases nothing new.
    assert open_releases().exhausted(["a"], rounds - 1) == set()
    assert open_releases(replays=False).exhausted(["a"], rounds - 1) == {"a"}


def test_without_a_total_nobody_is_exhausted(open_releases):
    releases = open_releases(PrivacyConfig(epsilon=1.0))
    for round_ in range(20):
        releases.ask(round_, ["a"])
    assert releases.exhausted(["a"], 20) == set()


def test_a_line_that_a_crash_cut_off_was_never_acted_on(open_releases, tmp_path):
    open_releases().ask(0, ["a"])
    file = tmp_path / "checkpoint" / "releases.jsonl"
    file.write_text(file.read_text() + '{"round": 1, "cli')
    releases = open_releases()
    assert releases.counts == {"a": 1}
    releases.ask(1, ["a"])
    assert open_releases().counts == {"a": 2}


def test_nobody_is_asked_where_it_cannot_be_written(open_releases, tmp_path):
    (tmp_path / "checkpoint").write_text("a file in the way")
    with pytest.raises(OSError):
        open_releases().ask(0, ["a"])
