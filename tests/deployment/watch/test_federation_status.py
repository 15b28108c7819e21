"""What a server shows of its run."""

import json
import math
import time

import pytest

from orchestra_flwr.config import load
from orchestra_flwr.deployment.processes.station import Station
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch import finished_rounds
from orchestra_flwr.deployment.watch.federation_status import STATES, FederationStatus, IdleStatus
from orchestra_flwr.deployment.watch.figures import MAX_DETAILS
from orchestra_flwr.files import finite
from orchestra_flwr.reporting import RoundOutcome, RunFolder


def test_a_run_is_followed_from_its_start_to_a_finished_round(run):
    status = run.status
    assert (status.state, status.to_dict()["waits_for"]) == ("waiting", "clients: 0 of 2 are here")
    for name in ("a", "b"):
        status.member("joined", name)
    assert status.state == "starting"
    status.round_started(1, 2, "training")
    for name in ("a", "b"):
        status.client_asked(name)
    status.client_done("a", ok=True)
    shown = status.to_dict()
    assert (shown["state"], shown["waits_for"]) == ("training", "1 of 2 clients")
    assert (shown["round"], shown["cohort"], shown["replies"]) == (1, 2, {"ok": 1, "failed": 0})
    assert shown["names"] == [{"name": "a", "state": "answered"}, {"name": "b", "state": "at_work"}]
    status.client_done("b", ok=False)
    assert status.state == "averaging"
    status.round_started(1, 2, "scoring")
    assert [client["state"] for client in status.to_dict()["names"]] == ["here", "here"]
    assert status.to_dict()["waits_for"] == "2 of 2 clients: scoring"
    status.round_started(1, 2, "training")
    status.client_done("b", ok=False)
    run.record(1)
    status.round_finished(RoundOutcome(1, {"total": 1.5}, None, 2.0, []))
    status.phase_started("evaluating the encoder after round 1")
    shown = status.to_dict()
    assert shown["state"] == "working" and shown["waits_for"].startswith("evaluating")
    assert shown["loss"]["total"] == 1.5 and shown["curves"]["loss"] == [(1, 1.5)]
    assert shown["names"][1] == {"name": "b", "state": "failed"}


def test_who_has_answered_is_not_shown_at_work_behind_one_that_hangs(run):
    """Replies are taken in the order of the clients, and that of `a` does not come."""
    status = run.status
    status.member("joined", "a")
    status.member("joined", "b")
    status.round_started(1, 2, "training")
    for name in ("a", "b"):
        status.client_asked(name)
    for _ in range(2):
        status.client_came("b", good=True)
    shown = status.to_dict()
    assert (shown["waits_for"], shown["clients"]["at_work"]) == ("1 of 2 clients", 1)
    assert shown["replies"] == {"ok": 1, "failed": 0}
    assert shown["names"] == [{"name": "a", "state": "at_work"}, {"name": "b", "state": "answered"}]
    status.client_came("a", good=False)
    assert (status.state, status.to_dict()["replies"]) == ("averaging", {"ok": 1, "failed": 1})
    status.client_done("a", ok=False)
    status.client_done("b", ok=False)  # what it sent cannot be used
    assert status.to_dict()["replies"] == {"ok": 0, "failed": 2}
    status.client_came("b", good=True)  # of an earlier round: it is not asked now
    assert status.to_dict()["replies"] == {"ok": 0, "failed": 2}


def test_a_late_client_is_at_work_until_it_is_free(run):
    status = run.status
    status.member("joined", "a")
    status.round_started(1, 2, "training")
    status.client_asked("a")
    status.round_started(2, 1, "training")
    assert status.to_dict()["names"][0] == {"name": "a", "state": "at_work"}
    status.client_came("a", good=True)
    status.round_started(3, 1, "training")
    assert status.to_dict()["names"][0] == {"name": "a", "state": "here"}
    assert status.to_dict()["replies"] == {"ok": 0, "failed": 0}


def test_clients_that_come_and_go_are_counted_by_state(run):
    for event, name in [
        ("joined", "a"),
        ("joined", "b"),
        ("silent", "b"),
        ("refused", "<script>"),
        ("joined", "c"),
        ("left", "c"),
    ]:
        run.status.member(event, name)
    shown = run.status.to_dict()
    assert shown["clients"] == {
        "registered": 3, "here": 1, "at_work": 0, "silent": 1, "refused": 1,
    }  # fmt: skip
    assert run.figures()["members_total", "joined"] == 3
    # Names are the registry's own, not what somebody says of itself.
    assert shown["names"] == [{"name": "a", "state": "here"}, {"name": "b", "state": "silent"}]
    assert "script" not in json.dumps(shown)


