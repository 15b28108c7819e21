"""A user's method or backbone that breaks its contract is refused before images are read."""

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import MethodConfig
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder
from orchestra_flwr.training import check_model

METHOD = """
    import torch
    from orchestra_flwr.methods import Role, Step
    from orchestra_flwr.methods.simclr import SimCLR

    class Mine(SimCLR):
        {}
"""
BROKEN = {
    "loss(batch) must return a Step, and this is a tensor of shape ()":
        "def loss(self, batch): return self.backbone(batch.views[0]).sum()",
    "the loss a must be a tensor of a single number, and this is a tensor of shape (4, 128)":
        "def loss(self, batch): return Step({'a': self.backbone(batch.views[0])})",
    "Step(losses) must be a dictionary, and this is a tensor of shape ()":
        "def loss(self, batch): return Step(self.backbone(batch.views[0]).sum())",
    "the losses of a Step must be Tensor objects, and this is a float":
        "def loss(self, batch): return Step({'a': 1.5})",
    "the loss a of random images is nan":
        "def loss(self, batch):\n"
        "            return Step({'a': super().loss(batch).losses['contrastive'] * torch.nan})",
    "no loss has a gradient: something is detached or frozen":
        "def loss(self, batch):\n"
        "            return Step({'a': super().loss(batch).losses['contrastive'].detach()})",
    "no gradient reaches extra.weight, extra.bias: use them in the loss, or requires_grad_(False)":
        "roles = {'extra': Role.SHARED}\n"
        "        def __init__(self, config, channels):\n"
        "            super().__init__(config, channels)\n"
        "            self.extra = torch.nn.Linear(2, 2)",
    # Said what is wrong, at a line of this package, and not what to write.
    "ValueError: the tensor extra.weight has no role: return one from role(name), or in a family "
    "add extra to the class attribute roles; Role.SHARED travels, LOCAL and TRANSIENT stay on the":
        "def __init__(self, config, channels):\n"
        "            super().__init__(config, channels)\n"
        "            self.extra = torch.nn.Linear(2, 2)",
    "Step(features): backbone must be a sequence of Tensor objects":
        "def loss(self, batch):\n"
        "            return Step(super().loss(batch).losses, {'backbone': batch.views[0]})",
    "it draws from torch's global random numbers":
        "def loss(self, batch): torch.rand(1); return super().loss(batch)",
    "recipes() must be a sequence of Recipe objects, and this is a Recipe":
        "def recipes(self): return super().recipes()[0]",
    "ValueError: not enough values to unpack (expected 2, got 1)":
        "def recipes(self): return super().recipes()[:1]",
    "role('backbone.layers.0.weight') must return a Role, and this is None":
        "def role(self, name): return None",
    "backbones() must return a dictionary, and this is a ConvNet":
        "def backbones(self): return self.backbone",
    "the values of backbones() must be a sequence of Backbone objects, and this is an empty list":
        "def backbones(self): return {}",
    "AttributeError: cannot assign module before Module.__init__() call (mine.py:":
        "def __init__(self, config, channels): self.backbone = torch.nn.Linear(1, 1)",
}  # fmt: skip


@pytest.mark.parametrize("line", BROKEN)
def test_a_method_that_breaks_its_contract_is_refused_in_one_line(tiny, user_package, line):
    user_package({"methods/mine.py": METHOD.format(BROKEN[line])})
    with pytest.raises(ConfigError) as error:
        check_model(tiny("plugins=[my_package]", "method=mine"), 1)
    assert str(error.value).startswith("method=mine: ")
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64"])
@pytest.mark.parametrize("role", ["SHARED", "SERVER", "LOCAL"])
def test_a_tensor_that_would_not_travel_is_refused(tiny, user_package, dtype, role):
    """Such buffers were left out of the mean, of messages and of files without a word."""
    buffer = f"""roles = {{'seen': Role.{role}}}
        def __init__(self, config, channels):
            super().__init__(config, channels)
            self.register_buffer('seen', torch.zeros(3, dtype=torch.{dtype}))"""
    user_package({"methods/mine.py": METHOD.format(buffer)})
    line = rf"^method=mine: seen is {dtype} and has Role.{role}: only floating-point tensors are"
    with pytest.raises(ConfigError, match=line):
        check_model(tiny("plugins=[my_package]", "method=mine"), 1)


