import math

import pytest
import torch

from orchestra_flwr.data import augment
from orchestra_flwr.methods import Batch, build_method


def test_the_loss_is_the_cross_entropy_of_the_four_rotations(tiny):
    """A plain scalar: the published forward pass returned a tuple, and crashed."""
    method = build_method(tiny("method=rotpred"), 1).train()
    generator = torch.Generator().manual_seed(0)
    view, turns = torch.randn(6, 1, 8, 8, generator=generator), torch.tensor([0, 1, 2, 3, 1, 2])
    loss = method.loss(Batch(torch.arange(6), (view,), (turns,), generator)).losses["rotation"]
    scores = method.rotation_head(method.projector(method.backbone(view))).tolist()
    expected = [
        math.log(sum(math.exp(s) for s in row)) - row[turn]
        for row, turn in zip(scores, turns.tolist(), strict=True)
    ]
    assert loss.shape == () and loss.item() == pytest.approx(sum(expected) / 6, rel=1e-4)
    loss.backward()
    assert all(p.grad is not None for p in method.parameters())


def test_the_image_is_turned_and_nothing_else(tiny, generator):
    method = build_method(tiny("method=rotpred"), 1)
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=generator)
    views = augment(images, method.recipes(), generator)
    (view,), (turns,) = views.images, views.rotations
    assert set(turns.tolist()) == {0, 1, 2, 3}
    for image, turned, turn in zip(images, view, turns.tolist(), strict=True):
        torch.testing.assert_close(turned, image.rot90(turn, dims=(1, 2)) / 255)
