"""The order in which a server opens."""

import base64
import contextlib
import itertools
import json
import re
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from orchestra_flwr.config import ConfigError, load
from orchestra_flwr.deployment.keys.client_keys import load_public_key
from orchestra_flwr.deployment.processes import server_process, station
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.flower.superlink_control import SuperLinkError
from orchestra_flwr.reporting import RunFolder, make_progress

NOT_READY, UNKNOWN = 503, 412


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def config(security, tmp_path):
    port = free_port()
    folders = [f"security={security}", f"run_dir={tmp_path / 'run'}"]
    return load(ServerConfig, ["model.width=8", "watch.port=0", f"port={port}", *folders])


def arrive(config, key):
    """The status of the gate's answer to a client that comes for the first time."""
    trusted = ssl.create_default_context(cafile=f"{config.security}/ca.crt")
    answer = httpx.post(
        f"https://127.0.0.1:{config.port}/v1/fleet/register-node",
        headers={"flwr-public-key": base64.b64encode(key).decode()},
        verify=trusted,
        trust_env=False,
    )
    return answer.status_code


def test_the_gate_opens_when_the_superlink_knows_all_who_are_registered(
    config, bundle, monkeypatch, capsys
):
    """Before that a registered client would be told to register.

    A program that does nothing stands for the SuperLink, and what registers keys there
    looks at the gate's port; folder of keys, admitted clients and gate are real.
    """
    key, seen = load_public_key(bundle / "client.pub").pem, []

    class Control:
        def __init__(self, *_):
            pass

        def register(self, keys):
            seen.append(("open" if is_listening(config.port) else "closed", [*keys]))
            return dict.fromkeys(keys)

        def start_run(self, app):
            seen.extend([arrive(config, key), arrive(config, b"a stranger's")])
            watched = re.search("to be watched at (.*)", capsys.readouterr().out)[1]
            status = httpx.get(f"{watched}status", trust_env=False).json()
            seen.append(status["clients"]["registered"])
            raise SuperLinkError("seen enough")

    monkeypatch.setattr(station, "SuperLinkControl", Control)
    monkeypatch.setattr(station, "superlink_command", lambda *_: ["sleep", "60"])
    monkeypatch.setattr(station, "wait_until_up", lambda *_: None)
    with (
        RunFolder.open(config) as folder,
        make_progress("plain", 1) as progress,
        pytest.raises(FederationError, match="seen enough"),
    ):
        server_process.serve(config, folder, progress)
    (state, [name]), known, stranger, watched = seen
    assert (state, name, known, stranger) == ("closed", "site-1", NOT_READY, UNKNOWN)
    assert not is_listening(config.port)  # and it is closed again
    # It could be watched, and all is in the audit log.
    assert watched == 1
    lines = (folder.path / "audit.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert list(dict.fromkeys(events)) == ["began", "registered", "turned_away", "ended"]


@pytest.mark.parametrize("why", [FederationError("its app was killed"), OSError("full"), None])
def test_a_queued_run_that_ends_early_is_ended_at_the_superlink(config, monkeypatch, why):
    """It waits ten minutes for an app that is late, and would hand out messages of a dead one."""
    stopped, tidied = [], []
    control = SimpleNamespace(
        start_run=lambda app: 7, stop_run=stopped.append, forget_messages=tidied.append
    )
    station = SimpleNamespace(
        names=dict,
        keys=None,
        gate=SimpleNamespace(limit_replies=lambda _: None),
        showing=lambda _: contextlib.nullcontext(),
        control=control,
        scratch=Path("scratch"),
        link=None,
        report=print,
    )
    app = SimpleNamespace(stop=lambda: None)
    channel = SimpleNamespace(send=lambda _: None)
    monkeypatch.setattr(server_process, "_start_app", lambda *_: (app, channel))

    def follow(*_, **__):
        if why:
            raise why
        return {"rounds": 1}

    monkeypatch.setattr(server_process, "_follow", follow)
    with (
        RunFolder.open(config) as folder,
        make_progress("plain", 1) as progress,
        pytest.raises(type(why)) if why else contextlib.nullcontext(),
    ):
        server_process.serve(config, folder, progress, station)
    assert (stopped, tidied) == (([7], []) if why else ([], [7]))
    assert station.report is print  # as between runs


@pytest.mark.parametrize(
    ("host", "shown"),
    [("::1", "server=[::1]:8443"), ("127.0.0.1", "server=127.0.0.1:8443"), ("::", "server=<this")],
)
def test_what_clients_are_told_is_what_they_can_be_given(host, shown):
    invitation = server_process.invitation(load(ServerConfig, [f"host='{host}'"]), 8443)
    assert shown in invitation and ("listening on [" in invitation) == (":" in host)


@pytest.mark.parametrize(
    ("program", "shown"),
    [("/opt/bin/orchestra-server", "orchestra-client server="), ("run_server.py", "run_client.py")],
)
def test_clients_are_named_as_the_server_was_started(monkeypatch, program, shown):
    monkeypatch.setattr("sys.argv", [program])
    assert f"clients: {shown}" in server_process.invitation(load(ServerConfig, []), 8443)


def test_a_client_is_woken_when_the_app_reports_what_it_sent():
    events = [{"event": "sent", "node": 2**63 + 1}, {"event": "finished", "summary": {"rounds": 1}}]
    woken = []
    channel = SimpleNamespace(ready=lambda _: True, receive=lambda: events.pop(0))
    gate, link = SimpleNamespace(wake=woken.append), SimpleNamespace(returncode=None)
    open_server = SimpleNamespace(gate=gate, link=link)
    summary = server_process._follow(channel, None, open_server, (), audit=None, cancelled=str)
    assert summary == {"rounds": 1}
    assert woken == [2**63 + 1]


def test_an_address_to_be_watched_at_that_is_taken_is_said_before_the_run(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        keys = [f"watch.port={taken.getsockname()[1]}", "port=0", "insecure=true"]
        with pytest.raises(ConfigError, match=r"watch\.port=\d+: another program listens"):
            server_process.check_server(load(ServerConfig, keys))


@pytest.mark.parametrize("dies", [False, True])
def test_a_cancel_or_a_dead_superlink_is_seen_while_events_come_without_a_pause(monkeypatch, dies):
    """It was looked for only where none had come for a second."""
    clock = itertools.count()
    monkeypatch.setattr(server_process.time, "monotonic", lambda: next(clock))
    events = itertools.repeat({"event": "sent", "node": 1}, 100)
    channel = SimpleNamespace(ready=lambda _: True, receive=lambda: next(events))
    gate = SimpleNamespace(wake=lambda _: None)
    link = SimpleNamespace(returncode=1 if dies else None, log="superlink.log")
    open_server = SimpleNamespace(gate=gate, link=link)
    error = FederationError if dies else server_process.RunCancelledError
    with pytest.raises(error, match="SuperLink ended" if dies else "because"):
        server_process._follow(
            channel, None, open_server, (), audit=None, cancelled=lambda: "because"
        )


def test_how_far_the_encoder_is_delivered_is_shown_and_noted_at_the_end():
    shown, noted = [], []
    status = SimpleNamespace(delivery=lambda *values, over: shown.append((*values, over)))
    audit = SimpleNamespace(add=lambda event, **values: noted.append((event, values)))
    for have, missing, over in (([], ["a", "b"], False), (["a"], ["b"], True)):
        event = {"event": "delivery", "values": ["digest", have, missing, over]}
        server_process._pass_on(event, None, (None, status), audit)
    assert shown == [(0, 2, False), (1, 1, True)]
    assert noted == [("sent", {"encoder": "digest", "clients": ["a"], "without": ["b"]})]
