import inspect
import os
import subprocess
import sys
import time
from importlib import import_module

import pytest
from flwr.supercore.constant import TaskType

from orchestra_flwr.deployment.channel.client_program import NAME, leave_out_texts, put_launcher


@pytest.fixture
def program(monkeypatch):
    """Flower's module, as it is afterwards again."""
    module = import_module("flwr.supernode.runtime.run_clientapp")
    monkeypatch.setattr(module, "Error", module.Error)
    return module


def test_flowers_program_makes_errors_without_text(program):
    text = "cannot read /home/jane/photos"
    assert program.Error(code=8, reason=text).reason == text
    leave_out_texts()
    error = program.Error(code=8, reason=text)
    assert (error.code, error.reason or "") == (8, "")
    # All that it sends of an exception goes through that name.
    source = inspect.getsource(program.run_clientapp)
    assert source.count("Error(code=") == source.count("Message(") == 1


def test_the_launcher_is_found_first_and_is_flowers_program(tmp_path):
    put_launcher(tmp_path / "my bin")
    path = os.pathsep.join([str(tmp_path / "my bin"), os.environ["PATH"]])
    done = subprocess.run(
        [NAME, "--help"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Run a Flower ClientApp" in done.stdout
    assert "client_program" in done.stdout  # usage: it is ours


def test_flower_starts_it_by_this_name():
    assert TaskType.CLIENT_APP == NAME


CHILD = """
import threading
from orchestra_flwr.deployment.channel.client_program import end_with_parent
end_with_parent(grace=0.1)
print("watching", flush=True)
threading.Event().wait()  # as Flower's program may, for ever
"""
PARENT = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"


def test_it_does_not_outlive_the_process_that_started_it():
    """Its end of the pipe is closed, which nobody but itself can do any more."""
    command = [sys.executable, "-c", PARENT, sys.executable, "-c", CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"watching\n"
        parent.kill()
        started = time.monotonic()
        assert parent.stdout.read() == b""
    assert time.monotonic() - started < 60
