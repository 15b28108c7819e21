"""What differentially private centroids cost and are worth, with and without a projection.

    python benchmarks/private_clustering.py

20 clients with unit vectors of 512 dimensions around 3 of 10 true centres each, clustered into at
most 8 a client. Worth: the best cosine of a client's centroids to its true centres, and how well
the global clusters that the server makes of all clients' centroids tell the true ones apart
(normalised mutual information of the assignments of fresh points; 1 is perfectly, 0 not at all).
Cost: seconds of one clustering on one thread.
"""

import itertools
import math
import statistics
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from common import write
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from orchestra_flwr.clustering.private_kmeans import private_clustering
from orchestra_flwr.clustering.solvers.alternating import global_clustering
from orchestra_flwr.privacy.accounting import calibrate

FEATURES, CENTRES, CLUSTERS, CLIENTS, DELTA, SEEDS = 512, 10, 8, 20, 1e-3, 10
COLUMNS = ("n", "epsilon", "dimensions", "centroids", "cosine", "information", "seconds")


class Clients:
    """Points of all clients around true centres, and fresh ones to be assigned."""

    def __init__(self, n: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.centres = F.normalize(self._normal(CENTRES), dim=1)
        self.n = n

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(n, 512) points of a client and its (3, 512) centres."""
        for _ in range(CLIENTS):
            indices = torch.randperm(CENTRES, generator=self.generator)[:3]
            chosen = indices[torch.randint(3, (self.n,), generator=self.generator)]
            yield self.around(chosen), self.centres[indices]

    def around(self, chosen: Tensor) -> Tensor:
        spread = self._normal(len(chosen)) / math.sqrt(FEATURES)
        return F.normalize(self.centres[chosen] + spread, dim=1)

    def information(self, centroids: Tensor) -> float:
        """How much the assignments to global clusters of these centroids tell, 0 to 1."""
        chosen = torch.randint(CENTRES, (1000,), generator=self.generator)
        global_centroids = global_clustering(
            centroids, torch.zeros(2 * CENTRES, FEATURES), self.generator
        )
        assigned = (self.around(chosen) @ global_centroids.T).argmax(1)
        return float(normalized_mutual_info_score(chosen, assigned))

    def _normal(self, rows: int) -> Tensor:
        return torch.randn(rows, FEATURES, generator=self.generator)


def measure(n: int, epsilon: float, dimensions: int | None) -> dict[str, float]:
    mechanism = calibrate(epsilon, DELTA)
    cosines, rows, seconds, information = [], [], [], []
    for seed in range(SEEDS):
        clients, sent = Clients(n, seed), []
        for number, (points, centres) in enumerate(clients):
            key = (CLIENTS * seed + number).to_bytes(32)
            started = time.perf_counter()
            centroids = private_clustering(points, CLUSTERS, mechanism, key, dimensions=dimensions)
            seconds.append(time.perf_counter() - started)
            rows.append(len(centroids))
            cosines.append(float((centres @ centroids.T).amax(1).mean()) if len(centroids) else 0.0)
            sent.append(centroids)
        information.append(clients.information(torch.cat(sent)))
    return {
        "n": n,
        "epsilon": epsilon,
        "dimensions": dimensions or FEATURES,
        "centroids": statistics.mean(rows),
        "cosine": statistics.mean(cosines),
        "information": statistics.mean(information),
        "information_deviation": statistics.stdev(information),
        "seconds": statistics.median(seconds),
    }


def main() -> None:
    torch.set_num_threads(1)
    results = []
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for one in itertools.product((128, 500), (10.0, 0.8), (None, 256, 128, 64, 32)):
        results.append(measure(*one))
        print(f"| {' | '.join(f'{results[-1][column]:.3g}' for column in COLUMNS)} |", flush=True)
    write("private_clustering", {"results": results})


if __name__ == "__main__":
    main()
