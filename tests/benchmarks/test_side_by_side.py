import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_clients_side_by_side_and_the_papers_run_from_it(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "side_by_side.py", "--model", "convnet", "--rounds", "1",
         "--epochs", "1", "--clients", "2"],
        env={**os.environ, "ORCHESTRA_RESULTS": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )  # fmt: skip
    report = json.loads((tmp_path / "side_by_side.json").read_text())
    best = max(report["steps_per_second"]["2"], report["steps_per_second_in_threads"]["2"])
    # 100 rounds of 50 clients with 10 epochs of 31 steps.
    minutes = 100 * 50 * 10 * 31 / best / 60
    assert float(done.stdout.split("|")[-2]) == pytest.approx(minutes, abs=0.06)
