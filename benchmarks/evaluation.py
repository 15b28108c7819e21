"""What the evaluation of given features costs: kNN and linear probe, 50,000 x 512, 10 classes.

    python benchmarks/evaluation.py

Features: rectified random projections of class-structured latent variables, strongly correlated as
a backbone's are; "separable" is probed with 95 % accuracy, "noisy" adds noise and wrong labels. The
probe is fitted twice: its penalty chosen, and fixed; their ratio is of CPU seconds. Every
measurement is done three times, each in a process of its own; figures are medians. CPU seconds are
of all threads: on a shared machine they say more than wall seconds.
"""

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

TRAIN, TEST, DIMENSIONS, CLASSES, REPEATS, THREADS = 50_000, 10_000, 512, 10, 3, 2
CASES = ("separable", "noisy")


def measure(case: str) -> dict[str, float]:
    """In this process: seconds of imports, kNN and probe, and their accuracies."""
    measured: dict[str, float] = {}

    def timed(name: str, work: Callable) -> object:
        cpu, wall = time.process_time(), time.perf_counter()
        result = work()
        measured[f"{name}_s"] = time.perf_counter() - wall
        measured[f"{name}_cpu_s"] = time.process_time() - cpu
        return result

    def load() -> None:
        import orchestra_flwr.evaluation  # noqa: F401

    timed("import", load)
    import torch

    from orchestra_flwr.evaluation import knn_accuracy, linear_accuracy
    from orchestra_flwr.evaluation.linear_probe import PENALTY

    torch.set_num_threads(THREADS)
    train, test = features(case, TRAIN, 0), features(case, TEST, 1)
    measured["knn"] = timed("knn", lambda: knn_accuracy(*train, *test))
    measured["linear"] = timed("linear", lambda: linear_accuracy(*train, *test))
    measured["linear_fixed"] = timed(
        "linear_fixed", lambda: linear_accuracy(*train, *test, PENALTY)
    )
    measured["choice_ratio"] = measured["linear_cpu_s"] / measured["linear_fixed_cpu_s"]
    measured["evaluation_s"] = measured["knn_s"] + measured["linear_s"]
    measured["evaluation_cpu_s"] = measured["knn_cpu_s"] + measured["linear_cpu_s"]
    return measured


def features(case: str, n: int, seed: int) -> tuple:
    """(n, DIMENSIONS) features and their classes."""
    import torch

    fixed = torch.Generator().manual_seed(99)
    centres = 0.55 * torch.randn(CLASSES, 64, generator=fixed)
    first = torch.randn(64, 256, generator=fixed) / math.sqrt(64)
    second = torch.randn(256, DIMENSIONS, generator=fixed) / math.sqrt(256)
    second *= torch.logspace(0.5, -1.5, 256)[:, None]
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    hidden = centres[labels] + torch.randn(n, 64, generator=generator)
    noise = 0.05 * torch.randn(n, DIMENSIONS, generator=generator)
    x = torch.relu(torch.relu(hidden @ first) @ second + noise)
    if case == "noisy":
        x += x.std() * torch.randn(n, DIMENSIONS, generator=generator)
        wrong = torch.rand(n, generator=generator) < 0.2
        labels = torch.where(wrong, (labels + 1) % CLASSES, labels)
    return x, labels


def repeated(case: str) -> dict[str, float | str]:
    runs = []
    for _ in range(REPEATS):
        command = [sys.executable, __file__, case]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout))
    return {"case": case, **{k: statistics.median(run[k] for run in runs) for k in runs[0]}}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    from common import table, write  # not above: a measuring process times what it imports

    results = [repeated(case) for case in CASES]
    columns = ("import", "knn", "linear", "evaluation")
    heads = ("features", "kNN", "linear", "fixed penalty", "CPU of linear / fixed")
    table(
        (*heads, *(f"{column}, s (CPU)" for column in columns)),
        [
            (one["case"],
             *(f"{100 * one[key]:.1f} %" for key in ("knn", "linear", "linear_fixed")),
             f"{one['choice_ratio']:.2f}",
             *(f"{one[f'{column}_s']:.1f} ({one[f'{column}_cpu_s']:.1f})" for column in columns))
            for one in results
        ],
    )  # fmt: skip
    slowest = max(float(one["evaluation_s"]) for one in results)
    write("evaluation", {"evaluation_s": slowest, "results": results})


if __name__ == "__main__":
    main()
