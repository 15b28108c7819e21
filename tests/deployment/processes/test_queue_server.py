"""One run after the other at one open server, without Flower's programs."""

import errno
import json
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest
import torch

from orchestra_flwr.config import ConfigError, load
from orchestra_flwr.deployment.processes import queue_server
from orchestra_flwr.deployment.processes.server_process import NotStartedError, RunCancelledError
from orchestra_flwr.deployment.run_queue import RunQueue, run_to_submit
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.audit_log import check_audit
from orchestra_flwr.deployment.watch.queue_log import QueueLog
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.folder_lock import locked
from orchestra_flwr.reporting import Progress
from orchestra_flwr.reporting.folder_record import VALUE, FolderRecord
from orchestra_flwr.reporting.kept_checkpoints import LATEST
from orchestra_flwr.tensor_files import save_tensors

TINY = ["model.width=8"]
# `d` does not take it.
SENT = {"encoder_sent": {"clients": ["a"], "without": ["b", "c", "d"], "away": ["b", "c"]}}


class Stopped(Exception):  # noqa: N818
    """A person stops the server."""


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """Serves a queue; `outcomes` say what becomes of each run: an error or a summary.

    A number: an error after the checkpoint of that round.
    """
    queue, served = RunQueue(tmp_path / "runs"), []
    queue.make()
    link = SimpleNamespace(returncode=None, log="superlink.log")
    idle = SimpleNamespace(waits=lambda: served.append("idle"))
    stations, waits = [], []

    @contextmanager
    def opened(config, folder, report):
        served.append("opened")
        gate = SimpleNamespace(port=1)
        stations.append(
            SimpleNamespace(
                link=link, keys=run.keys, gate=gate, report=report, idle=idle, connected=[]
            )
        )
        yield stations[-1]

    def serve(config, folder, progress, station, cancelled):
        outcome = outcomes.pop(0)
        served.append((config.seed, config.resume is not None))
        waits.append(config.share.wait)
        assert cancelled() == ""
        if outcome == "interrupt":
            queue.put(run_to_submit([*TINY, "seed=9"]))
            raise RunCancelledError(cancelled())
        if outcome == "cancel":
            queue.cancel(folder.path.parent.name)
            raise RunCancelledError(cancelled())
        if isinstance(outcome, int):
            folder.checkpoint.mkdir(exist_ok=True)
            values = {VALUE: FolderRecord(folder.path).to_json()}
            values["position"] = json.dumps({"round": outcome})
            save_tensors(folder.checkpoint / LATEST, {"a": torch.zeros(1)}, values)
            outcome = FederationError("nobody answered")
        if isinstance(outcome, BaseException):
            if "SuperLink" in str(outcome):
                link.returncode = 1
            raise outcome
        return outcome

    outcomes, sleeps, errors = [], [], []

    def sleep(seconds):
        if not sleeps:
            raise Stopped
        sleeps.pop()(stations[-1])

    monkeypatch.setattr(queue_server, "opened", opened)
    monkeypatch.setattr(queue_server, "serve", serve)
    monkeypatch.setattr(Progress, "finished", lambda *_: None)
    monkeypatch.setattr(queue_server.time, "sleep", sleep)

    def run(*planned, ends=Stopped, sleep=(), keys=()):
        served.clear()
        sleeps[:] = sleep
        outcomes[:] = planned
        link.returncode = None
        with pytest.raises(ends) as caught:
            queue_server.serve_queue(load(ServerConfig, [f"queue={queue.folder}", *keys]))
        errors.append(caught.value)
        return [event for event in served if event != "idle"]

    run.errors, run.waits, run.keys = errors, waits, None
    return queue, run


def events(queue):
    """Event and run of each line of the queue's audit log."""
    check_audit(queue.folder)
    lines = (queue.folder / "audit.jsonl").read_text().splitlines()
    return [(entry["event"], entry.get("run")) for entry in map(json.loads, lines)]


def test_runs_follow_one_another_and_one_that_fails_holds_up_no_other(serving, capsys):
    queue, run = serving
    for seed in range(1, 5):
        queue.put(run_to_submit([*TINY, f"seed={seed}"]))
    (queue.folder / "0003" / "run.yaml").write_text("nonsense: 1\n")
    failed = FederationError("too few clients")
    assert run(failed, {}, "cancel") == ["opened", (1, False), (2, False), (4, False)]
    assert [queued.state for queued in queue.runs()][::3] == [
        "failed: too few clients",
        "cancelled",
    ]
    assert queue.runs()[1].state == "done"
    assert queue.runs()[2].state == "failed: method: must be given"
    assert "no run waits in" in capsys.readouterr().out
    assert run() == ["opened"]  # nothing is run twice


