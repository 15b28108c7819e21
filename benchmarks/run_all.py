"""Runs every benchmark that this machine can run, and gathers the figures: make bench.

    python benchmarks/run_all.py

Each one runs as a process of its own, one after another, and writes its own results/<name>.json;
the figures go into results/latest.json and, with their goals, into one table.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from common import RESULTS, table, write

HERE = Path(__file__).parent
LIMIT = 300  # seconds of one benchmark
LONGER = {"whole_run.py": 1200}  # three runs of minutes
GPU = [
    "local_step.py --device cuda",
    "augmentation.py --device cuda",
    "side_by_side.py --device cuda",
    "replayed_steps.py --device cuda",
]
CPU = [
    "local_step.py",
    "whole_run.py",
    "start.py",
    "evaluation_share.py",
    "augmentation.py",
    "global_clustering.py",
    "evaluation.py",
    "wire.py",
    "time_to_accuracy.py",
    "overhead.py",
    "population.py",
]
GOALS = {
    "step_fp32_ratio": "at least 1.8",
    "step_bf16_ratio": "at least 3",
    "whole_fp32_ratio": "at least 2",
    "whole_bf16_ratio": "at least 3",
    "augment_ratio": "at least 8",
    "first_step_inline_s": "at most 6",
    "first_step_ray_s": "at most 12",
    "worker_start_s": "at most 4",
    "evaluation_ratio": "at most 1.2",
    "overhead_s": "at most 1.0",
    "server_rss_gb": "at most 1.2",
    "bytes_up_mb": "at most 11",
    "global_clustering_ms": "at most 50",
    "evaluation_s": "at most 10",
    "population_ratio": "at most 1.1",
}
GPU_GOALS = {
    "gpu_step_ms": "at most 1.0",
    "gpu_augment_ms": "at most a twentieth of the step",
    "gpu_paper_minutes": "at most 10",
}


def main() -> None:
    failed = []
    started = time.time()
    on_gpu = torch.cuda.is_available()
    goals = GOALS | (GPU_GOALS if on_gpu else {})
    for command in CPU + (GPU if on_gpu else []):
        print(f"\n== {command}", flush=True)
        name, *arguments = command.split()
        try:
            limit = LONGER.get(name, LIMIT)
            subprocess.run([sys.executable, HERE / name, *arguments], check=True, timeout=limit)
        except subprocess.SubprocessError as error:
            print(f"failed: {error}")
            failed.append(command)
    figures: dict[str, float | None] = {}
    for file in sorted(RESULTS.glob("*.json")):
        # What an earlier call left is not what this one measured.
        if file.stem != "latest" and file.stat().st_mtime >= started:
            values = json.loads(file.read_text())
            figures |= {key: values[key] for key in goals if key in values}
    write("latest", {**figures, "seconds": time.time() - started, "failed": failed})
    print()
    table(
        ("figure", "measured", "goal"),
        [
            (key, "-" if figures.get(key) is None else f"{figures[key]:.3g}", goal)
            for key, goal in goals.items()
        ],
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
