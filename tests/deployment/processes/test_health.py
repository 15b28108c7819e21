"""What a health check finds of a client."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from orchestra_flwr.deployment.processes.supernode import show_health

DOCKERFILE = (Path(__file__).parents[3] / "Dockerfile").read_text()


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / ".local/state/orchestra_flwr/kitchen"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def check(tmp_path):
    """The health check of the client's image; its exit code and output."""
    command = re.search(r'CMD \["sh", "-c", "(find|cat)(.*alive.*)"\]', DOCKERFILE)
    assert command

    def run():
        line = command[1] + command[2]
        done = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    return run


def test_a_client_that_never_came_is_not_well(check):
    assert check() == (1, "")


def test_a_client_is_well_as_long_as_it_takes_part(folder, check):
    show_health(folder, None)
    assert check() == (0, "")
    problem = "data.root=/photos: no such folder"
    show_health(folder, problem)
    assert check() == (1, f"{problem}\n")
    assert (folder / "problem").stat().st_mode & 0o777 == 0o600
    show_health(folder, None)
    assert check() == (0, "")
    minutes_ago = time.time() - 300  # its connection ended
    os.utime(folder / "alive", (minutes_ago, minutes_ago))
    assert check() == (1, "")


def test_a_problem_that_stays_is_written_once(folder):
    """A client that is refused for weeks wrote to its flash card every five seconds."""
    show_health(folder, "its key is not registered")
    written = (folder / "problem").stat()
    show_health(folder, "its key is not registered")
    assert (folder / "problem").stat() == written
    show_health(folder, "its clock is wrong")
    assert (folder / "problem").read_text() == "its clock is wrong\n"


def test_whatever_a_problem_names_is_shown_and_obeyed_by_no_terminal(folder, check):
    """A folder whose name is not UTF-8 ended the SuperNode, again and again."""
    show_health(folder, "data.root=/photos/M\udcfcller: \x1b[2J")
    assert check() == (1, "data.root=/photos/M\\xfcller: \\x1b[2J\n")


def test_a_full_disk_does_not_end_the_client(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    show_health(folder, None)
    assert not (folder / "alive").exists()
