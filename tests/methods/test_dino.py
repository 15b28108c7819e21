"""DINO's loss and centre, against loops, and what follows the student."""

import copy
import math

import pytest
import torch

from orchestra_flwr.methods import Batch, Role, build_method
from orchestra_flwr.methods.dino import distillation_loss


def outputs(count, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(count, classes, generator=generator, dtype=torch.float64) - 1


def softmax(row, temperature):
    shares = [math.exp(value / temperature) for value in row]
    return [share / sum(shares) for share in shares]


def slow_loss(student, teacher, centre, student_temperature, teacher_temperature):
    """-sum of P_t log P_s over classes, image by image, over pairs of different views."""
    losses = []
    for i, large in enumerate(teacher):
        for v, crop in enumerate(student):
            for wanted, row in zip(large, crop, strict=True):
                moved = [value - c for value, c in zip(wanted, centre, strict=True)]
                classes = softmax(moved, teacher_temperature)
                predicted = softmax(row, student_temperature)
                if v != i:
                    pairs = zip(classes, predicted, strict=True)
                    losses.append(-sum(a * math.log(b) for a, b in pairs))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("views", [2, 4])
@pytest.mark.parametrize("temperatures", [(0.1, 0.04), (0.5, 1.0)])
def test_agrees_with_the_formula(views, temperatures):
    student = [outputs(5, 6, seed) for seed in range(views)]
    teacher, centre = [outputs(5, 6, 9), outputs(5, 6, 10)], outputs(1, 6, 11)[0]
    loss = distillation_loss(student, teacher, centre, *temperatures)
    values = [[view.tolist() for view in views] for views in (student, teacher)]
    expected = slow_loss(*values, centre.tolist(), *temperatures)
    assert loss.dtype == torch.float64 and loss.item() == pytest.approx(expected, rel=1e-10)


@pytest.fixture(params=[0, 2])
def method(tiny, request):
    overrides = ("method=dino", "method.ema=0.9", "method.outputs=12", "method.centre_ema=0.75",
                 f"method.local_crops={request.param}")  # fmt: skip
    return build_method(tiny(*overrides), 1).double().train()


def batch(method, seed=0):
    generator = torch.Generator().manual_seed(seed)
    count = len(method.recipes())
    views = tuple(
        torch.randn(4, 1, 8, 8, generator=generator, dtype=torch.float64) for _ in range(count)
    )
    return Batch(torch.arange(4), views, (None,) * count, generator)


def cosines(network, prefix, views):
    parts = [getattr(network, prefix + name) for name in ("backbone", "projector", "prototypes")]
    rows = [parts[1](parts[0](view)).detach() for view in views]
    weight = parts[2].weight.detach()
    weight = weight / weight.norm(dim=1, keepdim=True)
    return [((x / x.norm(dim=1, keepdim=True)) @ weight.T).tolist() for x in rows]


def test_each_crop_predicts_the_centred_teacher_which_sees_the_large_ones(method):
    slow, centre = copy.deepcopy(method), [0.0] * 12
    for step in range(3):
        given = batch(method, seed=step)
        loss = method.loss(given).losses["distillation"].item()
        slow.update_target(0.9)
        student, teacher = cosines(slow, "", given.views), cosines(slow, "target_", given.views[:2])
        assert loss == pytest.approx(slow_loss(student, teacher, centre, 0.05, 0.02), rel=1e-6)
        rows = [row for view in teacher for row in view]
        means = [sum(row[k] for row in rows) / len(rows) for k in range(12)]
        centre = [0.75 * c + 0.25 * mean for c, mean in zip(centre, means, strict=True)]
        assert method.target_centre.tolist() == pytest.approx(centre, rel=1e-6)


def test_the_teacher_follows_the_student_and_gets_no_gradient(method):
    with torch.no_grad():
        for parameter in method.parameters():
            if parameter.requires_grad:
                parameter.add_(1)
    before = copy.deepcopy(method)
    method.loss(batch(method)).losses["distillation"].backward()
    for part in ("target_backbone", "target_projector", "target_prototypes"):
        old, new = (list(getattr(m, part).parameters()) for m in (before, method))
        for a, b in zip(old, new, strict=True):
            torch.testing.assert_close(b - a, torch.full_like(a, 0.1))
    learning = {n.partition(".")[0] for n, p in method.named_parameters() if p.grad is not None}
    assert learning == {"backbone", "projector", "prototypes"}


def test_teacher_and_centre_travel_unless_clients_remember(method):
    names = [n for n, t in method.state_dict().items() if t.is_floating_point()]
    assert {method.role(name) for name in names} == {Role.SHARED}
    assert list(method.backbones()) == ["online", "target"]
    method.keep_locally()
    local = {name for name in names if method.role(name) is Role.LOCAL}
    assert local == {name for name in names if name.startswith("target_")}
    assert "target_centre" in local and list(method.backbones()) == ["online"]
    with torch.no_grad():
        method.target_prototypes.weight.add_(1)
    method.start_local_state()
    assert torch.equal(method.target_prototypes.weight, method.prototypes.weight)


def test_large_crops_are_larger_beside_local_ones(method):
    recipes = method.recipes()
    least = [recipe.crop_scale[0] for recipe in recipes]
    assert least == ([0.14, 0.14] if len(recipes) == 2 else [0.4, 0.4, 0.05, 0.05])
    assert [(r.blur_p, r.solarize_p) for r in recipes[:2]] == [(1.0, 0.0), (0.1, 0.2)]
