"""What of a network is trained: each adaptation on networks of several kinds, and many methods."""

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Role
from orchestra_flwr.models.backbones import Backbone
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round

# A convolutional network, a ResNet, a transformer; and of timm one of each kind.
NETWORKS = {
    "convnet": ("model=convnet",),
    "resnet18": ("model=resnet18",),
    "cct": ("model=cct", "model.width=16", "model.layers=2"),
    "vit_tiny": ("model=vit_tiny", "model.width=24", "model.depth=2"),
    "test_vit": ("model=timm", "model.timm=test_vit", "data.image_size=32"),
    "test_efficientnet": ("model=timm", "model.timm=test_efficientnet", "data.image_size=32"),
    "test_resnet": ("model=timm", "model.timm=test_resnet", "data.image_size=32"),
}
# The first letters of names of the last block's tensors, and of the norms'.
LAST = {
    "convnet": ("layers.9.", "layers.10.", "layers.14."),
    "resnet18": ("blocks.7.",),
    "cct": ("layers.1.", "norm.", "score."),
    "vit_tiny": ("blocks.1.", "norm."),
    "test_vit": ("model.blocks.5.", "model.norm.", "model.fc_norm."),
    "test_efficientnet": ("model.blocks.4.", "model.conv_head.", "model.bn2."),
    "test_resnet": ("model.layer4.0.",),
}
METHODS = ("simclr", "orchestra", "byol", "orchestra_plus")


@pytest.fixture
def learner_of(tiny):
    """Makes the configuration and learner of a network, which may need a library."""

    def make(network, *overrides):
        if "model=timm" in NETWORKS[network]:
            pytest.importorskip("timm", reason="needs the extra timm")
        config = tiny("method=simclr", *NETWORKS[network], *overrides)
        return config, build_learner(config, 1)

    return make


def trained_by(config, learner):
    """Names of the state's tensors that a round changes, with weight decay."""
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    size = config.data.image_size
    images = torch.randint(0, 256, (24, 1, size, size), generator=torch.Generator().manual_seed(0))
    train_round(learner, images.to(torch.uint8), config, ClientSeed(0, 1, "0"))
    counters = "num_batches_tracked"
    return {
        name.removeprefix("method.")
        for name, tensor in learner.state_dict().items()
        if not torch.equal(tensor, before[name]) and not name.endswith(counters)
    }


def floating(module):
    return {n for n, t in module.state_dict().items() if t.is_floating_point()}


def of_norms(backbone):
    """Names of the tensors of norms, by the number of their dimensions and their names."""
    return {
        name
        for name, tensor in backbone.state_dict().items()
        if tensor.is_floating_point()
        and ("running_" in name or (tensor.ndim == 1 and is_of_a_norm(backbone, name)))
    }


def is_of_a_norm(backbone, name):
    module = backbone.get_submodule(name.rpartition(".")[0])
    return not isinstance(module, torch.nn.Linear | torch.nn.Conv2d) and module is not backbone


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("adaptation", ["full", "head", "norms", "blocks"])
def test_it_trains_exactly_what_it_says(learner_of, network, adaptation):
    config, learner = learner_of(network, f"adaptation={adaptation}", "training.lr=0.1")
    backbone = learner.method.backbone
    expected = {
        "full": floating(backbone),
        "head": set(),
        "norms": of_norms(backbone),
        "blocks": {n for n in floating(backbone) if n.startswith(LAST[network])},
    }[adaptation]
    assert expected or adaptation == "head"
    frozen = {f"backbone.{name}" for name in floating(backbone) - expected}
    assert learner.state(Role.FROZEN).keys() == frozen
    assert not learner.trained().keys() & frozen
    changed = trained_by(config, learner)
    assert {n for n in changed if n.startswith("backbone.")} == {f"backbone.{n}" for n in expected}
    assert any(n.startswith("projector.") for n in changed)


@pytest.mark.parametrize("network", ["convnet", "vit_tiny", "test_efficientnet"])
def test_more_blocks_are_more_of_the_network(learner_of, network):
    sizes = []
    for last in (1, 2):
        _, learner = learner_of(network, "adaptation=blocks", f"adaptation.last={last}")
        sizes.append(len(learner.state(Role.FROZEN)))
    assert sizes[0] > sizes[1] > 0


