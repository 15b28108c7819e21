"""Results are in the folder in which `run_all.py` looks for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Four that once wrote into the checkout whatever ORCHESTRA_RESULTS said, with made-up figures.
MEASURED = {
    "evaluation": "evaluation.repeated = lambda case: defaultdict(float, case=case)",
    "overhead": (
        "figures = dict(side='ours', wall=[1], exchange=[1], server_cpu=[1], all_cpu=[1],"
        " rss_gb=1, mb_down=1)\n"
        "overhead.in_own_process = lambda script, side, rounds: figures | {'side': side}\n"
        "overhead.step_seconds = lambda: 1"
    ),
    "population": (
        "numbers = dict(exchange=[1], server_cpu=[1], all_cpu=[1], client_s=[1], rss_gb=1)\n"
        "population.in_own_process = lambda script, clients, rounds: numbers"
    ),
    "wire": (
        "wire.measure = lambda wire: defaultdict(float, wire=wire)\n"
        "wire.trained_on_digits = lambda: ()\n"
        "wire.rounding = lambda wire, block: defaultdict(float, wire=wire, block=block)"
    ),
}


def test_benchmarks_write_where_orchestra_results_says(tmp_path):
    """In one process, since their imports take most of the time."""
    lines = ["import sys", "from collections import defaultdict"]
    for name, figures in MEASURED.items():
        lines += [f"import {name}", figures, f"sys.argv = ['{name}.py']", f"{name}.main()"]
    settings = {
        "ORCHESTRA_RESULTS": str(tmp_path),
        "PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent}",
    }
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], env={**os.environ, **settings},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n| --- ") >= len(MEASURED)
    for name in MEASURED:
        assert json.loads((tmp_path / f"{name}.json").read_text())["environment"]["commit"]
