"""A server's lines for programs."""

import json
import math

import pytest

from orchestra_flwr import cli
from orchestra_flwr.config import ConfigError, load
from orchestra_flwr.deployment.processes import server_process
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.reporting import RoundOutcome


@pytest.fixture
def served(tmp_path, monkeypatch, capsys):
    """Runs the server's command with a federation that is none; its code and lines."""

    def call(work, *arguments):
        monkeypatch.setattr(server_process, "check_server", lambda config: None)
        monkeypatch.setattr(server_process, "check_run", lambda config: None)
        monkeypatch.setattr(server_process, "serve", lambda config, folder, show: work(show))
        code = cli.server_main([f"run_dir={tmp_path / 'run'}", *arguments])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err.splitlines()

    return call


def rounds(show):
    show.round_started(1, 3, "training")
    show.client_done("a", ok=True)
    show.client_done("b", ok=False)
    show.phase_started("evaluating")  # as a server's app reports it
    with show.phase("saving"):  # as in a simulation
        pass
    show.round_finished(
        RoundOutcome(1, {"total": math.nan}, {"knn": 0.5}, 2.0, ["client b: failed"])
    )
    return {"rounds": 1, "linear": 0.5}


def test_every_line_is_an_object(served):
    code, out, err = served(rounds, "logging.format=json")
    lines = [json.loads(line) for line in out]
    assert (code, err) == (0, [])
    assert [event["event"] for event in lines] == [
        "message", "round_started", "phase_started", "phase_started", "round_finished", "finished",
    ]  # fmt: skip
    assert [line["phase"] for line in lines[2:4]] == ["evaluating", "saving"]
    done = lines[4]
    assert (done["cohort"], done["replies"], done["failed"]) == (3, 2, 1)
    assert done["loss"] == {"total": None} and done["dropped"] == ["client b: failed"]
    assert lines[5]["summary"] == {"rounds": 1, "linear": 0.5}
    assert all(event["time"] and event["level"] == "info" for event in lines)


def test_an_end_by_an_error_is_one_as_well(served):
    def fail(show):
        raise FederationError("nobody came")

    code, _, err = served(fail, "logging.format=json")
    assert code == 1
    assert json.loads(err[0])["message"] == "error: nobody came"
    assert "resume=" in json.loads(err[1])["message"] and len(err) == 2


def test_text_stays_as_it_was(served):
    code, out, _ = served(
        lambda show: show.message("hello") or {"rounds": 0}, "logging.progress=plain"
    )
    assert code == 0 and any(line.endswith(" hello") and line[2] == ":" for line in out)


def test_clients_are_not_sent_how_the_server_writes_its_lines():
    """Nor where it can be watched."""
    config = load(ServerConfig, ["logging.format=json", "watch.port=1"])
    sent = json.loads(config.for_clients().to_json())
    assert "watch" not in sent and sent["logging"]["format"] == "text"
    plain = load(ServerConfig, [])
    assert config.for_clients().to_json() == plain.for_clients().to_json()


def test_a_display_that_json_has_no_use_for_is_refused():
    with pytest.raises(ConfigError, match="logging.progress"):
        load(ServerConfig, ["logging.format=json", "logging.progress=live"], all_read=True)
    with pytest.raises(ConfigError, match="logging.format"):
        load(ServerConfig, ["logging.format=xml"])
