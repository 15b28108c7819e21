import pytest
import torch

from orchestra_flwr.methods import Batch, Role, Step
from orchestra_flwr.terms import Term
from orchestra_flwr.training import Learner, build_learner
from orchestra_flwr.training.learner import full_name


class Twice(Term):
    """A head of its own, and the method's features of the first view."""

    def __init__(self, config, method):
        super().__init__(None, config, method)
        self.head = torch.nn.Linear(method.backbone.dim, 1)

    def role(self, name):
        return Role.LOCAL if name.startswith("head.") else super().role(name)

    def loss(self, method, batch, step):
        return self.head(step.features["backbone"][0]).mean()


def batch(views=2, n=6):
    generator = torch.Generator().manual_seed(0)
    images = tuple(torch.rand(n, 1, 8, 8, generator=generator) for _ in range(views))
    return Batch(torch.arange(n), images, (None,) * views, generator)


@pytest.fixture
def learner(tiny):
    config = tiny("method=simclr")
    method = build_learner(config, 1).method
    return Learner(method, {"twice": (Twice(config, method), 0.5)}).train()


def test_tensors_have_the_methods_names_and_those_of_terms_a_prefix(learner):
    local, shared = learner.state(Role.LOCAL), learner.state(Role.SHARED)
    assert set(local) == {"terms.twice.head.weight", "terms.twice.head.bias"}
    floats = {n for n, t in learner.method.state_dict().items() if t.is_floating_point()}
    assert set(shared) == floats
    assert set(learner.trained()) == {full_name(n) for n, _ in learner.named_parameters()}
    shared["projector.0.weight"].zero_()  # memory is shared
    assert not learner.method.projector[0].weight.any()


def test_a_name_without_a_role_is_an_error(learner):
    for name in ("clustering.memory.features", "terms.twice.other"):
        with pytest.raises(ValueError, match=r"has no (role|tensor)"):
            learner.role(name)


def test_roles_can_be_changed_by_full_names(learner):
    assert learner.role("projector.0.weight") is Role.SHARED
    learner.override_roles(lambda name, role: Role.LOCAL if name.startswith("projector.") else role)
    assert learner.role("projector.0.weight") is Role.LOCAL
    assert learner.role("backbone.layers.0.weight") is Role.SHARED
    learner.override_roles(None)
    assert learner.role("projector.0.weight") is Role.LOCAL
    learner.override_roles(lambda name, role: Role.TRANSIENT if role is Role.LOCAL else role)
    assert learner.role("projector.0.weight") is Role.TRANSIENT


def test_each_role_is_asked_for_once_until_one_changes(learner, monkeypatch):
    asked, role = [], learner.method.role
    monkeypatch.setattr(learner.method, "role", lambda name: asked.append(name) or role(name))
    for _ in range(3):
        assert learner.state(Role.SHARED)
    assert len(asked) == len(set(asked)) > 0
    learner.override_roles(lambda name, role: Role.SERVER)
    assert not learner.state(Role.SHARED) and learner.state(Role.SERVER)


def test_the_loss_is_the_methods_parts_and_the_weighted_terms(learner):
    losses, _ = learner.loss(batch())
    step = learner.method.loss(batch())
    assert set(losses) == {"contrastive", "twice"}
    assert torch.equal(losses["contrastive"], step.losses["contrastive"])
    expected = 0.5 * learner.terms["twice"].head(step.features["backbone"][0]).mean()
    torch.testing.assert_close(losses["twice"], expected)


def test_a_term_may_not_hide_a_part_of_the_methods_loss(learner, monkeypatch):
    named = Step({"twice": torch.zeros(())}, {"backbone": (torch.zeros(2, 1),)})
    monkeypatch.setattr(type(learner.method), "loss", lambda self, batch: named)
    with pytest.raises(ValueError, match="terms.twice: a part of the method's loss"):
        learner.loss(batch())


def test_a_method_begins_with_the_same_bits_with_and_without_terms(tiny):
    plain = build_learner(tiny(), 1)
    more = build_learner(tiny("terms.proximal.weight=0.1"), 1)
    assert list(plain.terms) == [] and list(more.terms) == ["proximal"]
    assert (plain.needs_received, more.needs_received) == (False, True)
    states = plain.method.state_dict(), more.method.state_dict()
    assert all(torch.equal(t, states[1][name]) for name, t in states[0].items())


@pytest.mark.parametrize("method", ["orchestra", "simclr", "byol"])
def test_with_a_clip_statistics_are_sent_down_only(tiny, method):
    """Moments of a client's features are no update: clipped with it, they leave little of it."""
    clipped = build_learner(
        tiny(f"method={method}", "privacy.clip=1", "federation.weighting=uniform"), 1
    )
    free = build_learner(tiny(f"method={method}"), 1)
    moved = free.state(Role.SHARED).keys() - clipped.state(Role.SHARED).keys()
    assert moved == {name for name in free.state(Role.SHARED) if "running_" in name} != set()
    assert moved <= clipped.state(Role.SERVER).keys()
