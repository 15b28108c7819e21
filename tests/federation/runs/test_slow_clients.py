"""Rounds that end before everybody has answered, on a virtual clock and with late messages."""

from collections import Counter

import numpy as np
import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.reading.compose import load
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.federation.server.checkpoint import Position
from orchestra_flwr.federation.server.round_report import RoundReport
from orchestra_flwr.flower.arrays import from_record, to_record
from orchestra_flwr.reporting import Progress, RunFolder

BRIGHTNESS = {"a": 0.0, "b": 0.2, "c": 0.4, "d": 1.0}
IMAGES = {"a": 4, "b": 6, "c": 8, "d": 10}
TABLE = "client,images_per_second,down_mbit,up_mbit\n" + "".join(
    f"{name},{speed},1000000,1000000\n" for name, speed in zip("abcd", (4, 3, 2, 1), strict=True)
)  # seconds of a round: a 1, b 2, c 4, d 10


@pytest.fixture
def clock(tmp_path):
    """Overrides for a virtual clock on which clients need 1, 2, 4 and 10 seconds a round."""
    table = tmp_path / "devices.csv"
    table.write_text(TABLE)
    return ("clock=virtual", f"clock.devices={table}")


def mean(weights, names):
    """A round of the toy method, worked by hand: half way to the mean brightness, by images."""
    total = sum(IMAGES[name] for name in names)
    return sum(
        IMAGES[name] * (weights + 0.5 * (BRIGHTNESS[name] - weights)) for name in names
    ) / total  # fmt: skip


def clients_of(run, key):
    return [record["clients"].get(key) for record in run.records[1:]]


def seconds_of(run):
    return [record["virtual_seconds"] for record in run.records]


def test_with_all_in_time_a_clock_changes_no_bit(federate, toy, clock, capsys):
    plain, timed = federate(toy(run="plain")), federate(toy(*clock, run="timed"), shown="plain")
    assert plain.state.keys() == timed.state.keys()
    assert all(plain.state[name].equal(timed.state[name]) for name in plain.state)
    assert seconds_of(timed) == pytest.approx([0, 10, 20], abs=1e-3)
    assert "virtual time 20 s" in capsys.readouterr().out
    assert timed.summary["virtual_seconds"] == pytest.approx(20, abs=1e-3)
    assert "late" not in plain.records[1]["clients"] and "virtual_seconds" not in plain.summary
    assert [r["bytes_up"] for r in plain.records] == [r["bytes_up"] for r in timed.records]


def test_without_a_clock_all_are_in_time_however_busy_the_machine_is(federate, toy, scrambled_grid):
    """With few workers a client of a long round waits for hours until it is its turn."""
    sent, looks = [], Counter()

    def busy(app):
        grid = scrambled_grid(app)
        push, pull, grid.poll = grid.grid.push_messages, grid.grid.pull_messages, 0.01

        def later(keys):
            looks.update(keys)
            return pull(keys) if min(map(looks.get, keys)) > 3 else []

        def sending(messages):
            sent.extend(messages)
            return push(sent[-1:])

        grid.grid.push_messages, grid.grid.pull_messages = sending, later
        return grid

    scored = ("evaluation.unsupervised=true", "evaluation.every=1")
    options = ("federation.round_timeout=0.001", *scored)
    inline = federate(toy(*options, run="inline"))
    slow = federate(toy(*options, run="slow"), grid=busy)
    assert all(inline.state[name].equal(slow.state[name]) for name in inline.state)
    scores = [[record.get("unsupervised") for record in run.records] for run in (inline, slow)]
    assert scores[0] == scores[1] and scores[0][-1]
    assert min(message.metadata.ttl for message in sent) > 10_000