def test_clients_whose_keys_were_revoked_are_counted_no_more(run, monkeypatch):
    monkeypatch.setattr(ServerConfig, "tls", True)
    for event, name in [("joined", "a"), ("joined", "b"), ("silent", "b")]:
        run.status.member(event, name)
    assert run.status.to_dict()["clients"]["silent"] == 1
    run.names.remove("b")
    assert run.status.to_dict()["clients"]["silent"] == 0 and run.status.state == "waiting"
    run.names.remove("a")
    assert run.status.to_dict()["clients"]["here"] == 0


def test_images_with_several_labels_have_a_curve_of_their_precision(run):
    run.record(1, scores={"online": {"map": 0.4}})
    assert run.status.to_dict()["curves"]["map"] == [(1, 0.4)]


def test_bytes_and_dropped_replies_are_sums_of_all_rounds(run):
    silent = {"client": "a", "reason": "no answer in time", "silent": True}
    word = {"client": "b", "reason": "out_of_memory (its memory ...); details", "silent": False}
    other = {"client": "c", "reason": "privacy_made_up (x)", "silent": False}
    run.record(1, [silent, word])
    assert run.figures()["bytes_total", "down"] == 300
    run.record(2, [silent, other])
    figures = run.figures()
    assert figures["bytes_total", "down"] == 600 and figures["rounds_seconds_total",] == 4
    assert figures["dropped_total", "no_answer"] == 2
    assert figures["dropped_total", "out_of_memory"] == figures["dropped_total", "unusable"] == 1


def test_a_run_that_goes_back_is_read_anew(run):
    for number in (1, 2, 3):
        run.record(number)
    assert run.figures()["bytes_total", "up"] == 300
    run.folder.truncate_after(1)
    figures = run.figures()
    assert figures["bytes_total", "up"] == 100 and figures["round_finished",] == 1


def test_a_line_that_is_being_written_is_read_when_it_is_there(run):
    run.record(1)
    run.record(2)
    whole = run.folder.metrics.read_bytes()
    run.folder.metrics.write_bytes(whole[:-10])
    assert run.figures()["round_finished",] == 1
    with run.folder.metrics.open("ab") as file:
        file.write(whole[-10:])
    assert run.figures()["round_finished",] == 2


def test_a_curve_has_its_last_point_however_long_the_run_is(run, monkeypatch):
    monkeypatch.setattr(finished_rounds, "POINTS", 10)
    for number in range(1, 26):
        run.record(number, scores={"online": {"knn": number / 100}})
    curves = run.status.to_dict()["curves"]
    assert len(curves["loss"]) == 9 and curves["loss"][-1] == (25, 1.5)
    assert curves["knn"][-1] == (25, 0.25)


def test_what_is_new_in_a_record_appears_by_itself(run):
    run.record(1, late={"counted": 2, "why": "text", "worst": None}, enough=True)
    figures = run.figures()
    assert figures["last_round", "late.counted"] == 2 and figures["last_round", "enough"] == 1
    assert not any("why" in labels or "worst" in labels for _, *labels in figures)


def test_the_series_are_as_many_with_a_thousand_clients(server_config, tmp_path, everything):
    """Also no name of a client is in one of them."""
    few = everything.figures()
    names = [f"client-{i}" for i in range(1000)]
    releases = dict.fromkeys(names, 5)
    dropped = [{"client": name, "reason": "unusable: nan", "silent": False} for name in names]
    everything.record(
        2,
        dropped,
        scores={"online": {"knn": 0.5, "linear": 0.6}},
        release={"smallest_group": 4, "clients": releases, "server_state_kept": False},
        privacy={
            "updates": "no",
            "centroids": {"epsilon": 1.5, "delta": 1e-3, "releases": releases},
        },
        unsupervised={"score": 0.1},
        exchange={"moved": 3, "members": {"model": names}},
    )
    for name in names:
        everything.status.member("joined", name)
    many = everything.figures()
    assert many.keys() - few.keys() == {("last_round", "exchange.moved")}
    assert few.keys() <= many.keys()
    assert not any("client-" in part for key in many for part in key)
    everything.record(3, plugin={f"figure {i}": i for i in range(2 * MAX_DETAILS)})
    assert sum(key[0] == "last_round" for key in everything.figures()) == MAX_DETAILS


