"""`orchestra-top`, as a person calls it."""

import re

import pytest
from starlette.responses import JSONResponse

from orchestra_flwr.cli import top_main
from orchestra_flwr.config import load
from orchestra_flwr.deployment.addresses import WatchConfig
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch import top
from orchestra_flwr.deployment.watch.audit_log import AuditLog
from orchestra_flwr.deployment.watch.client_status import ClientStatus
from orchestra_flwr.deployment.watch.federation_status import IdleStatus
from orchestra_flwr.deployment.watch.watched import watched
from orchestra_flwr.deployment.watch.web_server import serving
from orchestra_flwr.reporting import RunFolder


@pytest.fixture
def called(capsys):
    def call(*arguments):
        code = top_main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def address(lines):
    return re.search("127.0.0.1:[0-9]+", lines[-1])[0]


def test_it_prints_how_a_server_is_doing(everything, called):
    everything.status.member("joined", "a")
    everything.status.client_asked("a")
    everything.status._certificates[0].path = everything.folder.path / "my_ca.crt"
    lines = []
    with watched(WatchConfig(port=0), everything.status.to_dict, lines.append):
        code, out, err = called(f"server={address(lines)}", "once=true")
    assert (code, err) == (0, "")
    shown = dict(line.strip().split("  ", 1) for line in out.splitlines() if "  " in line.strip())
    shown = {name: value.strip() for name, value in shown.items()}
    assert shown["state"] == "training" and shown["waits for"] == "2 of 2 clients"
    assert shown["round"] == "2 of 9" and shown["knn"] == "0.500 in round 1"
    assert shown["by name"] == "a at work, b away" and shown["dropped"] == "no answer 1"
    assert shown["certificates"] == "my_ca.crt 10.5 (days left)" and shown["sent"].startswith(
        "100 B up"
    )


def test_a_server_without_a_run_has_no_rounds(called, tmp_path):
    config, lines = load(ServerConfig, [f"queue={tmp_path}"]), []
    idle = IdleStatus(config, RunFolder(tmp_path), lambda: ["a"], (), connected=lambda: ["a"])
    with watched(WatchConfig(port=0), idle.to_dict, lines.append):
        code, out, err = called(f"server={address(lines)}", "once=true")
    assert (code, err) == (0, "") and re.search("waits for +a run: orchestra-submit", out)
    assert "a here" in out and "round" not in out and "replies" not in out


def test_a_client_that_has_not_trained_yet_has_a_status(called):
    client = ClientStatus(
        "a", "host:1", 20, connected=lambda: False, problem=lambda: None, certificates=()
    )
    lines = []
    with watched(WatchConfig(port=0), client.to_dict, lines.append):
        code, out, err = called(f"server={address(lines)}", "once=true")
    assert (code, err) == (0, "") and re.search("state +connecting", out) and "loss" not in out


def test_many_names_hide_nothing_else(run, called, monkeypatch):
    """A terminal shows the beginning of what is too high for it."""
    run.names = [f"client-{number}" for number in range(200)]
    run.record(1)
    monkeypatch.setenv("COLUMNS", "40")
    lines = []
    with watched(WatchConfig(port=0), run.status.to_dict, lines.append):
        out = called(f"server={address(lines)}", "once=true")[1].splitlines()
    assert max(map(len, out)) <= 40 and len(out) > 60
    assert any("loss" in line for line in out[:20]) and "away" in out[-1]


def test_it_goes_on_until_it_is_stopped(everything, called, monkeypatch):
    """Also while the server is away."""
    lines, shown = [], []

    class Screen:
        def __init__(self, first, **_):
            shown.append(first)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, table, refresh):
            shown.append(table.title and str(table.title))
            if len(shown) == 4:
                raise KeyboardInterrupt

    monkeypatch.setattr(top, "Live", Screen)
    with watched(WatchConfig(port=0), everything.status.to_dict, lines.append):
        there = top.snapshot
        monkeypatch.setattr(
            top, "snapshot", lambda server: there("127.0.0.1:1" if len(shown) == 2 else server)
        )
        assert called(f"server={address(lines)}", "seconds=0.01")[0] == 0
    assert shown[1] is None and shown[3] is None
    assert "no status there" in shown[2] and "what is below is old" in shown[2]


def test_what_is_no_status_is_one_line(called, tmp_path):
    config = load(ServerConfig, [f"queue={tmp_path}"])
    paths = {"/status": lambda: JSONResponse({"role": "server"})}
    idle = IdleStatus(config, RunFolder(tmp_path), list, (), connected=list).to_dict()
    numbers = {"/status": lambda: JSONResponse({**idle, "state": 7})}
    with (
        serving("127.0.0.1", 0, paths) as port,
        serving("127.0.0.1", 0, numbers) as wrong_kind,
        serving("127.0.0.1", 0, {}) as other,
    ):
        for server, wrong in [
            (f"127.0.0.1:{port}", "shows no status"),
            (f"127.0.0.1:{wrong_kind}", "shows no status"),
            (f"127.0.0.1:{other}", "no status there (Not Found)"),
            ("127.0.0.1:1", "no status there"),
            ("no such host", "must be HOST:PORT"),
            ("localhost", "must be HOST:PORT"),
            ("", "one of them must be given"),
        ]:
            code, out, err = called(f"server={server}", "once=true")
            assert out == "" and code == (2 if "must be" in wrong else 1)
            assert err.startswith("error: ") and err.count("\n") == 1 and wrong in err, err


def test_an_audit_log_is_checked(tmp_path, called):
    AuditLog(tmp_path, print).add("joined", client="a", detail="")
    code, out, _ = called(f"audit={tmp_path}")
    assert code == 0 and re.match("1 line, none was changed.* [0-9a-f]{64}$", out)
    file = tmp_path / "audit.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"a"', b'"b"'))
    code, out, err = called(f"audit={tmp_path}")
    assert (code, out) == (1, "") and "line 1" in err and err.count("\n") == 1
    file.unlink()
    code, out, err = called(f"audit={tmp_path}")
    assert (code, out, err) == (1, "", f"error: {file} is gone: by audit.end it had 1 line\n")
    code, _, err = called(f"audit={tmp_path}/none")  # a misspelt folder is no changed log
    assert code == 2 and err.endswith("/none: no such folder\n")
    assert called(f"audit={tmp_path}", "server=127.0.0.1:1")[0] == 2
