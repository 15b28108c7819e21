"""One run after the other at one open server, without Flower's programs."""

from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

from orchestra_flwr.config import load
from orchestra_flwr.deployment.processes import queue_server
from orchestra_flwr.deployment.processes.server_process import RunCancelledError
from orchestra_flwr.deployment.run_queue import RunQueue, run_to_submit
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.server.round_report import FederationError
from orchestra_flwr.folder_lock import locked

TINY = ["model.width=8", "logging.progress=off"]


class Stopped(Exception):  # noqa: N818
    """A person stops the server."""


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """Serves a queue; `outcomes` say what becomes of each run: an error or a summary."""
    queue, served = RunQueue(tmp_path / "runs"), []
    link = SimpleNamespace(returncode=None, log="superlink.log")

    @contextmanager
    def opened(config, log, report):
        served.append("opened")
        yield SimpleNamespace(link=link, gate=SimpleNamespace(port=1), report=report)

    def serve(config, folder, progress, station, is_cancelled):
        outcome = outcomes.pop(0)
        served.append((config.seed, config.resume is not None))
        if outcome == "cancel":
            queue.cancel(folder.path.parent.name)
            assert is_cancelled()
            raise RunCancelledError
        if isinstance(outcome, BaseException):
            if "SuperLink" in str(outcome):
                link.returncode = 1
            raise outcome
        return outcome

    outcomes, sleeps = [], []

    def sleep(seconds):
        if not sleeps:
            raise Stopped
        sleeps.pop()()

    monkeypatch.setattr(queue_server, "opened", opened)
    monkeypatch.setattr(queue_server, "serve", serve)
    monkeypatch.setattr(queue_server, "print_summary", lambda *_: None)
    monkeypatch.setattr(queue_server.time, "sleep", sleep)

    def run(*planned, ends=Stopped, sleep=()):
        served.clear()
        sleeps[:] = sleep
        outcomes[:] = planned
        link.returncode = None
        with pytest.raises(ends):
            queue_server.serve_queue(load(ServerConfig, [f"queue={queue.folder}"]))
        return list(served)

    return queue, run


def test_runs_follow_one_another_and_one_that_fails_holds_up_no_other(serving, capsys):
    queue, run = serving
    for seed in range(1, 5):
        queue.put(run_to_submit([*TINY, f"seed={seed}"]))
    (queue.folder / "0003" / "run.yaml").write_text("nonsense: 1\n")
    failed = FederationError("too few clients")
    assert run(failed, {}, "cancel") == ["opened", (1, False), (2, False), (4, False)]
    assert [each.state for each in queue.runs()][::3] == ["failed: too few clients", "cancelled"]
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
        run({}, sleep=[held.close])
    assert queue.runs()[0].state == "done"
