import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def results_of(folder, name, *arguments):
    """What a benchmark writes."""
    subprocess.run(
        [sys.executable, BENCHMARKS / f"{name}.py", *arguments],
        env={**os.environ, "ORCHESTRA_RESULTS": str(folder)},
        check=True,
    )
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.slow
def test_first_steps_are_timed_in_the_server_on_ray_and_in_a_worker(tmp_path):
    result = results_of(tmp_path, "start", "--repeats", "1")
    for name, (seconds,) in result["runs"].items():
        assert 0 < seconds < 120 and result[name] == seconds
    # A run does all that a worker does, and evaluates, and clusters.
    assert result["worker_start_s"] < result["first_step_inline_s"]


@pytest.mark.slow
def test_an_evaluation_is_timed_beside_its_passes(tmp_path):
    """Whether it takes longer is not asked: of one round beside other tests that may fail."""
    result = results_of(tmp_path, "evaluation_share", "--rounds", "1", "--width", "8")
    *_, passes, evaluation = result["seconds"].values()
    assert result["evaluation_ratio"] == evaluation / passes > 0
