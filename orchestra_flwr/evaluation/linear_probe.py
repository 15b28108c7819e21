"""Multinomial logistic regression on frozen features, run to convergence: the linear probe."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from orchestra_flwr.evaluation.features import check_labelled
from orchestra_flwr.training.devices import torch_threads

log = logging.getLogger(__name__)

PENALTY = 1e-4
MAX_ITERATIONS = 500
TOLERANCE = 1e-5  # largest entry of the gradient; about where float32 ends
HISTORY = 20  # pairs of steps and gradients that L-BFGS remembers
# Multiplications of a pass over the features up to which one thread is fastest: hundreds of passes
# of a millisecond each are mostly threads that wait for each other, and longer on a busy machine.
ONE_THREAD = 10**8


@dataclass(frozen=True)
class LinearProbe:
    """A trained probe.

    Attributes:
        weight: (K, dim), for features as they are (the standardisation is folded in).
        bias: (K,).
        classes: (K,) the classes that the training labels hold, ascending.
        loss: the objective at the end: mean cross-entropy and the penalty.
    """

    weight: Tensor
    bias: Tensor
    classes: Tensor
    loss: float

    def logits(self, features: Tensor) -> Tensor:
        """(N, K) of features (N, dim)."""
        return features.float() @ self.weight.T + self.bias

    def predict(self, features: Tensor) -> Tensor:
        """Classes (N,) of features (N, dim)."""
        return self.classes[self.logits(features).argmax(1)]


def linear_accuracy(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor
) -> float:
    """Fraction of the test features that a probe fitted to the training features gets right.

    A test image of a class that no training label holds counts as wrong.

    Args:
        train: (N, dim) features, finite.
        train_labels: (N,) classes from 0.
        test: (M, dim) features on the same device.
        test_labels: (M,) classes from 0.

    Raises:
        ValueError: shapes do not fit, or a feature is not finite.
    """
    check_labelled("probe's test set", test, test_labels)
    probe = fit_linear_probe(train, train_labels)
    right = probe.predict(test) == test_labels.to(test.device)
    return float(right.double().mean())


def fit_linear_probe(features: Tensor, labels: Tensor, penalty: float = PENALTY) -> LinearProbe:
    """Fits multinomial logistic regression by full-batch L-BFGS; deterministic.

    The objective is mean cross-entropy + penalty / 2 * |weight|^2 on features that were
    standardised by their own mean and deviation, without a penalty on the bias. That is
    scikit-learn's with C = 1 / (penalty N). The default of 1e-4 (C = .2 for 50,000 images, 7 for
    1,400) is small enough not to cost accuracy with many labels, and makes the optimum unique
    where the classes can be separated.

    scikit-learn's own works on the CPU, in float64 and in the features' own coordinates, where
    L-BFGS needs 5 to 10 times the steps.

    The published probe (50 epochs of SGD at lr 30 on features of any scale) depends on its
    schedule; this one depends on the features only.

    Args:
        features: (N, dim), finite. Constant dimensions are ignored.
        labels: (N,) classes from 0; some may be missing.
        penalty: above 0.

    Raises:
        ValueError: shapes do not fit, or a feature is not finite.
    """
    return next(fit_linear_probes(features, labels, (penalty,)))


def fit_linear_probes(
    features: Tensor, labels: Tensor, penalties: Sequence[float]
) -> Iterator[LinearProbe]:
    """:func:`fit_linear_probe` with each penalty; what they share is computed once."""
    check_labelled("probe's training set", features, labels)
    classes, targets = torch.unique(labels.to(features.device), return_inverse=True)
    few = features.numel() * len(classes) <= ONE_THREAD
    with torch_threads(1) if few else nullcontext():
        mean, scale = _standardisation(features)
        x = (features.float() - mean.float()) * scale.float()
        variances, axes = torch.linalg.eigh((x.T @ x).double() / len(x))
    for penalty in penalties:
        with torch_threads(1) if few else nullcontext():
            objective = _Objective(
                x, targets, len(classes), penalty=penalty, variances=variances, axes=axes
            )
            loss, solution = _minimise(objective)
            weight, bias = objective.parameters(solution)
        weight = weight.double() * scale
        shift = bias.double() - weight @ mean.float().double()  # as it was subtracted
        yield LinearProbe(weight.float(), shift.float(), classes, loss)


def best_penalty(
    features: Tensor, labels: Tensor, penalties: Sequence[float], folds: int, seed: int
) -> float:
    """The penalty with the least mean cross-entropy of features left out, by cross-validation.

    In a fold, which trains on fewer features, a penalty is as much larger: the C of
    scikit-learn is the same.

    Args:
        features: (N, dim), finite.
        labels: (N,) classes from 0, each of at least `folds` features.
        penalties: candidates for a fit on all features.
        folds: equal parts, each with its share of every class.
        seed: of the parts.
    """
    from sklearn.model_selection import StratifiedKFold

    losses = torch.zeros(len(penalties), dtype=torch.float64)
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    for train, test in splits.split(np.zeros(len(labels)), labels.cpu()):
        fewer = [penalty * len(labels) / len(train) for penalty in penalties]
        for number, probe in enumerate(fit_linear_probes(features[train], labels[train], fewer)):
            targets = torch.searchsorted(probe.classes, labels[test].to(probe.classes.device))
            losses[number] += float(cross_entropy(probe.logits(features[test]), targets))
    return penalties[int(losses.argmin())]


class _Objective:
    """The probe's objective and gradient, as scipy's minimisers take them: flat float64 vectors.

    A vector holds, class by class, the weights in other coordinates, into which the features are
    taken once, and the bias in its own unit. There the objective's curvature at zero is the
    identity: the Hessian is covariance / K + penalty for each class, up to the classes' coupling.
    Features are strongly correlated, and in their own coordinates L-BFGS needs 5 to 10 times the
    steps. The optimum stays the same: the penalty, a factor of each weight in these coordinates, is
    that on the weights themselves. Passes over the data are in float32, the loss is summed in
    float64.

    Args:
        x: (N, dim) standardised features.
        targets: (N,) rows of the classes.
        classes: K.
        penalty: of half the weights' squares.
        variances: (dim,) along the axes.
        axes: (dim, dim) orthonormal columns, the eigenvectors of the features' covariance.
    """

    def __init__(
        self,
        x: Tensor,
        targets: Tensor,
        classes: int,
        *,
        penalty: float,
        variances: Tensor,
        axes: Tensor,
    ) -> None:
        self.targets = targets[None]
        self.shape = (classes, x.shape[1] + 1)
        scales = (variances.clamp(min=0) / classes + penalty).rsqrt()
        self.basis: Tensor = (scales[:, None] * axes.T).to(x)
        self.x = x @ self.basis.T
        self.penalty = penalty * self.basis.square().sum(1)
        self.bias_unit = classes**0.5  # curvature 1 at zero for the bias, too

    def parameters(self, vector: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        """Weights (K, dim) and biases (K,) at a vector."""
        weight, bias = self._split(vector)
        return weight @ self.basis, bias

    @torch.no_grad()
    def __call__(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Mean cross-entropy and L2 term, and their gradient."""
        weight, bias = self._split(vector)
        # (K, N): few and long rows, which are faster than many short ones.
        log_p = torch.addmm(bias[:, None], weight, self.x.T).log_softmax(0)
        fit = -log_p.gather(0, self.targets).mean(dtype=torch.float64)
        loss = fit + (self.penalty * weight.square()).sum(dtype=torch.float64) / 2
        errors = log_p.exp_().scatter_add_(0, self.targets, -torch.ones_like(log_p[:1]))
        errors /= len(self.x)
        slopes = errors @ self.x + self.penalty * weight
        gradient = torch.cat([slopes, errors.sum(1, keepdim=True) * self.bias_unit], dim=1)
        return float(loss), gradient.double().cpu().numpy().reshape(-1)

    def _split(self, vector: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        table = torch.from_numpy(vector.reshape(self.shape)).to(self.x)
        return table[:, :-1], table[:, -1] * self.bias_unit


def _standardisation(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and factor of each dimension, float64; 0 for constant ones, rounding errors aside."""
    exact = features.double()
    mean, deviation = exact.mean(0), exact.std(0, correction=0)
    constant = deviation <= 1e-6 * exact.square().mean(0).sqrt()
    return mean, torch.where(constant, 0.0, 1 / deviation.where(~constant, torch.ones(()).to(mean)))


def _minimise(objective: _Objective) -> tuple[float, NDArray[np.float64]]:
    """The least value and where it is taken.

    By scipy: torch's L-BFGS imports the whole compiler, 6 seconds in every process that evaluates,
    and keeps its history in float32, which costs it half as many steps again.
    """
    # Clients, which only score features, do without it.
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):  # of scipy's own steps on short vectors
        result = minimize(
            objective,
            np.zeros(objective.shape).reshape(-1),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": MAX_ITERATIONS, "gtol": TOLERANCE, "ftol": 0.0, "maxcor": HISTORY},
        )
    # Where float32 ends, line searches may fail a little above the tolerance: that is no matter.
    steepest = float(np.abs(result.jac).max())
    if steepest > 100 * TOLERANCE:
        log.warning("linear probe stopped before it converged (gradient %.1e)", steepest)
    return float(result.fun), result.x
