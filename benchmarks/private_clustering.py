"""What differentially private centroids cost and are worth.

    python benchmarks/private_clustering.py

Unit vectors of 512 dimensions around 5 true centres, clustered into at most 8. Worth: the best
cosine to each true centre, averaged; cost: seconds of one clustering on one thread.
"""

import json
import math
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from orchestra_flwr.clustering import private_clustering
from orchestra_flwr.privacy import calibrate
from orchestra_flwr.reporting import environment

RESULT = Path(__file__).parent / "results" / "private_clustering.json"
DIMENSIONS, CENTRES, CLUSTERS, DELTA, SEEDS = 512, 5, 8, 1e-3, 20


def points(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and the true centres that they lie around."""
    generator = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(CENTRES, DIMENSIONS, generator=generator), dim=1)
    labels = torch.randint(CENTRES, (n,), generator=generator)
    noise = 0.5 / math.sqrt(DIMENSIONS) * torch.randn(n, DIMENSIONS, generator=generator)
    return F.normalize(centres[labels] + noise, dim=1), centres


def measure(n: int, epsilon: float) -> dict[str, float]:
    started = time.perf_counter()
    mechanism = calibrate(epsilon, DELTA)
    calibration = time.perf_counter() - started
    cosines, rows, seconds = [], [], []
    for seed in range(SEEDS):
        features, centres = points(n, seed)
        started = time.perf_counter()
        found = private_clustering(features, CLUSTERS, mechanism, seed.to_bytes(32))
        seconds.append(time.perf_counter() - started)
        rows.append(len(found))
        cosines.append(float((centres @ found.T).amax(1).mean()) if len(found) else 0.0)
    return {
        "n": n,
        "epsilon": epsilon,
        "centroids": statistics.mean(rows),
        "cosine": statistics.mean(cosines),
        "seconds": statistics.median(seconds),
        "calibration_seconds": calibration,
    }


def main() -> None:
    torch.set_num_threads(1)
    results = [measure(n, epsilon) for n in (128, 500) for epsilon in (10.0, 0.8)]
    print("| n | epsilon | centroids | cosine | seconds |\n|---|---|---|---|---|")
    for one in results:
        print(
            f"| {one['n']} | {one['epsilon']:g} | {one['centroids']:.1f} | {one['cosine']:.2f} "
            f"| {one['seconds']:.2f} |"
        )
    RESULT.write_text(json.dumps({"environment": environment(), "results": results}, indent=2))


if __name__ == "__main__":
    main()