@pytest.mark.parametrize(
    ("role", "buffer"),
    [
        ("TRANSIENT", "torch.zeros(3, dtype=torch.int64)"),
        ("SHARED", "torch.zeros(3, dtype=torch.int64), persistent=False"),
        ("SHARED", "torch.zeros(3, dtype=torch.float64)"),
    ],
)
def test_a_tensor_that_need_not_travel_may_have_any_type(tiny, user_package, role, buffer):
    text = f"""roles = {{'seen': Role.{role}}}
        def __init__(self, config, channels):
            super().__init__(config, channels)
            self.register_buffer('seen', {buffer})"""
    user_package({"methods/mine.py": METHOD.format(text)})
    check_model(tiny("plugins=[my_package]", "method=mine"), 1)


def test_constants_of_this_packages_networks_are_not_refused(tiny, user_package, monkeypatch):
    """Some of timm's, such as efficientformer_l1, have tables of positions."""
    from orchestra_flwr.models.backbones.convnet import ConvNet

    build = ConvNet.__init__

    def with_table(self, *arguments):
        build(self, *arguments)
        self.register_buffer("table", torch.arange(3))

    monkeypatch.setattr(ConvNet, "__init__", with_table)
    user_package({"methods/mine.py": METHOD.format("pass")})
    check_model(tiny("plugins=[my_package]", "method=mine", "model=convnet"), 1)


def test_a_target_that_was_not_added_is_said(tiny, user_package):
    user_package({"methods/mine.py": """
        from orchestra_flwr.methods.families import MomentumEncoder

        class Mine(MomentumEncoder):
            def loss(self, batch):
                return self.target_projections(batch.views)
    """})  # fmt: skip
    with pytest.raises(ConfigError, match=r"no target: call add_target\(\) at the end of __init__"):
        check_model(tiny("plugins=[my_package]", "method=mine"), 1)


def test_a_backbone_of_another_width_is_refused(tiny, user_package):
    user_package({"backbones/narrow.py": """
        from orchestra_flwr.models.backbones.convnet import ConvNet

        class Narrow(ConvNet):
            def forward(self, x):
                return super().forward(x)[:, :5]
    """})  # fmt: skip
    wanted = r"model=narrow: the backbone online has dim=(\d+) and must return \(B, \1\) features"
    with pytest.raises(ConfigError, match=wanted):
        check_model(tiny("plugins=[my_package]", "method=simclr", "model=narrow"), 1)


TERM = """
    import torch
    from orchestra_flwr.terms import Term

    class Mine(Term):
        def loss(self, method, batch, step):
            return {}
"""


@pytest.mark.parametrize(
    ("returned", "refusal"),
    [
        ("step.features['backbone'][0]", "the loss mine must be a tensor of a single number, and "),
        ("0.5", "the loss mine must be a tensor of a single number, and this is a float"),
        ("step.losses['contrastive'] * torch.nan", "the loss mine of random images is nan"),
        ("step.features['none'][0].mean()", "KeyError: 'none' (mine.py:"),
        ("torch.rand(())", "it draws from torch's global random numbers"),
    ],
)
def test_a_term_that_breaks_its_contract_is_refused(tiny, user_package, returned, refusal):
    user_package({"terms/mine.py": TERM.format(returned)})
    config = tiny("plugins=[my_package]", "method=simclr", "terms.mine.weight=0.1")
    with pytest.raises(ConfigError) as error:
        check_model(config, 1)
    assert str(error.value).startswith("terms.mine")
    assert refusal in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("term", ["proximal", "alignment", "verification"])
def test_terms_of_this_package_are_tried_beside_a_users_method(tiny, user_package, term):
    user_package({"methods/mine.py": METHOD.format("pass")})
    check_model(tiny("plugins=[my_package]", "method=mine", f"terms.{term}.weight=0.1"), 1)