def test_a_server_that_was_stopped_goes_on_with_the_run_that_it_was_in(serving):
    queue, run = serving
    queue.put(run_to_submit([*TINY, "seed=1"]))
    run(KeyboardInterrupt(), ends=KeyboardInterrupt)
    assert queue.runs()[0].state == "begun"
    run(FederationError("Flower's SuperLink ended"), ends=FederationError)
    assert queue.runs()[0].state == "begun"  # not the run's failure
    assert run({}) == ["opened", (1, True)]


def test_a_run_that_failed_after_good_rounds_is_tried_again_until_it_gets_no_further(
    serving, capsys
):
    """As where the network is away for a minute: all clients count as gone at once."""
    queue, run = serving
    queue.put(run_to_submit([*TINY, "seed=1"]))
    queue.put(run_to_submit([*TINY, "seed=2"]))
    served = run(0, 3, 5, 5)
    assert served == ["opened", (1, False), (2, False), (2, True), (2, True)]
    assert [queued.state for queued in queue.runs()] == [
        "failed: nobody answered",  # it trained nothing
        "failed: nobody answered",
    ]
    line = "run 0002: nobody answered; it is tried again after its last round"
    assert capsys.readouterr().out.count(line) == 2


def test_a_run_that_failed_goes_on_where_what_says_so_is_removed(serving):
    """As the trouble table of docs/deployment.md says."""
    queue, run = serving
    queue.put(run_to_submit([*TINY, "seed=1"]))
    run(FederationError("too few clients"))
    (queue.runs()[0].path / "ended").unlink()
    assert run(FederationError("again")) == ["opened", (1, True)]
    (queue.runs()[0].path / "ended").unlink()
    assert run({}) == ["opened", (1, True)] and queue.runs()[0].state == "done"
    assert [event for event, _ in events(queue)] == [
        "submitted", "began", "ended", "resumed", "ended", "resumed", "ended",
    ]  # fmt: skip


def test_a_second_server_of_a_queue_is_refused(serving):
    queue, run = serving
    queue.put(run_to_submit(TINY))
    with locked(queue.folder):
        run(ends=queue_server.ConfigError)


def test_the_app_of_a_killed_server_may_still_have_the_run_for_a_moment(serving):
    """The run does not fail for that."""
    queue, run = serving
    queue.put(run_to_submit(TINY))
    run(KeyboardInterrupt(), ends=KeyboardInterrupt)
    with ExitStack() as held:
        held.enter_context(locked(queue.runs()[0].folder))
        run({}, sleep=[lambda _: held.close()])
    assert queue.runs()[0].state == "done"


def test_a_queue_has_an_audit_log_over_restarts(serving):
    """What is cancelled or submitted while no server is there stands in it as well."""
    queue, run = serving
    for seed in range(4):
        queue.put(run_to_submit([*TINY, f"seed={seed}"]))
    queue.cancel("0002")
    run(FederationError("no"), "cancel", {})
    submitted = [("submitted", "0001"), ("submitted", "0002"), ("cancelled", "0002")]
    submitted += [("submitted", "0003"), ("submitted", "0004")]
    assert events(queue) == [
        *submitted,
        ("began", "0001"),
        ("ended", "0001"),
        ("began", "0003"),
        ("cancelled", "0003"),
        ("began", "0004"),
        ("ended", "0004"),
    ]
    queue.put(run_to_submit(TINY))
    queue.cancel("0005")
    run()
    assert events(queue)[len(submitted) + 6 :] == [("submitted", "0005"), ("cancelled", "0005")]
    ended = [json.loads(x) for x in (queue.folder / "audit.jsonl").read_text().splitlines()]
    assert [entry["how"] for entry in ended if entry["event"] == "ended"] == ["failed: no", "done"]


