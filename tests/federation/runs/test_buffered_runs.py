"""Buffered asynchronous rounds on a virtual clock: by hand, killed, and replayed."""

from collections import Counter

import numpy as np
import pytest

from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.config.reading.compose import load
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.exchanges.asynchronous import refreshed
from orchestra_flwr.federation.exchanges.buffered import Buffered
from orchestra_flwr.reporting import RunFolder

BRIGHTNESS = {"a": 0.0, "b": 0.2, "c": 0.4, "d": 1.0}
SECONDS = {"a": 1, "b": 2.2, "c": 3.9, "d": 10.2}  # of a round
IMAGES = {"a": 4, "b": 6, "c": 8, "d": 10}
TABLE = "client,images_per_second,down_mbit,up_mbit\n" + "".join(
    f"{name},{IMAGES[name] / SECONDS[name]},1000000,1000000\n" for name in "abcd"
)


@pytest.fixture
def buffered(toy, tmp_path):
    table = tmp_path / "devices.csv"
    table.write_text(TABLE)

    def make(*overrides, run="run"):
        return toy(
            "clock=virtual", f"clock.devices={table}", "exchange=buffered", "exchange.buffer=2",
            "federation.rounds=7", "federation.weighting=uniform", *overrides, run=run,
        )  # fmt: skip

    return make


def arrivals(run):
    return [record["exchange"]["arrivals"] for record in run.records[1:]]


def same(one, other):
    ours = {n: t for n, t in one.state.items() if not n.startswith("exchange/")}
    theirs = {n: t for n, t in other.state.items() if not n.startswith("exchange/")}
    return ours.keys() == theirs.keys() and all(ours[n].equal(theirs[n]) for n in ours)


def test_updates_worked_by_hand(federate, buffered):
    """Who has answered waits until the buffer is full, and begins with the model made of it."""
    run = federate(buffered())
    assert arrivals(run) == [
        [["a", 0], ["b", 0]],  # at 1 and 2.2 s
        [["a", 1], ["c", 0]],  # 3.2, 3.9
        [["b", 1], ["a", 2]],  # 4.4, 4.9
        [["a", 3], ["b", 3]],  # 5.9, 7.1
        [["c", 2], ["a", 4]],  # 7.8, 8.1
        [["a", 5], ["b", 4]],  # 9.1, 9.3
        [["d", 0], ["a", 6]],  # 10.2, 10.3
    ]
    ends = [record["virtual_seconds"] for record in run.records]
    assert ends == pytest.approx([0, 2.2, 3.9, 4.9, 7.1, 8.1, 9.3, 10.3], abs=1e-3)
    model, versions = 0.0, [0.0]
    for number, results in enumerate(arrivals(run), 1):
        changes = []
        for client, version in results:
            trained = versions[version] + 0.5 * (BRIGHTNESS[client] - versions[version])
            changes.append((trained - versions[version]) / (number - version) ** 0.5)
        model += sum(changes) / len(changes)
        versions.append(model)
    np.testing.assert_allclose(run.state["weights"][0, 0], model, rtol=1e-5)


def test_weights_that_are_trained_move_and_all_else_goes_part_of_the_way():
    state, began, now = (np.array(values, np.float32) for values in ([3, 9], [1, 1], [10, 4]))
    made = refreshed(state, began, now, [slice(0, 1)], staleness=3)  # counts one half
    np.testing.assert_array_equal(made, np.float32([10 + (3 - 1) / 2, 4 + (9 - 4) / 2]))


def test_a_model_that_several_results_began_with_is_decoded_once(
    federate, buffered, monkeypatch, tmp_path
):
    times = {"a": 1, "b": 1.05, "c": 4, "d": 4.01}
    rows = [f"{n},{IMAGES[n] / seconds},1000000,1000000\n" for n, seconds in times.items()]
    config = buffered("federation.rounds=4", "federation.wire=int8")
    (tmp_path / "devices.csv").write_text(TABLE.splitlines(keepends=True)[0] + "".join(rows))
    read, sent = Counter(), Buffered.sent

    def counted(self, version):
        read[version] += 1
        return sent(self, version)

    monkeypatch.setattr(Buffered, "sent", counted)
    run = federate(config, evaluate=False)
    assert arrivals(run)[3] == [["c", 0], ["d", 0]]
    assert read[0] == 3  # for the messages of rounds 1 and 4, and for what came back


def test_a_run_that_went_back_finds_what_clients_kept_before_a_late_result(
    federate, buffered, tmp_path
):
    """b began after round 3 what is used in round 6, and has answered once more in round 7."""
    times = {"a": 1.9, "b": 4.5, "c": 6.6, "d": 11.3}
    rows = [f"{n},{IMAGES[n] / seconds},1000000,1000000\n" for n, seconds in times.items()]
    config = buffered("training.optimizer_state=keep", "optimizer.momentum=0.9")
    (tmp_path / "devices.csv").write_text(TABLE.splitlines(keepends=True)[0] + "".join(rows))
    whole = federate(config)
    of_b = [number for round_ in arrivals(whole) for name, number in round_ if name == "b"]
    assert of_b == [0, 1, 3, 6]
    config = load_config([f"resume={whole.folder.path}", "resume_round=5"])
    with RunFolder.open(config) as folder:
        again = federate(config, folder=folder)
    assert same(whole, again) and arrivals(whole) == arrivals(again)


