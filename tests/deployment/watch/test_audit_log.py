"""The audit log: it goes on over restarts, and nothing in it changes unnoticed."""

import json
import threading

import pytest

from orchestra_flwr.deployment.watch import audit_log
from orchestra_flwr.deployment.watch.audit_log import AuditError, AuditLog, check_audit
from orchestra_flwr.reporting import RunFolder

LINES = 8


@pytest.fixture
def said():
    return []


@pytest.fixture
def folder(tmp_path, said):
    """With a log of two starts of a server."""
    for start in range(2):
        log = AuditLog(tmp_path, said.append)
        for number in range(LINES // 2):
            log.add("joined", client=f"client-{start}-{number}", detail="20 images")
    assert said == []
    return tmp_path


def lines_of(folder):
    return (folder / "audit.jsonl").read_bytes().splitlines(keepends=True)


def test_a_log_goes_on_over_restarts(folder):
    entries = [json.loads(line) for line in lines_of(folder)]
    assert check_audit(folder) == (LINES, entries[-1]["sha256"])
    assert entries[0]["event"] == "joined" and entries[0]["time"].endswith("+00:00")
    assert (folder / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def changed(lines):
    return [line.replace(b"client-0-2", b"client-0-3") for line in lines]


DAMAGE = {
    "changed": (changed, "line 3"),
    "removed": (lambda lines: [*lines[:2], *lines[3:]], "line 3"),
    "re-ordered": (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], "line 3"),
    "the first removed": (lambda lines: lines[1:], "line 1"),
    "twice": (lambda lines: [*lines[:3], *lines[2:]], "line 4"),
    "the last removed": (lambda lines: lines[:-1], "8 lines were written and 7 are there"),
    "all removed": (lambda lines: [], "8 lines were written and 0 are there"),
    "no text": (lambda lines: [*lines[:4], b"\xff" + lines[4][1:], *lines[5:]], "line 5"),
    "no JSON": (lambda lines: [*lines[:4], b"[1]\n", *lines[4:]], "line 5"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_was_done_to_a_log_is_found(folder, said, damage):
    change, problem = DAMAGE[damage]
    (folder / "audit.jsonl").write_bytes(b"".join(change(lines_of(folder))))
    with pytest.raises(AuditError, match=problem):
        check_audit(folder)
    # A server that starts again goes on, says so, and does not make it good.
    AuditLog(folder, said.append).add("joined", client="x", detail="")
    assert len(said) == 1 and "the audit log was changed" in said[0] and problem in said[0]
    with pytest.raises(AuditError, match=r"line \d|a start of the server found"):
        check_audit(folder)


@pytest.mark.parametrize("end", [None, "", "[]", '{"lines": Infinity, "sha256": ""}'])
def test_a_log_without_its_end_is_not_taken_for_whole(folder, said, end):
    (folder / "audit.end").unlink()
    if end is not None:
        (folder / "audit.end").write_text(end)
    with pytest.raises(AuditError, match="audit.end is missing or damaged"):
        check_audit(folder)
    AuditLog(folder, said.append)
    assert len(said) == 1


def test_a_log_that_is_gone_is_missed(folder, said):
    (folder / "audit.jsonl").unlink()
    AuditLog(folder, said.append)
    assert "the audit log was changed" in said[0]
    with pytest.raises(AuditError, match="a start of the server found"):
        check_audit(folder)


@pytest.mark.parametrize("behind", [0, 1])
def test_a_crash_in_the_middle_of_an_entry_costs_that_entry_alone(folder, said, behind):
    """The line was begun, or is there while the second file does not count it yet."""
    before = (folder / "audit.end").read_bytes()
    log = AuditLog(folder, said.append)
    log.add("left", client="client-0-1", detail="")
    (folder / "audit.end").write_bytes(before)
    if not behind:
        whole = (folder / "audit.jsonl").read_bytes()
        (folder / "audit.jsonl").write_bytes(whole[:-20])
    AuditLog(folder, said.append).add("joined", client="x", detail="")
    assert said == [] and check_audit(folder)[0] == LINES + 1 + behind


def test_a_running_server_can_be_checked(folder, said):
    log = AuditLog(folder, said.append)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            log.add("joined", client="a", detail="")

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    counts = [check_audit(folder)[0]]
    while counts[-1] < LINES + 50:
        counts.append(check_audit(folder)[0])
    stop.set()
    for writer in writers:
        writer.join()
    assert counts == sorted(counts) and check_audit(folder)[0] >= counts[-1]


def test_a_full_disk_ends_no_run(folder, said, monkeypatch):
    log = AuditLog(folder, said.append)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(audit_log, "append_durably", full)
        log.add("joined", client="a", detail="")
    assert "the audit log misses an event, joined" in said[0]
    log.add("left", client="a", detail="")
    assert json.loads(lines_of(folder)[-1])["left_out"] == {"joined": 1}
    assert check_audit(folder)[0] == LINES + 1


def test_an_event_that_only_the_second_file_lacks_is_not_said_to_be_missing(
    folder, said, monkeypatch
):
    log = AuditLog(folder, said.append)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(audit_log, "write_atomically", full)
        log.add("ended", why="done")
    assert len(said) == 1 and "misses" not in said[0]
    assert "has an event, ended, that audit.end does not count until the next one" in said[0]
    assert check_audit(folder)[0] == LINES + 1
    log.add("resumed")
    assert "left_out" not in json.loads(lines_of(folder)[-1])
    assert check_audit(folder)[0] == LINES + 2


def test_strangers_fill_no_disk(folder, said):
    log = AuditLog(folder, said.append)
    overheard = log.overhearing(said.append)
    for number in range(200):
        overheard(f"refused: 192.0.2.{number}: its key is not registered")
    overheard("warning: ca.crt expires on 2026-12-01")
    overheard("revoked: site-1, site-2")
    assert len(said) == 202
    last = json.loads(lines_of(folder)[-1])
    assert last["clients"] == ["site-1", "site-2"]
    assert last["left_out"] == {"turned_away": 200 - audit_log.STRANGERS_AN_HOUR}
    assert check_audit(folder)[0] == LINES + audit_log.STRANGERS_AN_HOUR + 1


def test_a_client_that_comes_and_goes_for_weeks_fills_no_disk(folder, said, monkeypatch):
    now = 0.0
    monkeypatch.setattr(audit_log.time, "monotonic", lambda: now)
    log = AuditLog(folder, said.append)
    for _ in range(2):
        for number in range(100):
            log.member("left" if number % 2 else "joined", "restless", "")
        log.member("joined", "calm", "20 images")
        now += 3600.0
    log.add("ended", why="done")
    entries = [json.loads(line) for line in lines_of(folder)][LINES:]
    assert sum(entry.get("client") == "restless" for entry in entries) == 2 * 12
    calm = [entry for entry in entries if entry.get("client") == "calm"]
    assert [entry["left_out"] for entry in calm] == 2 * [{"joined": 44, "left": 44}]
    assert "left_out" not in entries[-1] and said == []
    assert check_audit(folder)[0] == LINES + len(entries)


def test_a_run_is_noted_with_what_came_of_it(server_config, tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    log = AuditLog(tmp_path, print)
    with pytest.raises(KeyboardInterrupt), log.of_run(server_config, folder):
        raise KeyboardInterrupt
    resumed = server_config.model_copy(update={"resume": str(tmp_path)})
    with AuditLog(tmp_path, print).of_run(resumed, folder) as log:
        log.add("revoked", clients=["a"])
        folder.encoder.write_bytes(b"weights")
    began, ended, again, revoked, released, done = map(json.loads, lines_of(tmp_path))
    assert (began["event"], again["event"]) == ("began", "resumed")
    assert began["config"] == again["config"] and len(began["config"]) == 64
    assert (ended["event"], ended["why"]) == ("ended", "stopped")
    assert (done["event"], done["why"]) == ("ended", "done")
    assert (revoked["event"], revoked["clients"]) == ("revoked", ["a"])
    assert released["rounds"] == 9 and list(released["encoders"]) == ["encoder.safetensors"]
    assert check_audit(tmp_path)[0] == 6


def test_a_folder_without_a_log_is_said_to_have_none(tmp_path):
    with pytest.raises(AuditError, match="has no audit.jsonl: the run folder of a server of real"):
        check_audit(tmp_path)  # as of a simulation
