"""What a client releases, what it allows, and its record of it, whatever its server asks for."""

import json
import os

import pytest

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
from orchestra_flwr.privacy.accounting import calibrate, spent
from orchestra_flwr.privacy.client_ledger import ClientBounds, ClientLedger

NO_BOUNDS = ClientBounds(k_min=1, epsilon=None, total_epsilon=None, delta=1e-3)


@pytest.fixture
def private(server):
    """Makes the server's configuration with private centroids."""

    def make(**privacy):
        values = server.model_dump()
        values["clustering"]["name"] = "private"
        values["privacy"] |= {"epsilon": 50.0, **privacy}
        return ServerConfig.model_validate(values)

    return make


def test_noise_of_private_centroids_cannot_be_repeated_by_who_knows_the_seed(
    worker, ask, private, task
):
    given, one = private(), worker()
    first, second = (ask(one, "train", task(given, 2))[ARRAYS] for _ in range(2))
    a, b = first["local_centroids"].numpy(), second["local_centroids"].numpy()
    assert a.shape != b.shape or (a != b).any()


def test_too_many_images_for_delta_are_refused(worker, said, ask, greeting, private):
    sent = ask(worker(), "greet", greeting(private(delta=0.1)))[CONFIG]
    assert sent["refusal"] == "privacy_refused"
    assert "privacy.delta=0.1: must be below 1 / 20" in said[-1]


def test_a_client_whose_budget_is_spent_says_that_it_sent_no_centroids(
    worker, said, ask, private, task
):
    content = task(private(), 2)
    content[CONFIG]["contribute"] = False
    reply = ask(worker(), "train", content)
    assert reply[ARRAYS]["local_centroids"].numpy().shape == (0, 16)
    assert "sent no centroids: privacy.total_epsilon is spent" in said[-1]


@pytest.mark.parametrize(
    ("overrides", "bounds", "says"),
    [
        (["privacy.k_min=3"], {}, "privacy.k_min=2: this client asks for at least 3"),
        (["privacy.epsilon=10"], None,
         "privacy.epsilon: the run's centroids must be differentially private with this client, "
         "which allows privacy.epsilon=10"),
        (["privacy.total_epsilon=10"], None, "which allows privacy.total_epsilon=10"),
        (["privacy.epsilon=10"], {}, "privacy.epsilon=50 at privacy.delta=0.001: one release costs "
         "epsilon 50 at this client's privacy.delta=0.001, it allows at most 10"),
        (["privacy.epsilon=50", "privacy.delta=1e-5"], {}, "it allows at most 50"),
        (["privacy.total_epsilon=49"], {}, "privacy.epsilon=50: one more release would exceed "
         "this client's privacy.total_epsilon=49, of which 0 is spent"),
    ],
)  # fmt: skip
def test_what_a_client_does_not_allow_it_refuses_whoever_asks(
    worker, server, said, tmp_path, overrides, bounds, says, ask, greeting, private, task
):
    """When greeted, and when a server asks for another thing than it said then."""
    given = server if bounds is None else private(**bounds)
    one = worker(*overrides)
    word = "privacy_budget_spent" if "exceed" in says else "privacy_refused"
    assert ask(one, "greet", greeting(given))[CONFIG]["refusal"] == word
    assert ask(one, "train", task(given)) == {"failure": word}
    first, *_, last = said
    assert first.startswith("cannot take part: ") and says in first and "\n" not in first
    assert last.startswith("failed: ") and says in last
    assert not (tmp_path / "releases.jsonl").exists()


def test_bounds_that_are_kept_keep_nobody_out(worker, ask, greeting, private):
    one = worker("privacy.epsilon=50", "privacy.total_epsilon=300", "privacy.k_min=4")
    answer = ask(one, "greet", greeting(private(k_min=4)))[CONFIG]
    assert "refusal" not in answer


def rows(reply):
    return len(reply[ARRAYS]["local_centroids"].numpy())