@pytest.mark.parametrize("network", NETWORKS)
def test_blocks_share_out_the_whole_state(learner_of, network):
    _, learner = learner_of(network)
    blocks = learner.method.backbone.layer_groups()
    names = [name for block in blocks for name in block]
    assert len(names) == len(set(names)) and set(names) == {*learner.method.backbone.state_dict()}
    with pytest.raises(ConfigError, match=rf"adaptation.last={len(blocks)}: must be below"):
        learner_of(network, "adaptation=blocks", f"adaptation.last={len(blocks)}")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("adaptation", ["head", "norms", "blocks"])
def test_targets_share_what_is_frozen_and_follow_the_rest(tiny, method, adaptation):
    config = tiny(f"method={method}", f"adaptation={adaptation}", "training.lr=0.1")
    learner = build_learner(config, 1)
    frozen = learner.state(Role.FROZEN)
    assert frozen and all(name.startswith("backbone.") for name in frozen)
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    if method.startswith("orchestra"):
        learner.method.global_centroids.normal_(generator=torch.Generator().manual_seed(0))
    trained_by(config, learner)
    for backbone in (m for m in learner.modules() if isinstance(m, Backbone)):
        state = backbone.state_dict(keep_vars=True)
        for name in (n.removeprefix("backbone.") for n in frozen):
            assert state[name].data_ptr() == frozen[f"backbone.{name}"].data_ptr()
            assert torch.equal(state[name], before[f"method.backbone.{name}"])
    moved = [n for n in learner.state(Role.SHARED) if n.startswith("target_backbone.")]
    assert bool(moved) == (method != "simclr" and adaptation != "head")
    state = learner.state_dict()
    weights = [f"method.{n}" for n in moved if n.endswith("weight")]
    assert all(not torch.equal(state[n], before[n]) for n in weights)


def test_a_shared_tensor_stays_shared_in_another_place(tiny):
    learner = build_learner(tiny("method=byol", "adaptation=head"), 1)
    there = learner.double()
    pairs = zip(
        there.method.backbone.buffers(), there.method.target_backbone.buffers(), strict=True
    )
    assert all(one is other for one, other in pairs)
    assert all(tensor.dtype == torch.float64 for tensor in there.state(Role.FROZEN).values())


def test_frozen_batch_norm_normalises_by_its_own_statistics(tiny):
    """In training as well, so that an image's features do not depend on its batch."""
    learner = build_learner(tiny("method=simclr", "adaptation=head"), 1).train()
    images = torch.rand(5, 1, 8, 8)
    backbone = learner.method.backbone
    torch.testing.assert_close(backbone(images)[:2], backbone(images[:2]))
    assert not backbone(images).requires_grad


def test_a_network_without_norms_is_refused(tiny, user_package):
    user_package({"backbones/bare.py": """
        from torch import nn
        from orchestra_flwr.models import Backbone

        class Bare(Backbone):
            obeys_norm = False

            def __init__(self, settings, model, channels):
                super().__init__(settings, model, channels)
                self.dim = 8
                self.layer = nn.Linear(64 * channels, 8)

            def forward(self, x):
                return self.layer(x.flatten(1))
    """})  # fmt: skip
    config = ("plugins=[my_package]", "method=simclr", "model=bare")
    with pytest.raises(ConfigError, match="adaptation=norms: .* no normalisation layer"):
        build_learner(tiny(*config, "adaptation=norms"), 1)
    with pytest.raises(ConfigError, match="adaptation.last=1: must be below 1"):
        build_learner(tiny(*config, "adaptation=blocks"), 1)


def test_what_has_no_head_cannot_freeze_all(tiny, user_package):
    user_package({"methods/bare.py": """
        from orchestra_flwr.methods import Method, Role, Step
        from orchestra_flwr.models import build_backbone

        class Bare(Method):
            def __init__(self, config, channels):
                super().__init__(config, channels)
                self.backbone = build_backbone(config.model, channels)

            def role(self, name):
                return Role.SHARED

            def recipes(self):
                return ()

            def backbones(self):
                return {"online": self.backbone}

            def loss(self, batch):
                return Step({})
    """})  # fmt: skip
    config = ("plugins=[my_package]", "method=simclr", "method.name=bare")
    build_learner(tiny(*config, "adaptation=norms"), 1)
    with pytest.raises(ConfigError, match="adaptation: nothing is left to train"):
        build_learner(tiny(*config, "adaptation=head"), 1)


def test_a_run_in_which_clients_train_nothing_that_they_share_is_refused(tiny):
    own = ("method=distill", "method.head=local")
    build_learner(tiny(*own, "adaptation=norms"), 1)
    with pytest.raises(ConfigError, match="adaptation: nothing .* that clients share"):
        build_learner(tiny(*own, "adaptation=head"), 1)
