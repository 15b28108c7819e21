import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.merging import compared_weights, divergence, keeps_state
from orchestra_flwr.merging.fedbn import FedBN
from orchestra_flwr.merging.fedema import FedEMA
from orchestra_flwr.merging.fedu import FedU
from orchestra_flwr.merging.replace import Replace
from orchestra_flwr.training import build_learner

METHODS = (
    "byol", "dino", "mocov2", "orchestra", "rotpred", "simclr", "simsiam", "specloss",
    "supervised", "swav",
)  # fmt: skip


def test_divergence_is_the_mean_distance_of_the_tensors():
    """|(3, 4)| = 5 and |1| = 1, so 3; what only the other side holds does not count."""
    one = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([2.0])}
    other = {"a": torch.zeros(2), "b": torch.tensor([1.0]), "c": torch.tensor([9.0])}
    assert divergence(one, other) == 3.0


@pytest.mark.parametrize(
    ("name", "kind", "keeps"),
    [("replace", Replace, False), ("fedu", FedU, True), ("fedema", FedEMA, True),
     ("fedbn", FedBN, True)],
)  # fmt: skip
def test_the_policy_that_is_asked_for(tiny, name, kind, keeps):
    config = tiny(f"merging={name}", "method=simsiam")
    assert isinstance(config.merging.build(), kind)
    assert keeps_state(config, build_learner(config, 1)) is keeps


def test_options_belong_to_the_policy(tiny):
    assert tiny("merging=fedu").merging.settings == FedU.Settings(threshold=0.4)
    assert tiny("merging=fedema").merging.settings == FedEMA.Settings(scale=None, first_mu=0.7)
    assert tiny("merging=fedu", "merging.threshold=0.1").merging.settings.threshold == 0.1
    for overrides, says in (
        (["merging=fedu", "merging.threshold=-1"], "merging.threshold=-1"),
        (["merging=fedema", "merging.first_mu=2"], "merging.first_mu=2"),
        (["merging=fedbn", "+merging.threshold=1"], "merging=fedu has it"),
    ):
        with pytest.raises(ConfigError, match=says):
            tiny(*overrides)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("model", ["convnet", "resnet18"])
def test_every_method_has_a_backbone_with_weights_to_compare(tiny, name, model):
    """Else its divergence would always be 0, and no policy would ever act."""
    moved_apart(build_learner(tiny(f"method={name}", f"model={model}"), 1))


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=byol", "model=vit_tiny", "model.width=24", "model.patch=4", "model.depth=1"],
        ["method=mae", "model=vit_tiny", "model.width=24", "model.patch=4", "model.depth=1"],
        ["method=byol", "model=cct", "model.width=16"],
    ],
)
def test_transformers_have_weights_to_compare(tiny, overrides):
    learner = build_learner(tiny(*overrides), 1)
    moved_apart(learner)
    assert all("norm" not in name for name in compared_weights(learner))


@pytest.mark.parametrize("adaptation", ["norms", "lora", "blocks", "head"])
def test_what_an_adaptation_trains_has_weights_to_compare(tiny, adaptation):
    if adaptation == "lora":
        pytest.importorskip("peft", reason="needs the extra timm")
    overrides = ["method=byol", "model=resnet18", f"adaptation={adaptation}"]
    learner = build_learner(tiny(*overrides, "terms.verification.weight=1"), 1)
    moved_apart(learner)
    assert not any(name.startswith("terms.") for name in compared_weights(learner))


def moved_apart(learner):
    before = {name: t.clone() for name, t in compared_weights(learner).items()}
    with torch.no_grad():
        for parameter in learner.trained().values():
            parameter.add_(1)
    assert divergence(before, compared_weights(learner)) > 1