def test_a_client_counts_for_itself_over_runs_and_restarts(
    worker, said, tmp_path, ask, greeting, private, task
):
    """Two releases of one run and a third of another spend all; a repeated round counts again."""
    weak, strong = private(), private(epsilon=20.0)
    noises = [calibrate(epsilon, 1e-3) for epsilon in (50.0, 20.0)]
    total = spent({noises[0]: 2, noises[1]: 1}, 1e-3)
    mine = [f"privacy.total_epsilon={total + 1e-6}"]
    for _ in range(2):
        ask(worker(*mine), "train", task(weak, 3))
    last = worker(*mine)
    ask(last, "train", task(strong, 2))
    lines = [json.loads(line) for line in (tmp_path / "releases.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [3, 3, 2]
    assert len({line["run"] for line in lines}) == 2

    # Spent in the middle of a run: it trains, and sends no centroids.
    reply = ask(last, "train", task(strong, 3))
    assert rows(reply) == 0 and reply[METRICS]["steps"] == 3
    assert "sent no centroids: this client's own privacy.total_epsilon is spent" in said[-1]
    # It may come back to that run, but takes part in no other one.
    again = worker(*mine)
    assert "refusal" not in ask(again, "greet", greeting(strong))[CONFIG]
    assert rows(ask(again, "train", task(strong, 4))) == 0
    refusal = ask(again, "greet", greeting(private(epsilon=30.0)))[CONFIG]["refusal"]
    assert refusal == "privacy_budget_spent"
    assert f"privacy.total_epsilon={total:g}, of which {total:.3g} is spent" in said[-1]
    assert len((tmp_path / "releases.jsonl").read_text().splitlines()) == 3


def test_a_release_is_on_the_disk_before_the_work_on_it_begins(
    worker, tmp_path, monkeypatch, ask, private, task
):
    """What a SIGKILL at that moment leaves, power cuts included."""
    file, events = tmp_path / "releases.jsonl", []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (events.append("sync"), sync(number)))

    def killed(*_, **__):
        events.append(file.read_text().count("\n"))
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestra_flwr.clustering.clusterings.private.private_clustering", killed)
    with pytest.raises(KeyboardInterrupt):
        ask(worker(), "train", task(private(), 2))
    assert "sync" in events and events[-1] == 1
    assert sum(ClientLedger(file, NO_BOUNDS).releases.values()) == 1


def test_nothing_is_sent_that_cannot_be_counted(worker, said, tmp_path, ask, private, task):
    one = worker()
    (tmp_path / "releases.jsonl").mkdir()
    answer = ask(one, "train", task(private(), 2))
    assert answer == {"failure": "failed"} and "releases.jsonl" in said[-1]


def test_only_private_centroids_that_are_sent_are_counted(
    worker, server, tmp_path, ask, private, task
):
    ask(worker(), "train", task(server, 1))
    content = task(private(), 2)
    content[CONFIG]["contribute"] = False
    ask(worker(), "train", content)
    assert not (tmp_path / "releases.jsonl").exists()


def test_nothing_is_counted_of_a_round_that_releases_nothing(
    worker, said, tmp_path, ask, private, task
):
    """Nobody has trained the model of the first round, whatever the server asks for."""
    assert rows(ask(worker(), "train", task(private(), 1))) == 0
    assert not (tmp_path / "releases.jsonl").exists()
    assert "sent no centroids" not in said[-1]


def test_a_record_that_cannot_be_read_is_no_empty_one(worker, tmp_path):
    file = tmp_path / "releases.jsonl"
    file.write_text('{"run": "a"}\n')
    with pytest.raises(ConfigError, match=r"releases.jsonl, line 1: no record of a release"):
        worker()
    file.write_text('{"run": "a", "rou')  # a crash cut it off before anything was sent
    worker()
    assert ClientLedger(file, NO_BOUNDS).releases == {}


def test_a_record_that_the_server_knows_more_of_is_refused(
    worker, said, tmp_path, ask, private, task
):
    """The state's folder was removed in mid-run: what is left of the total, nobody knows."""
    given, mine = private(epsilon=5e3), "privacy.total_epsilon=30000"  # noise leaves all rows
    assert rows(ask(worker(mine), "train", task(given, 2))) > 0
    assert rows(ask(worker(mine), "train", task(given, 3, contributed=2))) > 0
    lines = len((tmp_path / "releases.jsonl").read_text().splitlines())
    for file in tmp_path.glob("releases.*"):
        file.rename(file.with_name(f"away.{file.name}"))
    answer = ask(worker(mine), "train", task(given, 4, contributed=3))
    assert answer == {"failure": "privacy_refused"}
    assert said[-1] == (
        f"failed: the server has this client's centroids of round 3, which "
        f"{tmp_path / 'releases.jsonl'} does not hold: it was removed, or is an older copy; "
        "put it back as it was: without it nobody knows what is left of privacy.total_epsilon"
    )
    assert not (tmp_path / "releases.jsonl").exists()
    for file in tmp_path.glob("away.*"):
        file.rename(file.with_name(file.name.removeprefix("away.")))
    assert rows(ask(worker(mine), "train", task(given, 4, contributed=3))) > 0
    assert len((tmp_path / "releases.jsonl").read_text().splitlines()) == lines + 1


def test_without_a_total_a_lost_record_is_reported_and_the_client_goes_on(
    worker, said, ask, private, task
):
    assert rows(ask(worker(), "train", task(private(), 3, contributed=2))) > 0
    assert any("the server has this client's centroids of round 2" in line for line in said)


def test_features_never_leave_a_real_client_whatever_the_server_asks(
    worker, server, said, ask, greeting, task
):
    """This server's own checks are left out, as another one's might be."""
    values = server.model_dump()
    values["clustering"]["name"], values["privacy"]["k_min"] = "features", 1
    asking = Config.model_validate({k: v for k, v in values.items() if k in Config.model_fields})
    content = greeting(server, config=asking.to_json())
    says = (
        "the server asks for the features of single images (clustering=features), "
        "which this client does not send"
    )
    assert ask(worker(), "greet", content)[CONFIG]["refusal"] == "privacy_refused"
    assert said == [f"cannot take part: {says}"]
    content = task(server)
    content[CONFIG]["config"] = asking.to_json()
    assert ask(worker(), "train", content) == {"failure": "privacy_refused"}
    assert said[-1] == f"failed: {says}"
