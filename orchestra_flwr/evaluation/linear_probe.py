"""The linear probe: multinomial logistic regression on frozen features, run to convergence."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from orchestra_flwr.evaluation.features import check_labelled

log = logging.getLogger(__name__)

L2 = 1e-4
MAX_ITERATIONS = 500
TOLERANCE = 1e-5  # largest entry of the gradient; about where float32 ends


@dataclass(frozen=True)
class LinearProbe:
    """A trained probe.

    Attributes:
        weight: (K, dim), for features as they are (the standardisation is folded in).
        bias: (K,).
        classes: (K,) the classes that the training labels hold, ascending.
        loss: the objective at the end: mean cross-entropy and the L2 term.
    """

    weight: Tensor
    bias: Tensor
    classes: Tensor
    loss: float

    def predict(self, features: Tensor) -> Tensor:
        """Classes (N,) of features (N, dim)."""
        return self.classes[(features.float() @ self.weight.T + self.bias).argmax(1)]


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


def fit_linear_probe(features: Tensor, labels: Tensor) -> LinearProbe:
    """Fits multinomial logistic regression by full-batch L-BFGS; deterministic, nothing to tune.

    The objective is mean cross-entropy + L2 / 2 * |weight|^2 on features that were standardised
    by their own mean and deviation, without a penalty on the bias. L2 = 1e-4 is scikit-learn's
    C = 1 / (1e-4 N): C = .2 for 50,000 images, 7 for 1,400. It is small enough not to cost
    accuracy and makes the optimum unique where the classes can be separated.

    The published probe (50 epochs of SGD at lr 30 on features of any scale) depends on its
    schedule; this one depends on the features only.

    Args:
        features: (N, dim), finite. Constant dimensions are ignored.
        labels: (N,) classes from 0; some may be missing.

    Raises:
        ValueError: shapes do not fit, or a feature is not finite.
    """
    check_labelled("probe's training set", features, labels)
    classes, targets = torch.unique(labels.to(features.device), return_inverse=True)
    mean, scale = _standardisation(features)
    x = (features.float() - mean.float()) * scale.float()
    basis = _preconditioner(x, len(classes))
    free = x.new_zeros(len(classes), x.shape[1], requires_grad=True)
    bias = x.new_zeros(len(classes), requires_grad=True)

    def objective() -> Tensor:
        weight = free @ basis
        return cross_entropy(x @ weight.T + bias, targets) + L2 / 2 * weight.square().sum()

    _minimise(objective, [free, bias])
    with torch.no_grad():
        loss = float(objective())
        weight = (free @ basis).double() * scale
        shift = bias.double() - weight @ mean.float().double()  # as it was subtracted
    return LinearProbe(weight.float(), shift.float(), classes, loss)


def _standardisation(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and factor of each dimension, float64; 0 for constant ones, rounding errors aside."""
    exact = features.double()
    mean, deviation = exact.mean(0), exact.std(0, correction=0)
    constant = deviation <= 1e-6 * exact.square().mean(0).sqrt()
    return mean, torch.where(constant, 0.0, 1 / deviation.where(~constant, torch.ones(()).to(mean)))


def _preconditioner(x: Tensor, classes: int) -> Tensor:
    """(dim, dim) change of coordinates in which the objective's curvature at zero is the identity.

    There the Hessian is covariance / K + L2 for each class, up to the classes' coupling. Features
    are strongly correlated, and in their own coordinates L-BFGS needs 5 to 10 times the steps. The
    optimum stays the same: the penalty is on the weights themselves.
    """
    covariance = (x.T @ x).double() / len(x)
    values, vectors = torch.linalg.eigh(covariance)
    scales = (values.clamp(min=0) / classes + L2).rsqrt()
    basis: Tensor = (scales[:, None] * vectors.T).to(x)
    return basis


def _minimise(objective: Callable[[], Tensor], parameters: list[Tensor]) -> None:
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=MAX_ITERATIONS,
        tolerance_grad=TOLERANCE,
        tolerance_change=0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimizer.zero_grad()
        loss = objective()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    steepest = max(float(p.grad.abs().max()) for p in parameters if p.grad is not None)
    if steepest > 100 * TOLERANCE:
        log.warning("linear probe stopped before it converged (gradient %.1e)", steepest)
