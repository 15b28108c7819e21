import subprocess
import sys


def test_the_report_is_a_command(make_run, tmp_path):
    make_run("one", {"knn": 0.5})
    command = [sys.executable, "-m", "orchestra_flwr.experiments", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"report: {tmp_path / 'report.html'}\n"
    assert (tmp_path / "report.md").is_file()
