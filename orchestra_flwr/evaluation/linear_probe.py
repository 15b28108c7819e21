"""The linear probe: multinomial logistic regression on frozen features, run to convergence.

Its L2 penalty is chosen by cross-validation on the training features, or fixed.
"""

import functools
import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from orchestra_flwr.evaluation.features import check_labelled
from orchestra_flwr.seeding import torch_generator
from orchestra_flwr.training.devices import torch_threads

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

log = logging.getLogger(__name__)

PENALTY = 1e-4  # of `evaluation.probe=fixed`, and where too few features could choose one
PENALTIES = (
    10.0,
    *(10 ** (-step / 2) for step in range(11)),
)  # candidates, 1 to 1e-5 by half steps
FOLDS = 3
MAX_CHOOSING = 10_000  # features by which a penalty is chosen, drawn where there are more
MAX_ITERATIONS = 500
TOLERANCE = 1e-5  # largest entry of the gradient; about the limit of float32
COARSE_TOLERANCE = 4e-3  # in cross-validation, where penalties differ by far more
HISTORY = 20  # pairs of steps and gradients that L-BFGS remembers
# Multiplications of a pass over the features up to which one thread is fastest: in hundreds of
# passes of a millisecond each, threads mostly wait for each other, longer on a busy machine.
ONE_THREAD = 10**8


@dataclass(frozen=True)
class LinearProbe:
    """A trained probe.

    Attributes:
        weight: (K, dim), for features as they are (the standardisation is folded in).
        bias: (K,).
        classes: (K,) the classes that the training labels hold, ascending.
        loss: the objective at the end: mean cross-entropy and the penalty.
        penalty: of half the weights' squares.
    """

    weight: Tensor
    bias: Tensor
    classes: Tensor
    loss: float
    penalty: float

    def logits(self, features: Tensor) -> Tensor:
        """(N, K) of features (N, dim)."""
        return features.float() @ self.weight.T + self.bias

    def predict(self, features: Tensor) -> Tensor:
        """Classes (N,) of features (N, dim)."""
        return self.classes[self.logits(features).argmax(1)]

    def accuracy(self, features: Tensor, labels: Tensor) -> float:
        """Fraction of features (N, dim) whose label (N,) is predicted."""
        return float((self.predict(features) == labels.to(features.device)).double().mean())


def linear_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    penalty: float | None = None,
) -> float:
    """Fraction of the test features, (M, dim) on the same device, that a probe gets right.

    A test image of a class that no training label holds counts as wrong. The other arguments and
    errors are those of :func:`fit_linear_probe`.
    """
    check_labelled("probe's test set", test, test_labels)
    return fit_linear_probe(train, train_labels, penalty).accuracy(test, test_labels)


def penalty_of(probe: str) -> float | None:
    """The penalty of `evaluation.probe`: None, by cross-validation, unless it is `fixed`."""
    return PENALTY if probe == "fixed" else None


def standard_error(accuracy: float, count: int) -> float:
    """The binomial standard error of an accuracy on `count` test images."""
    return math.sqrt(accuracy * (1 - accuracy) / count)


def fit_linear_probe(
    features: Tensor, labels: Tensor, penalty: float | None = None, *, seed: int = 0
) -> LinearProbe:
    """Fits multinomial logistic regression by full-batch L-BFGS; deterministic.

    The objective is mean cross-entropy + penalty / 2 * |weight|^2 on features that were
    standardised by their own mean and deviation, without a penalty on the bias. It is
    scikit-learn's objective with C = 1 / (penalty N).

    scikit-learn's own solver works on the CPU, in float64 and in the features' own coordinates.

    Args:
        features: (N, dim), finite. Constant dimensions are ignored.
        labels: (N,) classes from 0; some may be missing.
        penalty: above 0. None: it is chosen among `PENALTIES` by the cross-entropy of features left
            out in 3-fold cross-validation; 1e-4 where fewer than two classes have two features.
            With N > 10,000 features, 10,000 of them choose the penalty, which is then scaled by
            10,000 / N: scikit-learn's C stays the same.

    Raises:
        ValueError: shapes do not fit, or a feature is not finite.
    """
    check_labelled("probe's training set", features, labels)
    classes, targets = torch.unique(labels.to(features.device), return_inverse=True)
    few = features.numel() * len(classes) <= ONE_THREAD
    with torch_threads(1) if few else nullcontext():
        mean, scale = _standardisation(features)
        x = (features.float() - mean.float()) * scale.float()
        variances, axes = torch.linalg.eigh((x.T @ x).double() / len(x))
        start = None
        if penalty is None:
            penalty, start = _chosen_penalty(x @ axes.to(x), targets, variances, seed)
        scales = _scales(variances, len(classes), penalty)
        basis: Tensor = (scales[:, None] * axes.T).to(x)
        objective = _Objective(x @ basis.T, targets, penalty * basis.square().sum(1), len(classes))
        loss, solution = _minimise(objective, start, TOLERANCE)
        coordinates, bias = objective.parameters(solution)
        weight = (coordinates @ basis).double() * scale
        shift = bias.double() - weight @ mean.float().double()  # as it was subtracted
    return LinearProbe(weight.float(), shift.float(), classes, loss, penalty)


