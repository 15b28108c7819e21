import json
import platform
import subprocess
from pathlib import Path

import torch

import orchestra_flwr
from orchestra_flwr.reporting import environment
from orchestra_flwr.reporting.environment import git_commit


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(
        ["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_versions():
    versions = environment()
    assert versions["orchestra_flwr"] == orchestra_flwr.__version__
    assert versions["python"] == platform.python_version()
    assert str(versions["torch"]).partition("+")[0] == torch.__version__.partition("+")[0]
    assert versions["flwr"]
    assert versions["cores"] >= 1
    assert json.loads(json.dumps(versions)) == versions


def test_commit_of_a_clean_a_changed_and_no_checkout(tmp_path):
    file = tmp_path / "package" / "__init__.py"
    file.parent.mkdir()
    file.write_text("")
    assert git_commit(file) is None
    git(tmp_path, "init", "-q")
    (tmp_path / "other").write_text("")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-qm", "other")
    assert git_commit(file) is None  # lies in a checkout that does not track it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "package")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("")
    assert git_commit(file) == commit
    file.write_text("x = 1\n")
    assert git_commit(file) == commit + "-dirty"


def test_without_git_there_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(Path(orchestra_flwr.__file__)) is None


def test_git_is_asked_once_in_a_process(monkeypatch):
    first = environment()
    monkeypatch.setattr(subprocess, "run", None)
    assert environment() == first