def test_its_lines_are_json_where_the_server_was_told_so(serving, capsys):
    queue, run = serving
    for seed in range(2):
        queue.put(run_to_submit([*TINY, f"seed={seed}"]))
    run(FederationError("nobody came"), {}, keys=["logging.format=json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(entry["event"], entry["level"], entry.get("run")) for entry in lines[1:]] == [
        ("run_began", "info", "0001"),
        ("run_ended", "error", "0001"),
        ("run_began", "info", "0002"),
        ("finished", "info", None),
        ("run_ended", "info", "0002"),
        ("idle", "info", None),
    ]
    assert lines[2]["state"] == "failed: nobody came"
    ended = queue.folder / "0001" / "ended"
    assert lines[2]["message"].endswith(
        f"nobody came; when that is mended, it goes on after its last round: rm {ended}"
    )


def test_a_full_disk_fails_no_run(serving, monkeypatch):
    """It would fail all that wait, one after the other."""
    queue, run = serving
    queue.put(run_to_submit(TINY))
    with monkeypatch.context() as patched:
        patched.setattr(queue_server.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
        run(FederationError("cannot write"), ends=FederationError)
    assert "run 0001: cannot write; the disk of" in str(run.errors[-1])
    assert queue.runs()[0].state == "begun"
    assert run({}) == ["opened", (0, True)]


def test_a_disk_that_is_away_for_a_moment_ends_no_run(serving, monkeypatch):
    """It is looked every second whether a run was cancelled."""
    queue, run = serving
    queue.put(run_to_submit(TINY))
    update = QueueLog.update

    def stale(log):
        update(log)
        if queue.runs()[0].state == "begun":
            raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(QueueLog, "update", stale)
    run({})
    assert queue.runs()[0].state == "done"


def test_a_superlink_that_takes_no_run_fails_none(serving):
    """As after its certificate has expired; it would fail all that wait, one after the other."""
    queue, run = serving
    for _ in range(2):
        queue.put(run_to_submit(TINY))
    run(NotStartedError("the run could not be started"), ends=FederationError)
    line = "run 0001: the run could not be started; it goes on with the next start"
    assert str(run.errors[-1]) == line
    assert [queued.state for queued in queue.runs()] == ["begun", "waiting"]
    assert run({}, {}) == ["opened", (0, True), (0, False)]


def test_a_certificate_that_expires_in_a_run_fails_it_not(serving):
    queue, run = serving
    queue.put(run_to_submit(TINY))

    def check():
        raise ConfigError("server.crt expired on 2026-11-28: make it")

    run.keys = SimpleNamespace(dated=[SimpleNamespace(check=check)])
    run(FederationError("nobody answered"), ends=FederationError)
    assert "answered; server.crt expired on 2026-11-28: make it; it goes" in str(run.errors[-1])
    assert queue.runs()[0].state == "begun"


def test_a_client_that_comes_back_gets_the_latest_encoder(serving, capsys, monkeypatch):
    """Once, and a run that waits comes first."""
    queue, run = serving
    for seed in range(2):
        queue.put(run_to_submit([*TINY, f"seed={seed}", "share.wait=0"]))

    def back(*names):
        return lambda station: station.connected.__setitem__(slice(None), names)

    monkeypatch.setattr(queue_server, "read_json", lambda path: SENT)
    # Waits are taken from the end: b comes back, then nobody else.
    later = [back("a", "b"), back("a", "b")]
    assert run({}, {}, {}, sleep=later) == [
        "opened", (0, False), (1, False), (1, True),
    ]  # fmt: skip
    assert run.waits == [0, 0, 60]  # to be met takes a moment
    assert "run 0002: its encoder goes to b\n" in capsys.readouterr().out
    assert [queued.state for queued in queue.runs()] == ["done", "done"]
    failed = FederationError("no")
    assert run(failed, sleep=[back("b")]) == ["opened", (1, True)]  # a new start tries again
    assert "its encoder was not sent: no" in capsys.readouterr().out
    assert queue.runs()[1].state == "done"


def test_a_client_that_the_latest_run_never_met_gets_its_encoder(serving, capsys, monkeypatch):
    """It joined while the others got it; who has it, does not take it or has no name is left."""
    queue, run = serving
    queue.put(run_to_submit(TINY))
    monkeypatch.setattr(queue_server, "read_json", lambda path: SENT)

    def comes(station):
        station.connected[:] = ["a", "d", "new", None]

    assert run({}, {}, sleep=[comes])[1:] == [(0, False), (0, True)]
    assert "run 0001: its encoder goes to new\n" in capsys.readouterr().out


@pytest.mark.parametrize("seconds", [60, 2 * queue_server.AGAIN_SECONDS])
def test_a_client_that_left_before_it_had_the_encoder_gets_it_later(serving, monkeypatch, seconds):
    """It was offered once for ever: a second failure of its network was the end of it."""
    queue, run = serving
    queue.put(run_to_submit(TINY))
    now = [0.0]
    monkeypatch.setattr(queue_server.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(queue_server, "read_json", lambda path: SENT)

    def back(station):
        station.connected[:] = ["b"]

    def wait(_):
        now[0] += seconds

    offers = run({}, {}, {}, sleep=[wait, back])[2:]
    assert offers == [(0, True)] * (1 if seconds == 60 else 2)


def test_a_run_that_interrupts_a_delivery_and_fails_does_not_end_it(serving, monkeypatch):
    queue, run = serving
    queue.put(run_to_submit(TINY))
    monkeypatch.setattr(queue_server, "read_json", lambda path: SENT)

    def back(station):
        station.connected[:] = ["b"]

    served = run({}, "interrupt", FederationError("no"), {}, sleep=[back])
    assert served[1:] == [(0, False), (0, True), (9, False), (0, True)]
