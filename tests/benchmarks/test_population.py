import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow  # a start of Ray
def test_what_a_round_costs_is_measured(tmp_path):
    """The process of one population."""
    command = [sys.executable, str(BENCHMARKS / "population.py"), "--clients=50", "--rounds=2"]
    done = subprocess.run(
        [*command, f"--folder={tmp_path}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])["exchange"]) == 2
