"""The figures that a page says to be those of a benchmark are those of its last run."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/performance.md").read_text()


def result(name):
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())


def test_the_page_of_speed_is_of_the_last_benchmarks():
    latest = result("latest")
    assert f"commit {latest['environment']['commit'][:7]}, an otherwise idle" in PAGE
    assert f"| float32 | 40.9 | 391 | {latest['step_fp32_ratio']:.2f} |" in PAGE
    assert f"| bfloat16 | 54.8 | 31.8 | {latest['whole_bf16_ratio']:.2f} |" in PAGE
    assert f"`engine=inline` | {latest['first_step_inline_s']:.1f} s |" in PAGE
    assert f"| {latest['server_rss_gb']:.2f} GB |" in PAGE


def test_the_ratio_of_a_whole_run_is_that_of_its_seconds():
    whole = result("whole_run")
    for side, seconds in whole["seconds"].items():
        ratio = whole["seconds"]["published"] / seconds
        assert f"| {ratio:.2f} |" in next(
            line for line in PAGE.splitlines() if f"| {seconds:.1f} |" in line and side in line
        )