def _chosen_penalty(
    x: Tensor, targets: Tensor, variances: Tensor, seed: int
) -> tuple[float, NDArray[np.float64] | None]:
    """The penalty with the least mean cross-entropy of left-out features.

    Penalties are tried from the largest down until the cross-entropy rises; each fold's fit starts
    where its last one ended. All folds share the principal axes. Penalties are scaled so that
    scikit-learn's C stays the same: larger in a fold, which trains on fewer features, and smaller
    for all features than for those that choose.

    Args:
        x: (N, dim) standardised features along their principal axes.
        targets: (N,) rows of the classes.
        variances: (dim,) along the axes.

    Returns:
        The penalty, and where the fit on all features starts: the mean of the folds' solutions.
    """
    count, classes = len(x), int(targets.max()) + 1
    share = min(1.0, MAX_CHOOSING / count)
    if count > MAX_CHOOSING:
        drawn = torch.randperm(count, generator=torch_generator(seed, "probe", "drawn"))
        drawn = drawn[:MAX_CHOOSING].to(x.device)
        x, targets = x[drawn], targets[drawn]
    counts = targets.bincount(minlength=classes)
    if int((counts > 1).sum()) < 2:
        return PENALTY, None
    folds = _folds(targets, seed)
    weights = [x.new_zeros(len(counts), x.shape[1] + 1) for _ in range(FOLDS)]
    best, chosen, start = float("inf"), PENALTY, None
    for penalty in PENALTIES:
        scales = _scales(variances, len(counts), penalty).to(x)
        scaled, units = x * scales, torch.cat([scales, scales.new_ones(1)])
        loss = 0.0
        for fold in range(FOLDS):
            inside = folds != fold
            stronger = penalty * len(x) / int(inside.sum())
            objective = _Objective(
                scaled[inside], targets[inside], stronger * scales.square(), len(counts)
            )
            start_here = (weights[fold] / units).double().cpu().numpy().reshape(-1)
            _, solution = _minimise(objective, start_here, COARSE_TOLERANCE)
            coordinates, bias = objective.parameters(solution)
            weights[fold] = objective.table(solution) * units
            # No fit can learn a class that has no feature inside.
            outside = ~inside & (targets[inside].bincount(minlength=len(counts)) > 0)[targets]
            logits = scaled[outside] @ coordinates.T + bias
            loss += float(cross_entropy(logits, targets[outside], reduction="sum"))
        if loss >= best:
            break
        mean = torch.stack(weights).mean(0) / units
        best, chosen, start = loss, penalty, mean.double().cpu().numpy().reshape(-1)
    return chosen * share, start


def _folds(targets: Tensor, seed: int) -> Tensor:
    """(N,) the fold of each feature, drawn by the seed; every fold has its share of each class."""
    order = torch.randperm(len(targets), generator=torch_generator(seed, "probe", "folds"))
    order = order[targets.cpu()[order].argsort(stable=True)]
    folds = torch.empty_like(order)
    folds[order] = torch.arange(len(order)) % FOLDS
    return folds.to(targets.device)


