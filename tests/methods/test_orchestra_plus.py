import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.methods import Batch, build_method
from orchestra_flwr.methods.orchestra import cluster_loss


def batch(method, n=6, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    views = tuple(torch.rand(n, 1, size, size, generator=generator) for _ in method.recipes())
    turns = tuple(torch.arange(n) % 4 if recipe.rotate else None for recipe in method.recipes())
    return Batch(torch.arange(n), views, turns, generator)


def centroids(method, seed=3):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(method.global_centroids.shape, generator=generator)
    method.global_centroids.copy_(F.normalize(rows, dim=1))


def test_one_rotated_view_predicts_both(tiny):
    """Both losses, worked out from the one projection of the second view."""
    method = build_method(tiny("method=orchestra_plus", "method.ema=0.5"), 1).train()
    centroids(method)
    inputs = batch(method)
    assert [recipe.rotate for recipe in method.recipes()] == [False, True]
    step = method.loss(inputs)
    other = build_method(tiny("method=orchestra_plus", "method.ema=0.5"), 1).train()
    projection = other.projector(other.backbone(inputs.views[1]))
    rotation = F.cross_entropy(other.rotation_head(projection), inputs.rotations[1])
    target = other.target_projector(
        other.target_backbone(inputs.views[0])
    )  # equal to the online one
    cluster = cluster_loss(
        F.normalize(target, dim=1), F.normalize(projection, dim=1), method.global_centroids, 0.1
    )
    assert step.losses.keys() == {"cluster", "rotation"}
    torch.testing.assert_close(step.losses["rotation"], rotation)
    torch.testing.assert_close(step.losses["cluster"], cluster)


@pytest.mark.parametrize(("name", "passes"), [("orchestra", 3), ("orchestra_plus", 2)])
def test_a_third_of_the_passes_is_left_out(tiny, name, passes):
    """Of which the target's has no gradient: one backward pass in place of two."""
    method = build_method(tiny(f"method={name}"), 1).train()
    seen = []
    for backbone in (method.backbone, method.target_backbone):
        backbone.register_forward_hook(lambda _, inputs, output: seen.append(output.requires_grad))
    method.loss(batch(method))
    assert len(seen) == passes and sum(seen) == passes - 1


def test_without_rotations_it_is_orchestra_without_rotations(tiny):
    losses = []
    for name in ("orchestra", "orchestra_plus"):
        method = build_method(tiny(f"method={name}", "method.rotation=false"), 1).train()
        centroids(method)
        losses.append(method.loss(batch(method)).losses)
    assert losses[0] == losses[1] and losses[0].keys() == {"cluster"}
