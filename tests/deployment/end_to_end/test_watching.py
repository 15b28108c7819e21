"""A real federation is watched while it runs, and read about afterwards."""

import json
import re
import signal
import time

import httpx
import pytest

from orchestra_flwr.cli import top_main
from orchestra_flwr.deployment.watch.audit_log import check_audit

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


def get(port, path):
    return httpx.get(f"http://127.0.0.1:{port}/{path}", trust_env=False)


def port_in(running):
    running.wait_for("to be watched at http://127.0.0.1:")
    return int(re.search("watched at http://127.0.0.1:([0-9]+)/", running.text)[1])


def samples(parser, port):
    """What Prometheus would store of a scrape."""
    answer = get(port, "metrics")
    assert answer.status_code == 200, answer.text
    families = parser.text_string_to_metric_families(answer.text)
    return {(s.name, *s.labels.values()): s.value for f in families for s in f.samples}


def test_a_run_over_tls_is_watched_while_it_trains(machines, capsys):
    parser = pytest.importorskip("prometheus_client.parser")
    machines.make_photos(a=40, b=30)
    machines.keys("server", f"folder={machines.security}", "host=localhost", "client=a,b,away")
    # 10 epochs, so that scrapes meet rounds that are under way.
    server = machines.server(
        "federation.min_clients=2", "federation.rounds=4", "training.local_epochs=10",
        "watch.port=0",
    )  # fmt: skip
    watched = port_in(server)
    server.wait_for("listening on 127.0.0.1")
    assert get(watched, "status").json()["state"] in ("starting", "waiting")
    clients = [machines.client(name, "watch.port=0", "logging.format=json") for name in "ab"]
    of_client = port_in(clients[0])
    seen, slowest, statuses = [], 0.0, []
    while not seen or seen[-1].get(("orchestra_round_finished",), 0) < 3:
        began = time.monotonic()
        seen.append(samples(parser, watched))
        slowest = max(slowest, time.monotonic() - began)
        statuses.append(get(watched, "status").json())
        assert server._process.poll() is None, server.text
        time.sleep(0.2)
    there = samples(parser, of_client)
    assert top_main([f"server=127.0.0.1:{watched}", "once=true"]) == 0
    assert "of 4" in capsys.readouterr().out
    assert server.wait() == 0, server.text

    assert slowest < 2, "a scrape waits for a round"
    assert any(scrape["orchestra_state", "training"] for scrape in seen)  # in the middle of a round
    names = [{entry["name"]: entry["state"] for entry in status["names"]} for status in statuses]
    assert (
        all(states.keys() == {"a", "b", "away"} for states in names) and names[-1]["away"] == "away"
    )
    last = seen[-1]
    assert last["orchestra_clients", "registered"] == 3 and last["orchestra_clients", "here"] == 2
    assert (
        last["orchestra_loss", "total"] > 0 and last["orchestra_certificate_days", "ca.crt"] > 3600
    )
    assert not any(label in {"a", "b"} for key in last for label in key[1:])
    # The same figures as in metrics.jsonl.
    finished = int(last["orchestra_round_finished",])
    until = [record for record in machines.metrics() if record["round"] <= finished]
    for direction in ("up", "down"):
        total = sum(record[f"bytes_{direction}"] for record in until)
        assert last["orchestra_bytes_total", direction] == total
    assert last["orchestra_loss", "total"] == until[-1]["loss"]["total"]
    assert there["orchestra_well",] == 1 and there["orchestra_answers_total", "training ok"] >= 3
    assert there["orchestra_bytes_total", "up"] > 0

    for client in clients:
        client.end()
        lines = [json.loads(line) for line in client.lines]
        assert all(line["time"] and line["client"] in ("a", "b") for line in lines)
    entries = [json.loads(line) for line in (machines.run / "audit.jsonl").read_text().splitlines()]
    assert entries[0]["event"] == "began"
    assert {e["client"] for e in entries if e["event"] == "joined"} == {"a", "b"}
    sent, released, ended = entries[-3:]
    assert sent["event"] == "sent" and sent["clients"] == ["a", "b"]
    assert sent["encoder"] == released["encoders"]["encoder.safetensors"]
    assert (ended["event"], ended["why"]) == ("ended", "done")
    assert released["event"] == "released" and released["encoders"]["encoder.safetensors"]
    assert check_audit(machines.run)[0] == len(entries)


def test_behind_a_client_that_hangs_the_others_are_shown_as_answered(machines):
    machines.make_photos(a=24, b=24, c=24)
    machines.keys("server", f"folder={machines.security}", "host=localhost", "client=a,b,c")
    server = machines.server("federation.min_clients=3", "federation.rounds=2", "watch.port=0")
    watched = port_in(server)
    server.wait_for("listening on 127.0.0.1")
    clients = {"a": machines.client("a")}
    server.wait_for("client a joined")
    clients["a"].send(signal.SIGSTOP)
    clients |= {name: machines.client(name) for name in "bc"}
    states, deadline = {}, time.monotonic() + 120
    while set(states.values()) != {"at_work", "answered"} and time.monotonic() < deadline:
        time.sleep(0.2)
        status = get(watched, "status").json()
        states = {entry["name"]: entry["state"] for entry in status["names"]}
        states = states if "at_work" not in (states["b"], states["c"]) else {}
    assert states == {"a": "at_work", "b": "answered", "c": "answered"}
    assert status["waits_for"].startswith("1 of 3 clients") and status["clients"]["at_work"] == 1
    assert status["replies"] == {"ok": 2, "failed": 0}
    clients["a"].send(signal.SIGCONT)
    assert server.wait() == 0, server.text
    for client in clients.values():
        client.end()


def test_the_log_of_a_killed_server_goes_on(machines):
    """Who is revoked and who is turned away stand in it as well, and all lines are JSON."""
    machines.make_photos(a=24, b=24)
    machines.keys("server", f"folder={machines.security}", "host=localhost", "client=a,b")
    server = machines.server("federation.min_clients=2", "logging.format=json")
    server.wait_for("listening on 127.0.0.1")
    stranger = machines.folder / "stranger"
    machines.keys("client", f"folder={stranger}", "name=mallory")
    (stranger / "ca.crt").write_bytes((machines.security / "ca.crt").read_bytes())
    unknown = machines.client("a", f"security={stranger}")
    server.wait_for("refused: ")
    unknown.end()
    machines.keys("revoke", f"folder={machines.security}", "name=b")
    server.wait_for("revoked: b")
    server.send(signal.SIGKILL)
    server.wait()
    again = machines.server(f"resume={machines.run}", "logging.format=json")
    again.wait_for("listening on 127.0.0.1")
    again.end()
    for running in (server, again):
        events = [json.loads(line) for line in running.lines]
        assert all({"time", "level", "event"} <= event.keys() for event in events)
    entries = [json.loads(line) for line in (machines.run / "audit.jsonl").read_text().splitlines()]
    events = [entry["event"] for entry in entries]
    assert events[0] == "began" and events.index("turned_away") < events.index("revoked")
    assert events.index("revoked") < events.index("resumed") and events[-1] == "ended"
    assert check_audit(machines.run)[0] == len(entries)
