import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.config import load_config
from orchestra_flwr.machine_limits import usable_cpus
from orchestra_flwr.methods import build_method
from orchestra_flwr.methods.orchestra import cluster_loss

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def published(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import published

    return published


def test_the_published_recipe_computes_what_ours_does(published):
    """From the same views: the same loss, the same steps of the optimizer and of the target.

    In double precision: in single, a sum in another order turns a rectifier on or off now and
    then, and with it a part of a gradient.
    """
    config = load_config(
        ["data=cifar10", "model=convnet", "model.width=8", "model.projector_dim=16",
         "training.batch_size=8", "clustering.global_clusters=4", "method.ema=0.9"]
    )  # fmt: skip
    model, copy = (build_method(config, 3).train().double() for _ in range(2))
    for method in (model, copy):
        method.global_centroids.copy_(torch.eye(4, 16))
    client = published.PublishedClient(model, published.client_images(config, 8), config)
    batch = [tensor.double() if tensor.is_floating_point() else tensor for tensor in client.batch()]
    client.train_on(batch)

    target_view, online_view, rotated, turns = batch
    # Its first pass changes nothing but running statistics, which no training step reads.
    online = F.normalize(copy.projector(copy.backbone(online_view)), dim=1)
    before = [p.detach().clone() for p in copy.target_backbone.parameters()]
    target = copy._target_features(target_view)
    turned = copy.rotation_head(copy.projector(copy.backbone(rotated)))
    loss = cluster_loss(target, online, copy.global_centroids, 0.1)
    loss = loss + F.cross_entropy(turned, turns)
    loss.backward()
    for ours, theirs in zip(copy.parameters(), model.parameters(), strict=True):
        if ours.grad is not None:
            gradient = ours.grad + config.optimizer.settings.weight_decay * ours
            moved = ours.detach() - config.training.lr * gradient
            torch.testing.assert_close(theirs, moved, atol=1e-12, rtol=1e-9)
    # Target and online are the same before the first step: the average moves nothing.
    for old, new in zip(before, model.target_backbone.parameters(), strict=True):
        torch.testing.assert_close(new, old)
    torch.testing.assert_close(client.memory[-8:], target, atol=1e-12, rtol=0)


def test_a_steps_operations_are_those_counted_by_hand(published):
    from ceiling import step_flops

    config = load_config(
        ["data=cifar10", "model=convnet", "model.width=8", "model.projector_dim=16",
         "training.batch_size=8", "clustering.global_clusters=4"]
    )  # fmt: skip
    images = published.client_images(config, 8)
    client = published.PublishedClient(build_method(config, 3).train(), images, config)

    first = 32**2 * 3 * 8 * 9  # multiplications of the first convolution for an image
    later = 16**2 * (8 * 16 * 9 + 16 * 16 * 9) + 8**2 * 16 * 32 * 9
    forward = first + later + 128 * 16 + 16 * 16
    # Three passes there and two back, each of these twice, but no image needs a gradient; rotation
    # head and cosines with centroids are a 16 x 4 product there and two of them back.
    assert step_flops(client) == 2 * 8 * (7 * forward - 2 * first + 6 * 16 * 4)


@pytest.mark.slow
def test_the_benchmark_runs_and_tells_ratios(tmp_path):
    subprocess.run(
        [sys.executable, BENCHMARKS / "local_step.py", "--model", "convnet", "--steps", "1",
         "--rounds", "1", "--threads", "1"],
        env={**os.environ, "ORCHESTRA_RESULTS": str(tmp_path)},
        check=True,
    )  # fmt: skip
    result = json.loads((tmp_path / "local_step.json").read_text())
    assert result["step_fp32_ratio"] > 0
    milliseconds = result["step_ms"]
    ratio = milliseconds["published"] / milliseconds["float32"]
    assert result["step_fp32_ratio"] == pytest.approx(ratio)
    assert result["ceilings"]["float32"] > 0
    assert result["environment"]["cores"] == usable_cpus()
