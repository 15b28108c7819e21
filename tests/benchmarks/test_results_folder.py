"""Results are in the folder in which `run_all.py` looks for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEASURED = {
    "evaluation": "evaluation.repeated = lambda case: defaultdict(float, case=case)",
    "overhead": (
        "figures = dict(side='ours', wall=[1], exchange=[1], server_cpu=[1], all_cpu=[1],"
        " rss_gb=1, mb_down=1)\n"
        "overhead.in_own_process = lambda script, side, rounds: figures | {'side': side}\n"
        "overhead.step_seconds = lambda: 1"
    ),
    "population": (
        "figures = dict(exchange=[1], server_cpu=[1], all_cpu=[1], client_s=[1], rss_gb=1)\n"
        "population.in_own_process = lambda script, clients, rounds: figures"
    ),
    "wire": (
        "wire.measure = lambda wire: defaultdict(float, wire=wire)\n"
        "wire.trained_on_digits = lambda: ()\n"
        "wire.rounding = lambda wire, block: defaultdict(float, wire=wire, block=block)"
    ),
}


@pytest.mark.parametrize("name", MEASURED)
def test_a_benchmark_writes_where_orchestra_results_says(name, tmp_path):
    """With made-up figures; four of them wrote into the checkout, and a table had none."""
    lines = ["import sys", "from collections import defaultdict", f"import {name}", MEASURED[name]]
    code = "\n".join([*lines, f"sys.argv = ['{name}.py']", f"{name}.main()"])
    settings = {
        "ORCHESTRA_RESULTS": str(tmp_path),
        "PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent}",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **settings}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("| ") and "\n| ---" in done.stdout
    assert json.loads((tmp_path / f"{name}.json").read_text())["environment"]["commit"]
