"""Global clustering of 800 x 512 local centroids into 128: ours beside 500 steps of SGD.

And a client's local clustering, of 128 x 512 features into 8.

    python benchmarks/global_clustering.py

Worth: the similarity that an equal-mass assignment transports (the objective of optimal transport,
regularised as in the paper), and the published code's own loss, the lower the better.
"""

from functools import partial

import torch
import torch.nn.functional as F
from common import in_turns, table, write
from torch import Tensor

from orchestra_flwr.clustering.local_clusters import local_clustering
from orchestra_flwr.clustering.sinkhorn_knopp import SHARPNESS, sinkhorn
from orchestra_flwr.clustering.solvers.alternating import global_clustering
from orchestra_flwr.clustering.solvers.gradient import gradient_clustering

N, DIM, G, TRUE = 800, 512, 128, 160


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kinds() -> dict[str, Tensor]:
    """Local centroids around true directions, without any structure, and of few dimensions."""
    true = torch.randn(TRUE, DIM, generator=generator(0))
    chosen = torch.randint(0, TRUE, (N,), generator=generator(1))
    noise = torch.randn(N, DIM, generator=generator(2))
    flat = torch.randn(N, 20, generator=generator(3)) @ torch.randn(20, DIM, generator=generator(4))
    points = {"around 160 directions": true[chosen] + 0.8 * noise, "noise": noise, "flat": flat}
    return {name: F.normalize(rows, dim=1) for name, rows in points.items()}


def objective(points: Tensor, centroids: Tensor) -> float:
    cosines = points @ centroids.T
    plan, _ = sinkhorn(cosines)
    return float((plan * (cosines - plan.log() / SHARPNESS)).sum())


def published_loss(points: Tensor, centroids: Tensor) -> float:
    cosines = points @ centroids.T
    wanted = sinkhorn(cosines)[0].float()
    return -float(F.cosine_similarity(wanted, F.softmax(cosines / 0.1, dim=1), dim=1).mean())


def main() -> None:
    torch.set_num_threads(1)
    results, rows = [], []
    for name, points in kinds().items():
        none, noise = torch.zeros(G, DIM), 0.02 * torch.randn(N, DIM, generator=generator(5))
        last = global_clustering(points + noise, none, generator(1))
        solvers = {
            "ours": partial(global_clustering, points, none),
            "ours, later rounds": partial(global_clustering, points, last, damping=0),
            "published": partial(gradient_clustering, points, none),
        }
        for solver, solve in solvers.items():
            rounds = 1 if solver == "published" else 9
            seconds = in_turns({solver: partial(solve, generator(0))}, rounds, rounds // 4)
            centroids = solve(generator(0))
            worth = objective(points, centroids), published_loss(points, centroids)
            ms = 1e3 * seconds[solver]
            rows.append((name, solver, f"{ms:.0f}", f"{worth[0]:.4f}", f"{worth[1]:.4f}"))
            results.append(
                {
                    "points": name,
                    "solver": solver,
                    "ms": ms,
                    "objective": worth[0],
                    "loss": worth[1],
                }
            )
    table(("points", "solver", "ms", "objective (more)", "published loss (less)"), rows)
    features = F.normalize(torch.randn(128, DIM, generator=generator(0)), dim=1)
    local = in_turns({"local": partial(local_clustering, features, 8, generator(0), k_min=2)}, 30)
    print(f"local clustering: {1e3 * local['local']:.1f} ms")
    write(
        "global_clustering",
        {
            "global_clustering_ms": max(x["ms"] for x in results if x["solver"] != "published"),
            "local_clustering_ms": 1e3 * local["local"],
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