def test_what_is_not_finite_is_not_shown(run):
    run.record(1, loss={"contrast": math.nan, "total": math.nan}, moved={"largest": math.inf})
    json.dumps(finite(run.status.to_dict()), allow_nan=False)
    assert run.status.to_dict()["curves"] == {}
    assert not any(name == "loss" for name, *_ in run.figures())


def test_one_state_is_current(everything):
    figures = everything.figures()
    assert [state for state in STATES if figures["state", state]] == ["training"]
    assert figures["epsilon", "centroids"] == 1.5
    assert figures["certificate_days", "ca.crt"] == pytest.approx(10.5, abs=0.01)
    assert figures["score", "online.knn"] == 0.5


def test_nobody_waits_for_those_who_look(run, monkeypatch):
    """A display of the run's events takes no lock that a scrape could hold."""
    run.record(1)
    with run.status._rounds._lock:  # as a scrape that is in the middle of its reading
        run.status.round_started(2, 2, "training")
        run.status.client_done("a", ok=True)
        run.status.round_finished(RoundOutcome(2, {}, None, 1.0, []))
        run.status.member("left", "a")


def test_without_a_registry_no_client_is_named(server_config, tmp_path, run):
    status = FederationStatus(server_config, RunFolder(tmp_path), tuple, ())
    status.member("joined", "anybody")
    assert status.to_dict()["names"] == [] and status.to_dict()["clients"]["here"] == 1


def test_who_has_the_encoder_is_shown_while_it_is_delivered(run):
    run.status.delivery(1, 2, over=False)
    shown = run.status.to_dict()
    assert (shown["state"], shown["encoder"]) == ("delivering", {"have": 1, "missing": 2})
    assert shown["waits_for"] == "2 of 3 clients, to have the encoder"
    assert run.figures()["encoder", "missing"] == 2 and run.figures()["state", "delivering"] == 1
    run.status.delivery(3, 0, over=True)
    shown = run.status.to_dict()
    assert shown["state"] != "delivering" and shown["encoder"]["have"] == 3


@pytest.fixture
def idle(tmp_path):
    config = load(ServerConfig, [f"queue={tmp_path}"])
    return IdleStatus(
        config, RunFolder(tmp_path), lambda: ["a", "b", None], (), connected=lambda: ["b", None]
    )


def test_a_server_without_a_run_shows_who_is_connected_and_for_what_it_waits(idle, run, by_name):
    shown = idle.to_dict()
    assert shown["state"] == "idle" and shown["waits_for"].startswith("a run: orchestra-submit")
    assert shown["clients"]["registered"] == 3 and shown["clients"]["here"] == 2
    assert [client["state"] for client in shown["names"]] == ["away", "here"]
    assert shown.keys() == run.status.to_dict().keys()
    assert by_name(idle)["state", "idle"] == 1
    idle.starting = True
    assert (idle.state, idle.to_dict()["waits_for"]) == ("starting", "")
    idle.waits()
    assert idle.state == "idle" and time.time() - idle.to_dict()["since"] < 5


def test_a_run_that_is_resumed_in_a_queue_counts_nothing_anew(idle, run, by_name):
    """Prometheus would add what it counted before, whenever a late client gets the encoder."""
    run.record(1, [{"client": "a", "reason": "unusable"}])
    counters = {
        key for key in run.figures() if key[0].removesuffix("_total") in
        ("bytes", "rounds_seconds", "dropped")
    }  # fmt: skip
    assert run.figures()["dropped_total", "unusable"] == 1 and len(counters) > 3
    assert not counters & by_name(idle).keys()


def test_the_address_shows_the_run_while_there_is_one(idle, run):
    station = Station(*[None] * 6, idle, idle, print)
    assert station.shown()["state"] == "idle"
    with pytest.raises(KeyboardInterrupt), station.showing(run.status):
        assert station.shown()["state"] == "waiting"
        raise KeyboardInterrupt
    assert station.shown()["state"] == "idle"
