import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.processes.scratch_folder import (
    MARK,
    check_room_for,
    flower_folders,
    scratch_folder,
)

HOLD = """
import sys, time
from orchestra_flwr.deployment.processes.scratch_folder import scratch_folder
with scratch_folder() as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(100)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def holder():
    """Another process with a folder of its own."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.wait()


def test_a_folder_goes_with_its_block_and_is_its_owners_alone(temporary):
    with scratch_folder() as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700
        assert all(str(folder) in value for value in flower_folders(folder).values())
        (folder / "flwr").mkdir()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_at_the_next_start(holder, temporary):
    process, left = holder
    with scratch_folder():
        assert (left / "file").exists()  # it lives
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (left / "file").exists()
    with scratch_folder() as folder:
        assert list(temporary.iterdir()) == [folder]


def test_what_is_not_ours_stays(temporary):
    """A checkout may be called orchestra-flwr, and lie there for years."""
    names = ["orchestra-file", "orchestra-flwr", "orchestra-link", "other"]
    for name in ("other", "orchestra-flwr"):
        (temporary / name).mkdir()
        (temporary / name / "lock").touch()
        os.utime(temporary / name, (time.time() - 3600,) * 2)
    (temporary / "other" / MARK).touch()
    (temporary / "orchestra-file").touch()
    (temporary / "orchestra-link").symlink_to(temporary / "other")
    with scratch_folder():
        pass
    assert sorted(path.name for path in temporary.iterdir()) == names
    assert all((temporary / name / "lock").exists() for name in ("other", "orchestra-flwr"))


def test_the_folder_itself_is_locked_which_keeps_systemd_from_cleaning_it():
    with scratch_folder() as folder:
        other = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)


def test_without_locks_a_folder_is_made_and_none_removed(holder, temporary, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOSYS, "no locks")

    process, left = holder
    process.kill()
    process.wait()
    monkeypatch.setattr(fcntl, "flock", refused)
    with scratch_folder() as folder:
        assert {*temporary.iterdir()} == {folder, left}


def test_two_at_a_time_do_not_disturb_each_other():
    with scratch_folder() as one, scratch_folder() as two:
        assert one != two and one.is_dir() and two.is_dir()


@pytest.mark.parametrize("name", ["channel", "pymp-12345678/listener-12345678"])
def test_a_temporary_folder_is_refused_where_no_socket_would_fit(monkeypatch, name):
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    limit = int(_refusal(monkeypatch, "/" + 200 * "x", name).split()[5])
    deepest = folder / ("x" * (limit - len(str(folder)) - 1))
    assert "at most" in _refusal(monkeypatch, f"{deepest}x", name)
    deepest.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deepest))
    check_room_for(name)
    with scratch_folder() as scratch, socket.socket(socket.AF_UNIX) as listening:
        (scratch / name).parent.mkdir(exist_ok=True)
        listening.bind(str(scratch / name))
    shutil.rmtree(folder)


def _refusal(monkeypatch, folder, name):
    monkeypatch.setattr(tempfile, "tempdir", folder)
    with pytest.raises(ConfigError) as refused:
        check_room_for(name)
    return str(refused.value)