def test_a_round_ends_with_enough_replies_and_who_is_late_is_not_asked_before_it_is_free(
    federate, toy, clock
):
    run = federate(toy(*clock, "federation.enough=0.5", "federation.rounds=3"))
    # At 2 s a and b have answered, and are free; at 4 s both have again, and c is free as well.
    assert seconds_of(run) == pytest.approx([0, 2, 4, 6], abs=1e-3)
    assert clients_of(run, "late") == [["c", "d"], [], ["c"]]
    assert clients_of(run, "cohort") == [4, 2, 3]
    second = mean(mean(0.0, "ab"), "ab")  # always half of all four, busy or not
    np.testing.assert_allclose(run.state["weights"][0, 0], mean(second, "ab"), rtol=1e-6)
    assert clients_of(run, "counted_so_far") == [0.5, 0.5, 0.5]


def test_who_was_late_is_said_to_be_free_when_it_can_be_asked_again(
    federate, toy, clock, monkeypatch
):
    """It was shown at work until the run ended."""
    came = []
    monkeypatch.setattr(
        Progress, "client_came", lambda self, client, good: came.append((self.round, client))
    )
    run = federate(toy(*clock, "federation.enough=0.5", "federation.rounds=3"))
    assert clients_of(run, "late") == [["c", "d"], [], ["c"]]
    assert (2, "c") in came and "d" not in [client for _, client in came]


def test_the_median_of_images_is_that_of_all_clients_whoever_is_free(federate, toy, clock):
    """In round 2 a and b are free; the lower median of all four is 6, so all images of b count."""
    run = federate(
        toy(*clock, "federation.enough=0.5", "federation.max_weight=1", "federation.rounds=2")
    )
    assert clients_of(run, "late") == [["c", "d"], []]
    expected = mean(mean(0.0, "ab"), "ab")
    np.testing.assert_allclose(run.state["weights"][0, 0], expected, rtol=1e-6)


def test_a_share_is_of_the_cohort_without_those_asked_in_addition(federate, toy, clock):
    run = federate(
        toy(
            *clock, "federation.participation=0.5", "federation.oversample=2", "federation.rounds=1"
        )
    )
    assert clients_of(run, "cohort") == [4] and clients_of(run, "ok") == [2]
    assert clients_of(run, "late") == [["c", "d"]]
    assert run.records[1]["bytes_down"] == 2 * run.records[1]["bytes_up"]


def test_bad_replies_are_no_good_ones_and_the_next_one_is_awaited(federate, toy, clock, watched):
    def spoil(client, round_, sent, reply):
        if client != "b":
            return
        arrays = from_record(reply.content[ARRAYS])
        reply.content[ARRAYS] = to_record({n: np.full_like(a, np.nan) for n, a in arrays.items()})
        return

    config = toy(*clock, "federation.enough=2", "federation.rounds=1")
    run = federate(config, app=watched(spoil))
    assert clients_of(run, "late") == [["d"]] and clients_of(run, "ok") == [2]
    np.testing.assert_allclose(run.state["weights"][0, 0], mean(0.0, "ac"), rtol=1e-6)
    assert seconds_of(run)[-1] == pytest.approx(4, abs=1e-3)


def test_a_deadline_is_learned_from_the_slowest_of_earlier_rounds(federate, toy, clock, tmp_path):
    table = tmp_path / "devices.csv"
    lines = TABLE.replace("up_mbit\n", "up_mbit,leaves,hours_away\n").replace("0\n", "0,0,0\n")
    table.write_text(lines.replace("d,1,1000000,1000000,0,0", "d,1,1000000,1000000,0,0.003"))
    run = federate(toy(*clock, "federation.deadline=1.5", "federation.rounds=5"))
    # d comes at 10.8 s and joins round 4, of which nobody waits more than 1.5 * 4 s; d needs 10.
    assert clients_of(run, "cohort") == [3, 3, 3, 4, 3]
    assert clients_of(run, "late") == [[], [], [], ["d"], []]
    assert seconds_of(run) == pytest.approx([0, 4, 8, 12, 18, 22], abs=1e-2)
    without = federate(toy(*clock, "federation.rounds=5", run="without"))
    assert clients_of(without, "late") == [[]] * 5 and seconds_of(without)[4] > 21


