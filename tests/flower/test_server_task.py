"""A real SuperLink with runs of two owners."""

import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from orchestra_flwr.deployment.processes.child import Child
from orchestra_flwr.deployment.processes.scratch_folder import flower_folders
from orchestra_flwr.deployment.processes.superlink import superlink_command, wait_until_up
from orchestra_flwr.flower import patience
from orchestra_flwr.flower.deployed_app import PROJECT
from orchestra_flwr.flower.server_task import server_task
from orchestra_flwr.flower.streaming_grid import EngineStoppedError
from orchestra_flwr.flower.superlink_control import SuperLinkControl

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_only_the_servers_own_run_is_worked_on_and_a_superlink_that_stands_still_is_waited_for(
    tmp_path, monkeypatch
):
    """Flower would install what a foreign run brings, and start it; its code would leave a marker.

    A SuperLink that has ended the run is not waited for: it is said in a line, and no signal ends
    the app.
    """
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from faults.hostile_server import submit, write_evil_package

    monkeypatch.setattr(patience, "NOTICE_SECONDS", 0.5)
    scratch = Path(tempfile.mkdtemp(prefix="orch"))  # short: sockets
    marker = write_evil_package(scratch / "evil")
    monkeypatch.setenv("PYTHONPATH", str(scratch / "evil"))
    socket, lines = scratch / "link", []
    link = Child(superlink_command(socket, None), flower_folders(scratch), tmp_path / "log")
    try:
        wait_until_up(socket, link)
        control = SuperLinkControl(socket, None)
        foreign = submit(control, ("evil", "evilapp"))
        run_id = control.start_run({"pyproject.toml": PROJECT.encode()})
        with (
            pytest.raises(EngineStoppedError, match="SuperLink has ended this run"),
            server_task(socket, None, run_id, lines.append) as grid,
        ):
            assert grid.run.run_id == run_id != foreign
            assert grid._runtime_client._client.timeout.read > 100  # replies are given once
            grid._runtime_client._client.timeout = 0.5
            os.kill(link.pid, signal.SIGSTOP)
            threading.Timer(3, os.kill, (link.pid, signal.SIGCONT)).start()
            assert list(grid.get_nodes()) == []
            files = Path(f"/proc/{link.pid}/task").glob("*/children")
            started = [file.read_text() for file in files]
            control.stop_run(run_id)
            list(grid.get_nodes())
    finally:
        link.stop()
        shutil.rmtree(scratch)
    assert "".join(started).split() == [] and not marker.exists()
    waited, again = lines
    assert waited.endswith("it may be overloaded: trying again for 10 minutes")
    assert again.startswith("Flower's SuperLink answers again after ")
