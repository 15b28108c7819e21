"""Features of a frozen encoder, and the checks that every evaluation of features shares."""

import math

import torch
from torch import Tensor


def feature_std(features: Tensor) -> float:
    """How spread out features are on the sphere (SimSiam's measure of collapse, Chen & He 2021).

    The standard deviation of each dimension of the L2-normalised features, averaged over the
    dimensions, times sqrt(dim): about 1 for features in all directions, 0 when all are the same.

    Args:
        features: (N, dim).
    """
    normalised = torch.nn.functional.normalize(features.double(), dim=1)
    spread = normalised.std(0, correction=0).mean()
    return float(spread * features.shape[1] ** 0.5)


def effective_rank(features: Tensor) -> float:
    """How many dimensions features fill: exp of the entropy of their normalised singular values.

    From 1, where all features are multiples of one, to min(N, dim). Source: RankMe (Garrido et al.,
    ICML 2023, arXiv 2210.02885), after Roy and Vetterli (2007).

    Args:
        features: (N, dim).
    """
    exact = features.double()
    if not torch.isfinite(exact).all():
        return math.nan  # the evaluations refuse such features
    tall = exact if len(exact) >= exact.shape[1] else exact.T  # the smaller of both products
    values = torch.linalg.eigvalsh(tall.T @ tall).clamp(min=0).sqrt()
    shares = values / values.sum().clamp(min=torch.finfo(values.dtype).tiny)
    return float(torch.special.entr(shares).sum().exp())


def check_labelled(name: str, features: Tensor, labels: Tensor) -> None:
    """Refuses features and labels that cannot be evaluated.

    Args:
        name: what the features are, for the message.
        features: (N, dim).
        labels: (N,) classes, integers from 0.

    Raises:
        ValueError: shapes do not fit, there are no features, or one is not finite.
    """
    if features.ndim != 2 or labels.shape != features.shape[:1] or len(labels) == 0:
        raise ValueError(
            f"{name}: expected features (N, dim) and labels (N,) with N >= 1, "
            f"not {tuple(features.shape)} and {tuple(labels.shape)}"
        )
    if labels.is_floating_point() or int(labels.min()) < 0:
        raise ValueError(f"{name}: labels must be integers from 0")
    bad = int((~torch.isfinite(features)).any(1).sum())
    if bad:
        raise ValueError(f"{name}: {bad} of {len(features)} feature vectors are not finite")
