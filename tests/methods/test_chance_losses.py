"""What a method says of a network that has learned nothing is the loss of one."""

import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.config.choices import MethodConfig
from orchestra_flwr.methods import KnowsChance, build_method
from orchestra_flwr.methods.dino import distillation_loss
from orchestra_flwr.methods.mocov2 import queue_contrastive_loss
from orchestra_flwr.methods.orchestra import cluster_loss
from orchestra_flwr.methods.simclr import info_nce_loss, nt_xent_loss
from orchestra_flwr.methods.swav import swapped_prediction_loss

BATCH = 12
ALIKE = F.normalize(torch.ones(BATCH, 5), dim=1)


def queue_of(keys):
    everybody = torch.ones(BATCH, keys, dtype=torch.bool)
    return queue_contrastive_loss(ALIKE, ALIKE, ALIKE[:1].expand(keys, 5), everybody, 0.2)


@pytest.mark.parametrize(
    ("overrides", "name", "loss"),
    [
        (("simclr",), "contrastive", lambda: nt_xent_loss(ALIKE, ALIKE, 0.1)),
        (("simclr", "method.loss=infonce"), "contrastive", lambda: info_nce_loss(ALIKE, ALIKE, 1)),
        (("mocov2", "method.queue=16"), "contrastive", lambda: queue_of(16)),
        (("rotpred",), "rotation", lambda: F.cross_entropy(torch.zeros(4, 4), torch.arange(4))),
        (("orchestra",), "rotation", lambda: F.cross_entropy(torch.zeros(4, 4), torch.arange(4))),
        (
            ("orchestra", "clustering.global_clusters=6"),
            "cluster",
            lambda: cluster_loss(ALIKE, ALIKE, F.normalize(torch.randn(6, 5), dim=1), 1e6),
        ),
        (
            ("swav", "method.prototypes=7"),
            "clustering",
            lambda: swapped_prediction_loss([torch.zeros(3, 7)] * 2, [torch.eye(7)[:3]], 0.1),
        ),
        (
            ("dino", "method.outputs=9"),
            "distillation",
            lambda: distillation_loss(
                [torch.zeros(3, 9)] * 2, [torch.randn(3, 9)], torch.zeros(9), 0.1, 0.05
            ),
        ),
        (
            ("supervised", "method.classes=[a,b,c]"),
            "classification",
            lambda: F.cross_entropy(torch.zeros(3, 3), torch.arange(3)),
        ),
    ],
)
def test_chance_is_the_loss_of_a_network_that_has_learned_nothing(tiny, overrides, name, loss):
    method, *options = overrides
    built = build_method(tiny(f"method={method}", *options), 1)
    assert built.chance_losses(BATCH)[name] == pytest.approx(float(loss()), abs=1e-4)


def test_orchestra_without_rotations_says_nothing_of_them(tiny):
    assert build_method(tiny("method.rotation=false"), 1).chance_losses(BATCH).keys() == {"cluster"}


def test_only_known_losses_are_named(tiny):
    """By every method without labels that has one loss of another kind, none."""
    assert {"simclr", "orchestra"} <= set(MethodConfig.room.found())
    for name in ("byol", "simsiam", "vicreg", "barlow_twins", "specloss"):
        assert not isinstance(build_method(tiny(f"method={name}"), 1), KnowsChance)
