"""One process at a time in a folder, and none that was killed."""

import os
import platform
import signal
import socket
import subprocess
import sys

import pytest

from orchestra_flwr.folder_lock import FolderInUseError, is_locked, locked

OWNER = """
import pathlib, sys, time
from orchestra_flwr.folder_lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def owner(tmp_path):
    """Another process that has locked the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_second_process_learns_who_was_first(tmp_path, owner):
    with pytest.raises(FolderInUseError) as error, locked(tmp_path):
        pass
    assert str(error.value) == f"process {owner.pid} on host {platform.node()}"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_no_lock(tmp_path, owner, number):
    owner.send_signal(number)
    owner.wait()
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()} {platform.node()}\n"
    assert (tmp_path / ".lock").read_text() == ""


def test_one_after_the_other(tmp_path):
    for _ in range(2):
        with (
            locked(tmp_path),
            pytest.raises(FolderInUseError, match=f"process {os.getpid()} "),
            locked(tmp_path),
        ):
            pass


def test_who_receives_the_descriptor_holds_the_lock_as_well(tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        with locked(tmp_path) as file:
            socket.send_fds(ours, [b"x"], [file.fileno()])
            _, (descriptor,), _, _ = socket.recv_fds(theirs, 1, 1)
        with pytest.raises(FolderInUseError, match="another process"), locked(tmp_path):
            pass
        os.close(descriptor)
        with locked(tmp_path):
            pass


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def flock(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(tmp_path):
        pass
    (record,) = caplog.records
    assert "cannot be locked (Operation not supported)" in record.getMessage()


@pytest.mark.parametrize("text", ["", "x", "12 \x1b[2J", "\x00" * 400])
def test_what_stands_in_the_file_is_not_trusted(tmp_path, text):
    with locked(tmp_path) as file:
        os.pwrite(file.fileno(), text.encode().ljust(400), 0)
        with pytest.raises(FolderInUseError) as error, locked(tmp_path):
            pass
    assert str(error.value) == "another process"


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "nowhere"):
        pass


def test_who_only_asks_locks_nothing(tmp_path):
    assert not is_locked(tmp_path) and list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    (tmp_path / ".lock").write_text("12345 host\n")  # of a process that was killed
    assert not is_locked(tmp_path)
