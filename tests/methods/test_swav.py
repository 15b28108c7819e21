"""SwAV's assignments and loss, against loops."""

import math

import pytest
import torch

from orchestra_flwr.methods import Batch, Received, Role, build_method
from orchestra_flwr.methods.swav import equal_assignments, swapped_prediction_loss
from orchestra_flwr.training import build_learner


def cosines(count, prototypes, seed):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(count, prototypes, generator=generator, dtype=torch.float64) - 1


def slow_assignments(scores, regularisation, iterations):
    """Columns, then rows, are scaled to equal sums (appendix A.1 of the paper)."""
    plan = [[math.exp(score / regularisation) for score in row] for row in scores]
    for _ in range(iterations):
        columns = [sum(row[k] for row in plan) for k in range(len(plan[0]))]
        plan = [[v / c for v, c in zip(row, columns, strict=True)] for row in plan]
        plan = [[v / sum(row) for v in row] for row in plan]
    return plan


def slow_loss(views, assignments, temperature):
    losses = []
    for i, assigned in enumerate(assignments):
        for v, scores in enumerate(views):
            for wanted, row in zip(assigned, scores, strict=True):
                total = sum(math.exp(score / temperature) for score in row)
                logs = [score / temperature - math.log(total) for score in row]
                if v != i:
                    losses.append(-sum(a * b for a, b in zip(wanted, logs, strict=True)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize(("count", "prototypes"), [(6, 4), (3, 7)])
def test_assignments_agree_with_the_formula(count, prototypes, iterations):
    scores, there = cosines(count, prototypes, seed=1), torch.ones(count, dtype=torch.bool)
    assigned = equal_assignments(scores, there, 0.05, iterations)
    slow = slow_assignments(scores.tolist(), 0.05, iterations)
    expected = torch.tensor(slow, dtype=torch.float64)
    torch.testing.assert_close(assigned, expected, rtol=1e-9, atol=1e-12)


def test_rows_that_are_not_there_change_nothing():
    scores = cosines(6, 3, seed=1)
    there = torch.tensor([True, False, True, True, False, True])
    assigned = equal_assignments(scores, there, 0.05, 3)
    alone = equal_assignments(scores[there], there[there], 0.05, 3)
    torch.testing.assert_close(assigned[there], alone)
    assert not assigned[~there].any()


def test_many_iterations_spread_rows_equally_over_prototypes():
    plan = equal_assignments(cosines(12, 4, seed=3), torch.ones(12, dtype=torch.bool), 0.3, 200)
    torch.testing.assert_close(plan.sum(dim=0), torch.full((4,), 3.0).double())
    torch.testing.assert_close(plan.sum(dim=1), torch.ones(12).double())


def test_float32_bears_the_sharpest_assignments():
    """Cosines from -1 to 1 by .02 span a factor of exp(100)."""
    scores = torch.tensor([[1.0, -1.0, -1.0], [1.0, -1.0, -0.9], [1.0, 0.9, -1.0]])
    assert torch.isfinite(equal_assignments(scores, torch.ones(3) > 0, 0.02, 3)).all()


@pytest.mark.parametrize("views", [2, 4])
def test_the_loss_agrees_with_the_formula(views):
    scores = [cosines(5, 3, seed) for seed in range(views)]
    assigned = [cosines(5, 3, seed=9 + k).softmax(dim=1) for k in range(2)]
    loss = swapped_prediction_loss(scores, assigned, 0.1)
    expected = slow_loss([s.tolist() for s in scores], [a.tolist() for a in assigned], 0.1)
    assert loss.item() == pytest.approx(expected, rel=1e-10)


def batch(count, views, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = tuple(
        torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64) for _ in range(views)
    )
    return Batch(torch.arange(count), images, (None,) * views, generator)


@pytest.mark.parametrize(("queue", "local_crops"), [(10, 0), (10, 2), (0, 0)])
def test_batches_are_assigned_together_with_earlier_projections(tiny, queue, local_crops):
    overrides = ("method=swav", "method.prototypes=4", f"method.queue={queue}",
                 f"method.local_crops={local_crops}")  # fmt: skip
    method = build_method(tiny(*overrides), 1).double().train()
    assert len(method.recipes()) == 2 + local_crops
    weight = method.prototypes.weight.detach()
    weight = weight / weight.norm(dim=1, keepdim=True)
    earlier = []
    for step in range(3):
        inputs = batch(4, 2 + local_crops, seed=step)
        projections = [method.projector(method.backbone(view)).detach() for view in inputs.views]
        loss = method.loss(inputs).losses["clustering"].item()
        rows = [[(x / x.norm()).tolist() for x in view] for view in projections]
        scores = [(torch.tensor(view, dtype=torch.float64) @ weight.T).tolist() for view in rows]
        assigned = []
        for k in range(2):
            before = torch.tensor(earlier[-queue:] if queue else [], dtype=torch.float64)
            others = (before.view(-1, 16) @ weight.T).tolist()
            assigned.append(slow_assignments(scores[k] + others, 0.02, 3)[:4])
        assert loss == pytest.approx(slow_loss(scores, assigned, 0.1), rel=1e-6)
        earlier += rows[0] + rows[1]


def test_assignments_have_no_gradient():
    scores = cosines(6, 4, seed=1).requires_grad_()
    assert not equal_assignments(scores, torch.ones(6, dtype=torch.bool), 0.05, 3).requires_grad


@pytest.mark.parametrize("queue", [0, 10])
def test_the_gradient_is_that_of_predictions_of_constant_assignments(tiny, queue):
    config = tiny("method=swav", "method.prototypes=4", f"method.queue={queue}")
    method = build_method(config, 1).double().train()
    images = batch(4, 2)
    _, projections = method.embed(images.views)
    scores = [method.prototypes(projection) for projection in projections]
    there = torch.ones(4, dtype=torch.bool)
    constant = [equal_assignments(s, there, 0.02, 3).detach().clone() for s in scores]
    expected = torch.autograd.grad(
        swapped_prediction_loss(scores, constant, 0.1), [*method.parameters()]
    )
    method.loss(images).losses["clustering"].backward()
    for parameter, gradient in zip(method.parameters(), expected, strict=True):
        assert gradient.any()
        torch.testing.assert_close(parameter.grad, gradient)


def test_the_queue_never_leaves_a_client_and_is_empty_when_a_round_begins(tiny):
    learner = build_learner(tiny("method=swav", "method.queue=10"), 1)
    assert set(learner.state(Role.TRANSIENT)) == {"queue.features"}
    assert "prototypes.weight" in learner.state(Role.SHARED)
    method = learner.double().train().method
    method.loss(batch(3, 2))
    assert len(method.queue) == 6
    learner.start_round(Received("0", 0, 1, torch.zeros(3, 1, 8, 8, dtype=torch.uint8)))
    assert len(method.queue) == 0