def test_a_deadline_needs_three_rounds_of_training(tiny):
    federation = tiny("clock=virtual", "federation.deadline=2").federation
    position = Position(-1)
    limits = []
    for number, seconds in enumerate([1.0, 30.0, 10.0, 20.0]):  # nobody trains in round 0
        position = position.after(number, RoundReport(slowest=seconds), 0.0)
        limits.append(position.limit(federation))
    assert limits == [3600, 3600, 3600, 60]


def test_of_equally_fast_clients_each_counts_some_time(federate, tiny, tmp_path):
    early = ("clock=virtual", "federation.enough=0.25", "federation.rounds=12", "partition=iid")
    run = federate(tiny(*early, "method=simclr", f"run_dir={tmp_path / 'run'}"), evaluate=False)
    assert clients_of(run, "counted_so_far")[-1] == 1
    assert len({record["virtual_seconds"] for record in run.records}) == 13


def test_too_few_in_time_end_the_run_and_are_counted(federate, toy, clock):
    config = toy(*clock, "federation.round_timeout=2.5", "federation.min_success=0.75")
    with pytest.raises(
        FederationError, match="2 of 4 clients answered well.*asks for 3; 2 were late"
    ):
        federate(config)


@pytest.mark.parametrize(
    ("min_success", "asked", "needed"), [(0.55, 100, 55), (0.5, 3, 2), (0.1, 3, 1)]
)
def test_a_share_of_replies_is_not_rounded_up_twice(tiny, min_success, asked, needed):
    federation = tiny(f"federation.min_success={min_success}").federation
    assert federation.needed(asked) == needed


def test_who_works_counts_among_those_of_whom_a_cohort_is_a_share(federate, toy, clock):
    """Else, of clients that are late again and again, rounds of one client would be left."""
    options = ("federation.participation=0.4", "federation.round_timeout=5", "federation.rounds=6")
    run = federate(toy(*clock, *options, "federation.min_success=0.1"))
    assert set(clients_of(run, "cohort")) == {2} and any(clients_of(run, "late"))


def test_who_is_away_is_not_asked_and_time_passes_until_somebody_is_there(federate, toy, tmp_path):
    table = tmp_path / "devices.csv"
    rows = [
        f"{name},1,1000,1000,0,{hours}\n" for name, hours in zip("abcd", (9, 9, 8, 20), strict=True)
    ]
    table.write_text(
        "client,images_per_second,down_mbit,up_mbit,leaves,hours_away\n" + "".join(rows)
    )
    run = federate(toy("clock=virtual", f"clock.devices={table}"))
    assert clients_of(run, "cohort") == [1, 1]
    assert seconds_of(run)[0] == 0 and 8 * 3600 < seconds_of(run)[1] < 8 * 3600 + 10
    np.testing.assert_allclose(run.state["weights"][0, 0], mean(mean(0.0, "c"), "c"), rtol=1e-6)


def test_a_killed_run_goes_on_at_its_virtual_time(federate, toy, clock, watched):
    options = (*clock, "federation.enough=0.75", "federation.rounds=4")
    whole = federate(toy(*options, run="whole"))

    def die(client, round_, sent, reply):
        if round_ == 3:
            raise KeyboardInterrupt

    config = toy(*options, run="killed")
    folder = RunFolder.create(config)
    with pytest.raises(KeyboardInterrupt):
        federate(config, app=watched(die), folder=folder)
    again = federate(config, folder=RunFolder.resume(folder.path))
    assert all(whole.state[name].equal(again.state[name]) for name in whole.state)
    keys = ("late", "cohort", "counted_so_far")
    assert [clients_of(whole, key) for key in keys] == [clients_of(again, key) for key in keys]
    assert seconds_of(whole) == seconds_of(again)


