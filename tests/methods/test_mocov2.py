"""MoCo's loss and queue, against loops, and what becomes of the queue from round to round."""

import copy
import math

import pytest
import torch

from orchestra_flwr.methods import Batch, Received, Role, build_method
from orchestra_flwr.methods.mocov2 import queue_contrastive_loss
from orchestra_flwr.training import build_learner


def units(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True)


def slow_loss(queries, keys, queue, negative, temperature):
    """-log of the key's share of all exponentials, query by query (MoCo, equation 1)."""
    total = 0.0
    for query, key, chosen in zip(queries, keys, negative, strict=True):
        dots = [sum(a * b for a, b in zip(query, key, strict=True))]
        dots += [
            sum(a * b for a, b in zip(query, row, strict=True))
            for row, counts in zip(queue, chosen, strict=True)
            if counts
        ]
        shares = [math.exp(dot / temperature) for dot in dots]
        total -= math.log(shares[0] / sum(shares))
    return total / len(queries)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_agrees_with_the_formula(temperature):
    queries, keys, queue = units(5, 4, seed=1), units(5, 4, seed=2), units(7, 4, seed=3)
    negative = torch.rand(5, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    negative[0] = False
    loss = queue_contrastive_loss(queries, keys, queue, negative, temperature)
    values = (x.tolist() for x in (queries, keys, queue, negative))
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(slow_loss(*values, temperature), rel=1e-10)


@pytest.fixture
def method(tiny):
    overrides = ("method=mocov2", "method.ema=0.9", "method.queue=10", "model.projector_dim=16")
    return build_method(tiny(*overrides), 1).double().train()


def batch(*images, seed=0):
    generator = torch.Generator().manual_seed(seed)
    views = tuple(
        torch.randn(len(images), 1, 8, 8, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    return Batch(torch.tensor(images), views, (None, None), generator)


def test_a_query_is_told_from_all_keys_but_those_of_its_image_the_batchs_included(method):
    """Three steps with copies of one image, by an independent queue of (image, key) pairs."""
    slow, remembered = copy.deepcopy(method), []
    for step, images in enumerate([(0, 1, 2, 3), (4, 0, 5, 1), (2, 6, 0, 0)]):
        inputs = batch(*images, seed=step)
        loss = method.loss(inputs).losses["contrastive"].item()
        slow.update_target(0.9)
        query = slow.projector(slow.backbone(inputs.views[0]))
        key = slow.target_projector(slow.target_backbone(inputs.views[1]))
        query, key = ((x / x.norm(dim=1, keepdim=True)).tolist() for x in (query, key))
        remembered = [*remembered, *zip(images, key, strict=True)][-10:]
        negative = [[image != other for other, _ in remembered] for image in images]
        expected = slow_loss(query, key, [row for _, row in remembered], negative, 0.2)
        assert loss == pytest.approx(expected, rel=1e-6)


def test_the_key_encoder_moves_by_one_minus_the_decay_and_gets_no_gradient(method):
    with torch.no_grad():
        for parameter in (*method.backbone.parameters(), *method.projector.parameters()):
            parameter.add_(1)
    before = copy.deepcopy(method)
    method.loss(batch(0, 1, 2)).losses["contrastive"].backward()
    for part in ("target_backbone", "target_projector"):
        old, new = (list(getattr(m, part).parameters()) for m in (before, method))
        for a, b in zip(old, new, strict=True):
            torch.testing.assert_close(b - a, torch.full_like(a, 0.1))
            assert b.grad is None and not b.requires_grad
    learning = {n.partition(".")[0] for n, p in method.named_parameters() if p.grad is not None}
    assert learning == {"backbone", "projector"}


def test_the_queue_never_leaves_a_client_and_is_empty_when_a_round_begins(tiny):
    learner = build_learner(tiny("method=mocov2", "method.queue=10"), 1)
    learner.method.keep_locally()
    assert set(learner.state(Role.TRANSIENT)) == {"queue.features"}
    assert not any("queue" in name for role in (Role.SHARED, Role.SERVER, Role.LOCAL)
                   for name in learner.state(role))  # fmt: skip
    local = set(learner.state(Role.LOCAL))
    assert local and all(name.startswith("target_") for name in local)
    method = learner.double().train().method
    method.loss(batch(0, 1, 2))
    assert len(method.queue) == 3
    learner.start_round(Received("0", 0, 1, torch.zeros(3, 1, 8, 8, dtype=torch.uint8)))
    assert len(method.queue) == 0 and not method.queue.features.any()


def test_one_image_has_no_negative_and_teaches_nothing(method):
    loss = method.loss(batch(0, 0)).losses["contrastive"]
    loss.backward()
    assert loss.item() == 0
    assert all(torch.isfinite(p.grad).all() for p in method.parameters() if p.grad is not None)


def test_the_published_parts(tiny):
    config = tiny(
        "method=mocov2",
        "model.projector=plain",
        "model.projector_dim=16",
        "training.setting=device",
    )
    method = build_method(config, 1)
    dim = method.backbone.dim
    layers = [(type(m).__name__, *getattr(m, "weight", torch.empty(0)).shape)
              for m in method.projector]  # fmt: skip
    assert layers == [("Linear", dim, dim), ("ReLU", 0), ("Linear", 16, dim)]
    assert method.settings.model_dump() == {"ema": 0.999, "temperature": 0.2, "queue": 4096}
    assert list(method.backbones()) == ["online", "target"]
