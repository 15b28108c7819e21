"""The line through what was measured, and the verdict; a federation's soak itself is slow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MINUTES = np.arange(10, 60) + 0.5


@pytest.fixture
def soak(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak

    return soak


def test_a_leak_is_found_in_noise_and_projected(soak):
    """3 MB an hour on top of 100 MB, with noise of .2 MB."""
    rng = np.random.default_rng(0)
    values = 100e6 + 3e6 * MINUTES / 60 + rng.normal(0, 2e5, len(MINUTES))
    line = soak.fit(MINUTES, values, least=20e6)
    assert line.verdict == "growing"
    assert line.per_hour == pytest.approx(3e6, abs=3 * line.error)
    assert line.in_24_hours == pytest.approx(line.level + 24 * line.per_hour)
    assert line.in_24_hours == pytest.approx(175e6, rel=0.15)


@pytest.mark.parametrize(
    "values",
    [
        np.full(len(MINUTES), 12.0),
        100e6 + 5e6 * (MINUTES % 7 > 3),  # a sawtooth, as a garbage collector draws it
        100e6 - 1e6 * MINUTES,
        100e6 + 0.1e6 * MINUTES / 60,  # sure, but 2.4 MB a day
    ],
    ids=["constant", "sawtooth", "falling", "negligible"],
)
def test_what_is_no_leak_is_flat(soak, values):
    assert soak.fit(MINUTES, values, least=20e6).verdict == "flat"


def test_a_slow_wave_is_not_taken_for_a_leak(soak):
    """Neighbouring minutes are alike: counted as independent, most random walks would `grow`."""
    verdicts = []
    for seed in range(40):
        steps = np.random.default_rng(seed).normal(0, 1e6, len(MINUTES))
        values = np.empty_like(steps)
        level = 0.0
        for i, step in enumerate(steps):
            level = values[i] = 0.8 * level + step
        verdicts.append(soak.fit(MINUTES, 100e6 + values, least=20e6).verdict)
    assert verdicts.count("growing") <= 4


def test_a_few_minutes_give_no_verdict(soak):
    assert soak.fit([0.5, 1.5], [1, 2], least=0).verdict == "too short"


def test_samples_become_means_of_minutes(soak):
    assert soak.by_minute([(0.1, 1), (0.9, 3), (2.2, 5)]) == [(0.5, 2), (2.5, 5)]


def test_a_process_is_looked_at(soak, tmp_path):
    """This one: an open file more is a file more, and one that has ended is None."""
    before = soak.look(os.getpid())
    with (tmp_path / "open").open("w"):
        after = soak.look(os.getpid())
    assert after["files"] == before["files"] + 1
    assert 0 < after["pss"] <= after["rss"] and after["threads"] >= 1
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert soak.look(ended.pid) is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_soak_leaves_figures_and_a_picture(tmp_path):
    subprocess.run(
        [sys.executable, BENCHMARKS / "soak.py", "minutes=1.5", "pause=0", "clients=2"],
        env={**os.environ, "ORCHESTRA_RESULTS": str(tmp_path)},
        check=True,
    )
    result = json.loads((tmp_path / "soak.json").read_text())
    assert result["rounds"] >= 1 and result["environment"]["commit"]
    assert {"server", "superlink", "app", "client", "supernode"} <= set(result["fits"]["rss"])
    assert set(result["fits"]["disk"]) == {"run", "state", "tmp"}
    assert (tmp_path / "soak.png").stat().st_size > 10_000
