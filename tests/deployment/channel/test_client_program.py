import inspect
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec

from orchestra_flwr.deployment.channel import client_program
from orchestra_flwr.deployment.channel.client_program import ForkingExecutor, leave_out_texts
from orchestra_flwr.deployment.channel.launcher import NAME, put_launcher


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
    assert "Run Flower SuperExec" in done.stdout
    assert done.stdout.startswith("usage: -c")  # it is ours


def test_flowers_own_program_does_not_take_its_place_where_none_can_be_started(
    tmp_path, monkeypatch
):
    """On a disk that is mounted with noexec a program with mode 0700 is passed over in PATH."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK)
    with pytest.raises(PermissionError, match=r"superexec cannot be started, .* TMPDIR=/var/tmp"):
        put_launcher(tmp_path / "bin")


def test_flower_starts_it_by_this_name_and_asks_it_for_executors():
    node = import_module("flwr.supernode.start_client_internal")
    assert f'command = ["{NAME}"]' in inspect.getsource(node)
    assert "executor = get_executor(" in inspect.getsource(
        import_module("flwr.supercore.superexec.run_superexec")
    )


def task(kind=TaskType.CLIENT_APP):
    return ExecutionSpec(
        task_type=kind,
        runtime_api_address="127.0.0.1:1",
        token="secret",  # noqa: S106
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=os.getpid(),
        suppress_output=False,
        task_id=1,
    )


FORKS = """if True:
    import os, sys
    from multiprocessing import active_children
    from tests.deployment.channel.test_client_program import ForkingExecutor, client_program, task

    def told(spec):
        imported = set(client_program.IMPORTED_ONCE) <= set(sys.modules)
        print(spec.token, imported, os.getppid(), os.getpid(), flush=True)
        raise SystemExit(0)

    if __name__ == "__main__":
        client_program.run_client_app = told
        executor = ForkingExecutor()
        for _ in range(2):
            executor.launch(task())
            [each.join() for each in active_children()]
"""


def test_each_message_gets_a_fork_of_a_process_that_has_imported_the_app(tmp_path):
    (tmp_path / "forks.py").write_text(FORKS)
    done = subprocess.run(
        [sys.executable, tmp_path / "forks.py"],
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = (line.split() for line in done.stdout.splitlines())
    assert first[:3] == second[:3] and first[:2] == ["secret", "True"]
    assert len({first[2], first[3], second[3]}) == 3


def test_other_tasks_are_started_as_flower_does(monkeypatch):
    started = []
    monkeypatch.setattr(client_program.forkserver, "ensure_running", lambda: None)
    monkeypatch.setattr(SubprocessExecutor, "launch", lambda self, spec: started.append(spec))
    ForkingExecutor().launch(task(TaskType.SERVER_APP))
    assert started == [task(TaskType.SERVER_APP)]


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