def _scales(variances: Tensor, classes: int, penalty: float) -> Tensor:
    """(dim,) units of the weights along the principal axes in which the curvature at zero is 1."""
    return (variances.clamp(min=0) / classes + penalty).rsqrt()


class _Objective:
    """The probe's objective and gradient, as scipy's minimisers take them: flat float64 vectors.

    A vector holds, class by class, the weights in other coordinates, to which the features are
    transformed once, and the bias in its own unit. There the objective's curvature at zero is the
    identity: the Hessian is covariance / K + penalty for each class, up to the classes' coupling.
    Features are strongly correlated, and in their own coordinates L-BFGS needs 5 to 10 times the
    steps. The optimum stays the same, because each coordinate's penalty equals that of the weights
    themselves. Passes over the data are in float32, the loss is summed in float64.

    Args:
        x: (N, dim) features in these coordinates.
        targets: (N,) rows of the K classes.
        penalty: (dim,) of half the square of a weight in each coordinate.
    """

    def __init__(self, x: Tensor, targets: Tensor, penalty: Tensor, classes: int) -> None:
        self.targets = targets[None]
        self.shape = (classes, x.shape[1] + 1)
        self.x = x
        self.penalty = penalty
        self.bias_unit = classes**0.5  # curvature 1 at zero for the bias, too

    def table(self, vector: NDArray[np.float64]) -> Tensor:
        """A vector as (K, dim + 1): weights, and the bias in its unit."""
        return torch.from_numpy(vector.reshape(self.shape)).to(self.x)

    def parameters(self, vector: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        """Weights (K, dim) in these coordinates and biases (K,) at a vector."""
        table = self.table(vector)
        return table[:, :-1], table[:, -1] * self.bias_unit

    @torch.no_grad()
    def __call__(self, vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Mean cross-entropy and L2 term, and their gradient."""
        weight, bias = self.parameters(vector)
        # (K, N): few and long rows, which are faster than many short ones.
        log_p = torch.addmm(bias[:, None], weight, self.x.T).log_softmax(0)
        fit = -log_p.gather(0, self.targets).mean(dtype=torch.float64)
        loss = fit + (self.penalty * weight.square()).sum(dtype=torch.float64) / 2
        errors = log_p.exp_().scatter_add_(0, self.targets, -torch.ones_like(log_p[:1]))
        errors /= len(self.x)
        slopes = errors @ self.x + self.penalty * weight
        gradient = torch.cat([slopes, errors.sum(1, keepdim=True) * self.bias_unit], dim=1)
        return float(loss), gradient.double().cpu().numpy().reshape(-1)


def _standardisation(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and factor of each dimension, float64; factor 0 if constant up to rounding errors."""
    exact = features.double()
    mean, deviation = exact.mean(0), exact.std(0, correction=0)
    constant = deviation <= 1e-6 * exact.square().mean(0).sqrt()
    return mean, torch.where(constant, 0.0, 1 / deviation.where(~constant, torch.ones(()).to(mean)))


@functools.cache
def _blas_libraries() -> "ThreadpoolController":
    """This process's linear algebra libraries, cached: finding them takes 10 ms a time."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _minimise(
    objective: _Objective, start: NDArray[np.float64] | None, tolerance: float
) -> tuple[float, NDArray[np.float64]]:
    """The least value and its vector; the search begins at `start` (None: at zero).

    Uses scipy: torch's L-BFGS imports the whole compiler, 6 seconds in every process that
    evaluates, and keeps its history in float32, which costs half as many steps again.
    """
    # Clients, which only score features, do not need it.
    from scipy.optimize import minimize

    with _blas_libraries().limit(limits=1, user_api="blas"):  # of scipy's steps on short vectors
        result = minimize(
            objective,
            np.zeros(objective.shape).reshape(-1) if start is None else start,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": MAX_ITERATIONS, "gtol": tolerance, "ftol": 0.0, "maxcor": HISTORY},
        )
    # At float32's limit, line searches may fail a little above the tolerance, which does no harm.
    steepest = float(np.abs(result.jac).max())
    if steepest > 100 * tolerance:
        log.warning("linear probe stopped before it converged (gradient %.1e)", steepest)
    return float(result.fun), result.x
