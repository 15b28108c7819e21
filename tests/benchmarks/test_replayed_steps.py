import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_steps_of_clients_in_threads_are_timed(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "replayed_steps.py", "--model", "convnet", "--steps", "3",
         "--clients", "1", "2"],
        env={**os.environ, "ORCHESTRA_RESULTS": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )  # fmt: skip
    milliseconds = json.loads((tmp_path / "replayed_steps.json").read_text())["milliseconds"][
        "float32"
    ]
    assert set(milliseconds) == {"1", "2"} and all(
        duration > 0 for duration in milliseconds.values()
    )
    assert f"| 2 | {milliseconds['2']:.2f} |" in done.stdout