@pytest.mark.parametrize("name", sorted({*MethodConfig.room.found()} - {"mae", "distill"}))
def test_every_method_of_this_package_keeps_the_contract(tiny, user_package, name):
    """As the method of a user who derives from it and changes nothing."""
    method = MethodConfig.room.find(name)
    user_package({"methods/mine.py": f"""
        from {method.__module__} import {method.__name__}

        class Mine({method.__name__}):
            pass
    """})  # fmt: skip
    before = torch.get_rng_state()
    check_model(tiny("plugins=[my_package]", "method=mine", "training.lr=0.03"), 1)
    assert torch.equal(torch.get_rng_state(), before)  # the run's own bits stay


def test_methods_of_this_package_are_built_but_not_tried(tiny, monkeypatch):
    from orchestra_flwr.methods.simclr import SimCLR

    monkeypatch.setattr(SimCLR, "loss", None)
    check_model(tiny("method=simclr"), 1)


@pytest.mark.parametrize("plugin", [False, True])
def test_a_network_of_one_image_size_is_refused_smaller_views(tiny, user_package, plugin):
    overrides = ()
    if plugin:
        user_package({"methods/mine.py": METHOD.format("pass")})
        overrides = ("plugins=[my_package]", "method=mine")
    config = tiny(*overrides, "model=vit_tiny", "model.width=24", "model.depth=1",
                  "data.image_size=16", "data.augmentation.view_size=8")  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"^data\.augmentation\.view_size=8: the network takes no"
    ):
        check_model(config, 1)
    check_model(tiny(*overrides, "data.image_size=16", "data.augmentation.view_size=8"), 1)


CLUSTERING = """
    import torch
    from orchestra_flwr.clustering.clusterings.sinkhorn import Sinkhorn
    from orchestra_flwr.privacy.release import Contribution

    class Mine(Sinkhorn):
        {}
"""


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ("def observe(self, images, features): self.none", "has no attribute 'none' (mine.py:7)"),
        ("def end_round(self, images, seed): self.none", "has no attribute 'none' (mine.py:7)"),
        ("def end_round(self, images, seed): pass", "end_round must return a Contribution, and"),
    ],
)
def test_a_clustering_is_tried(tiny, user_package, wrong, line):
    """It was found out after all images had been read."""
    user_package({"clusterings/mine.py": CLUSTERING.format(wrong)})
    with pytest.raises(ConfigError) as error:
        check_model(tiny("plugins=[my_package]", "clustering=mine"), 1)
    assert str(error.value).startswith("clustering=mine: ") and line in str(error.value)


@pytest.mark.parametrize("rows", [8, 40])
def test_a_clustering_with_a_fixed_number_of_rows_is_not_refused(tiny, user_package, rows):
    """It is tried with images enough for 8 rows of 30, and not for 40: that would take long."""
    fixed = f"""def end_round(self, images, seed):
            centroids = torch.randn({rows}, 16)
            return Contribution({{"local_centroids": centroids}}, len(images) // {rows})"""
    user_package({"clusterings/mine.py": CLUSTERING.format(fixed)})
    options = ("privacy.k_min=30", f"clustering.local_clusters={rows}")
    check_model(tiny("plugins=[my_package]", "clustering=mine", *options), 1)


@pytest.mark.parametrize("weight", [1e20, float("nan")])
@pytest.mark.parametrize("method", ["simclr", "mine"])
def test_first_weights_without_finite_features_are_refused(
    tiny, user_package, tmp_path, weight, method
):
    """A run was begun, and ended at its first evaluation."""
    user_package({"methods/mine.py": METHOD.format("pass")})
    file = tmp_path / "encoder.safetensors"
    encoder = Encoder(EncoderSpec.of(tiny()))
    save_encoder(file, encoder)
    config = tiny("plugins=[my_package]", f"method={method}", f"init={file}")
    check_model(config, 1)
    for parameter in encoder.backbone.parameters():
        parameter.data.fill_(weight)
    save_encoder(file, encoder)
    with pytest.raises(ConfigError, match=r"^init=.*: its features of an image are not finite"):
        check_model(config, 1)
    check_model(config, 1, begun=True)  # they are not read