def test_other_devices_than_the_run_began_with_are_refused(federate, toy, clock, tmp_path):
    config = toy(*clock, "federation.rounds=1")
    folder = federate(config).folder
    (tmp_path / "devices.csv").write_text(TABLE.replace("a,4", "a,5"))
    with pytest.raises(FederationError, match=r"^clock.devices=.*: is another table than"):
        federate(toy(*clock), folder=RunFolder.resume(folder.path))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["federation.enough=1.5"], "federation.enough=1.5: must be a share"),
        (["federation.enough=0"], "federation.enough=0: .*greater than 0"),
        (["federation.enough=5"], "federation.enough=5: must be at most 4"),
        (["federation.oversample=0.5"], "federation.oversample=0.5: .*at least 1|greater"),
        (["federation.oversample=2"], "oversample=2: must be 1 with federation.participation=1"),
        (["federation.deadline=0.5"], "federation.deadline=0.5: "),
        (["federation.enough=0.5", "exchange=clusters"], "enough=0.5: .*exchange=clusters: only"),
        (["federation.deadline=2", "exchange=cycle"], "deadline=2.*exchange=cycle"),
        (["federation.enough=0.5", "aggregation=median"], "enough=0.5: .*aggregation=median"),
        (
            ["federation.enough=0.5", "privacy.clip=1", "federation.weighting=uniform"],
            "enough=0.5: .*privacy.clip=1: who counts",
        ),
        (
            ["privacy.secure_aggregation=true", "federation.weighting=uniform"],
            "clock=virtual: must be none with privacy.secure_aggregation=true",
        ),
        (["clock.device=x"], "clock.device: unknown option.*did you mean clock.devices"),
        (["clock=none", "clock.slow=0.5"], "clock.slow: unknown option of clock=none"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(tiny, options, line):
    with pytest.raises(ConfigError, match=line) as error:
        tiny("clock=virtual", "method=simclr", *options)
    assert "\n" not in str(error.value)


STREAMING = """
from orchestra_flwr.federation.aggregations.mean import Mean

class Streamed(Mean):
    pass
"""


@pytest.mark.parametrize("option", ["federation.enough=0.5", "exchange=buffered"])
def test_any_aggregation_that_holds_no_results_will_do(tiny, option, user_package):
    user_package({"aggregations/streamed.py": STREAMING})
    config = tiny(
        "plugins=[my_package]", "method=simclr", "clock=virtual", "aggregation=streamed", option
    )
    assert config.aggregation.name == "streamed"


def test_without_a_clock_simulated_clients_are_in_time_and_real_ones_may_be_late(tiny):
    names = ("enough", "oversample", "deadline", "round_timeout")
    keys = {f"federation.{name}" for name in names}
    assert keys <= tiny().unread().keys() and not keys & tiny("clock=virtual").unread().keys()
    server = load(ServerConfig, ["federation.enough=0.5"], all_read=True)
    assert not keys & server.unread().keys() and "clock" in server.unread()


@pytest.mark.parametrize(
    ("values", "asked", "awaited"),
    [
        ({}, 10, 10),
        ({"enough": 0.8}, 10, 8),
        ({"enough": 0.7}, 10, 7),  # 0.7 * 10 is a little more than 7
        ({"enough": 3}, 10, 3),
        ({"enough": 30}, 10, 10),
        ({"enough": 0.01}, 10, 1),
        ({"oversample": 1.1}, 11, 10),
        ({"oversample": 1.3, "enough": 0.8}, 13, 8),
        ({"oversample": 3}, 20, 10),
    ],
)
def test_how_many_are_asked_and_awaited_of_20_with_half_of_them(tiny, values, asked, awaited):
    federation = tiny().federation.model_copy(update={"participation": 0.5, **values})
    assert (federation.asked(20), federation.awaited(20)) == (asked, awaited)
