import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from orchestra_flwr import __version__
from orchestra_flwr.experiments.__main__ import main


def test_the_report_is_a_command(make_run, tmp_path, capsys):
    make_run("one", {"knn": 0.5})
    (script,) = entry_points(group="console_scripts", name="orchestra-report")
    assert script.load()([f"folder={tmp_path}"]) == 0
    assert capsys.readouterr() == (f"report: {tmp_path / 'report.html'}\n", "")
    assert (tmp_path / "report.md").is_file()


def test_a_folder_in_the_home_folder_is_found_as_by_all_commands(
    make_run, tmp_path, monkeypatch, capsys
):
    """Shells leave the `~` in `folder=~/runs` alone."""
    monkeypatch.setenv("HOME", str(tmp_path))
    make_run("runs/one", {"knn": 0.5})
    assert main(["folder=~/runs"]) == 0
    assert capsys.readouterr() == (f"report: {tmp_path / 'runs' / 'report.html'}\n", "")


def test_the_report_knows_its_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"orchestra-flwr {__version__}\n"


@pytest.mark.slow
def test_a_report_that_is_stopped_is_one_line(make_run, tmp_path):
    """While it reads records that do not come to an end."""
    records = make_run("one", None) / "metrics.jsonl"
    records.unlink()
    os.mkfifo(records)
    command = [sys.executable, "-m", "orchestra_flwr.experiments", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with records.open("wb"):  # which waits until it reads
            process.send_signal(signal.SIGINT)
        # A signal from just before it waits for data is noticed when the wait ends.
        said = process.communicate(timeout=60)
    assert said == (b"", b"stopped; the same command starts over\n")
    assert process.returncode == 130