def test_a_killed_run_ends_in_the_same_bits_and_remembers_no_more_than_it_needs(
    federate, buffered, watched
):
    whole = federate(buffered(run="whole"))
    seen = []

    def die(client, round_, sent, reply):
        seen.append((client, round_))
        if len(seen) == 9:
            raise KeyboardInterrupt

    config = buffered(run="killed")
    folder = RunFolder.create(config)
    with pytest.raises(KeyboardInterrupt):
        federate(config, app=watched(die), folder=folder)
    assert seen[:5] == [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("b", 2)]  # as when they began
    again = federate(config, folder=RunFolder.resume(folder.path))
    assert same(whole, again) and arrivals(whole) == arrivals(again)
    assert {name for name in whole.state if name.startswith("exchange/")} == {
        name for name in again.state if name.startswith("exchange/")
    }
    kept = {name.split("/")[2] for name in whole.state if name.startswith("exchange/")}
    assert kept <= {"0", "4", "5", "6"}


def test_the_order_of_a_run_is_recorded_and_its_replay_has_the_same_bits(federate, buffered, toy):
    run = federate(buffered())
    replay = ("exchange=buffered", f"exchange.replay={run.folder.path}")
    uniform = ("federation.weighting=uniform", "federation.rounds=7")
    again = federate(toy(*replay, *uniform, run="replay"))
    assert same(run, again) and arrivals(run) == arrivals(again)
    assert "virtual_seconds" not in again.records[-1]


FOUR = ("federation.rounds=4", "evaluation.every=9")


@pytest.mark.parametrize(
    "options", [["federation.wire=int8"], pytest.param([], marks=pytest.mark.slow)]
)
def test_a_method_with_contributions_and_statistics_can_be_killed_and_replayed(
    federate, tiny, tmp_path, options, watched
):
    """Orchestra, with a round 0, BatchNorm and centroids; whole updates and their codes."""
    config = (
        *("clock=virtual", "clock.slow=0.25", "clock.spread=0.3", "exchange=buffered"),
        *("exchange.buffer=2", "federation.participation=0.75", *FOUR, *options),
    )
    run = federate(tiny(*config, f"run_dir={tmp_path / 'whole'}"))
    assert len({client for round_ in arrivals(run) for client, _ in round_}) > 2
    assert any(v < n - 1 for n, round_ in enumerate(arrivals(run), 1) for _, v in round_)
    assert all(tensor.isfinite().all() for tensor in run.state.values())
    killed = tiny(*config, f"run_dir={tmp_path / 'killed'}")
    folder = RunFolder.create(killed)
    calls = []

    def die(client, round_, sent, reply):
        calls.append(client)
        if len(calls) == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(killed, app=watched(die), folder=folder)
    assert same(run, federate(killed, folder=RunFolder.resume(folder.path)))
    replay = ("exchange=buffered", f"exchange.replay={run.folder.path}", *options)
    replayed = tiny(*replay, *FOUR, f"run_dir={tmp_path / 'replay'}")
    assert same(run, federate(replayed))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["clock=none"], "exchange=buffered: simulated clients .*clock=virtual"),
        (["exchange.buffer=5"], "exchange.buffer=5: must be at most 4"),
        (["exchange.buffer=0"], "exchange.buffer=0: "),
        (["aggregation=median"], "aggregation=median: must be mean with exchange=buffered"),
        (
            ["privacy.clip=1", "federation.weighting=uniform"],
            "privacy.clip=1: must not be given with exchange=buffered",
        ),
        (
            ["privacy.secure_aggregation=true", "federation.weighting=uniform", "method=simclr"],
            "exchange=buffered: must be star with privacy.secure_aggregation=true",
        ),
        (["federation.enough=0.5"], "enough=0.5: must not be given with exchange=buffered"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(tiny, options, line):
    with pytest.raises(ConfigError, match=line) as error:
        tiny("clock=virtual", "exchange=buffered", *options)
    assert "\n" not in str(error.value)


def test_a_server_of_real_clients_takes_no_recorded_order():
    assert load(ServerConfig, ["exchange=buffered"]).exchange.settings.replay is None
    with pytest.raises(ConfigError, match="exchange.replay=x: must be null, only simulated"):
        load(ServerConfig, ["exchange=buffered", "exchange.replay=x"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "is no run of exchange=buffered"),
        ("no json", "is no run of exchange=buffered"),
        ("[]", "is no run of exchange=buffered"),
        ('{"round": 1, "exchange": {"cluster": 1}}', "is no run of exchange=buffered"),
        ('{"round": 1, "exchange": {"arrivals": [["a", Infinity]]}}', "is no run of exchange="),
        ('{"round": 1}', "records no arrivals of round 1"),
        ('{"round": 1, "exchange": {"arrivals": [["x", 0]]}}', "round 1: client x with"),
        ('{"round": 1, "exchange": {"arrivals": [["a", 1]]}}', "client a with the model"),
        ('{"round": 1, "exchange": {"arrivals": [["a", -1]]}}', "client a with the model"),
        ('{"round": 1, "exchange": {"arrivals": [["a", 0], ["a", 0]]}}', "client a twice"),
    ],
)
def test_a_replay_of_another_run_is_refused_in_a_line(toy, tmp_path, text, line):
    record = tmp_path / "metrics.jsonl"
    if text is not None:
        record.write_text(text)
    config = toy("exchange=buffered", f"exchange.replay={record}", "federation.rounds=1")
    with pytest.raises(ConfigError, match=line) as error:
        config.exchange.build().check_clients(list("abcd"), 1)
    assert "\n" not in str(error.value)
