"""The report has a command under its name, and under the name that it had."""

import runpy
import subprocess
import sys

import pytest


def test_the_report_is_a_command(make_run, tmp_path):
    make_run("one", {"knn": 0.5})
    command = [sys.executable, "-m", "orchestra_flwr.experiments", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"report: {tmp_path / 'report.html'}\n"
    assert (tmp_path / "report.md").is_file()


def test_it_has_its_former_name_as_well(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["reporting", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("orchestra_flwr.reporting", run_name="__main__")
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
