"""What an exported encoder is measured by: difference from torch's, time, accuracy."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orchestra_flwr.config import ScoresConfig
from orchestra_flwr.evaluation import knn_accuracy, linear_accuracy, voters

Features = Callable[[Tensor], Tensor]  # images (B, C, H, W), uint8, to features (B, dim)
Labelled = tuple[Tensor, Tensor]  # images, classes (N,)

WARM_UP, REPEATS = 3, 20


@torch.inference_mode()
def largest_difference(reference: Features, other: Features, batches: Sequence[Tensor]) -> float:
    """Between features of the same images, as a share of the largest feature of the reference.

    NaN where a feature is not finite.
    """
    expected = torch.cat([reference(images) for images in batches])
    features = torch.cat([other(images) for images in batches])
    return float((features - expected).abs().max() / expected.abs().max())


@torch.inference_mode()
def latency(features: Features, images: Tensor) -> float:
    """Seconds of one batch, the median of several passes after the first ones."""
    seconds = []
    for _ in range(WARM_UP + REPEATS):
        begun = time.perf_counter()
        features(images)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[WARM_UP:])


def accuracies(
    features: Features, train: Labelled, test: Labelled, config: ScoresConfig
) -> dict[str, float]:
    """`knn` and `linear`, fractions of the test images, as :mod:`orchestra_flwr.evaluation` does.

    Raises:
        ValueError: a feature is not finite.
    """
    with torch.inference_mode():
        parts = [
            torch.cat([features(batch) for batch in torch.split(images, config.batch_size)])
            for images, _ in (train, test)
        ]
    bank, queries = ((part.clone(), y) for part, (_, y) in zip(parts, (train, test), strict=True))
    k, temperature = voters(config.knn_k, len(train[1])), config.knn_temperature
    return {
        "knn": knn_accuracy(*bank, *queries, k=k, temperature=temperature),
        "linear": linear_accuracy(*bank, *queries),
    }
