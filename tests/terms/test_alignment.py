import copy

import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Batch, Received, Role, Step
from orchestra_flwr.models import extract_features, normalise, recalibrated
from orchestra_flwr.models.batch_norm import has_statistics
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.terms.alignment import mean_negative_cosine
from orchestra_flwr.training import build_learner, train_round

SEED = ClientSeed(0, 1, "0")
LABELS = torch.arange(40) % 10
PROJECTING = ("byol", "orchestra", "rotpred", "simclr", "simsiam", "specloss")
GROUP = ("model.norm=group",)


def images(count=40):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)


def a_learner(config):
    learner = build_learner(config, 1)
    for tensor in learner.state(Role.SERVER).values():
        torch.nn.init.orthogonal_(tensor, generator=torch.Generator().manual_seed(0))
    return learner


def received_by(learner, shift=0.0, count=40):
    """What the server sent: what the learner is now, plus noise."""
    draw = torch.Generator().manual_seed(3)
    state = {
        name: tensor + shift * torch.randn(tensor.shape, generator=draw)
        for role in (Role.SHARED, Role.SERVER)
        for name, tensor in learner.state(role).items()
    }
    return Received("0", 0, 1, images(count), state)


def clean_batch(method, count=40):
    """The images as they are in every view."""
    view = normalise(images(count).float() / 255, "half")
    views = tuple(view.clone() for _ in method.recipes())
    return Batch(torch.arange(count), views, (None,) * len(views), torch.Generator())


def term_value(learner, batch):
    return learner.terms["alignment"].loss(learner.method, batch, learner.method.loss(batch))


def train(config, shift=0.0, count=40):
    learner = a_learner(config)
    received = received_by(learner, shift, count)
    result = train_round(
        learner, images(count), config, SEED, labels=LABELS[:count], received=received
    )
    return learner, received, result


def test_the_slow_way():
    draw = torch.Generator().manual_seed(0)
    first, second, target = (torch.randn(5, 7, generator=draw) for _ in range(3))
    total = 0.0
    for view in (first, second):
        for a, b in zip(view, target, strict=True):
            dot = sum(float(x) * float(y) for x, y in zip(a, b, strict=True))
            total -= dot / float(a.square().sum() * b.square().sum()) ** 0.5
    loss = mean_negative_cosine([first, second], target)
    assert loss.item() == pytest.approx(total / 10, abs=1e-6)


def test_the_lengths_of_features_do_not_matter_and_the_target_gets_no_gradient():
    draw = torch.Generator().manual_seed(0)
    view, target = (torch.randn(5, 7, generator=draw, requires_grad=True) for _ in range(2))
    loss = mean_negative_cosine([view], target)
    lengths = torch.rand(5, 1, generator=draw) + 0.1
    torch.testing.assert_close(mean_negative_cosine([view * lengths], target * 30), loss)
    loss.backward()
    assert target.grad is None and view.grad.abs().sum() > 0


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("method", ["simclr", "simsiam"])
def test_equal_models_without_augmentation_give_minus_1(tiny, norm, method):
    """BatchNorm: in evaluation mode, and all images at once for the projector's."""
    learner = a_learner(tiny(f"method={method}", f"model.norm={norm}", "terms.alignment.weight=1"))
    learner.train(norm == "group")
    learner.start_round(received_by(learner))
    value = term_value(learner, clean_batch(learner.method))
    assert value.item() == pytest.approx(-1, abs=1e-6)
    learner.start_round(received_by(learner, shift=0.1))
    assert value.item() + 1e-3 < term_value(learner, clean_batch(learner.method)).item() < 1


@pytest.mark.parametrize(
    ("between", "widths"),
    [
        ("projector_projector", ()),
        ("predictor_projector", ()),
        ("projector_backbone", ("model.projector_dim=128",)),
    ],
)
def test_between_says_which_features_are_compared(tiny, between, widths):
    """Against both networks by hand; the received one in evaluation mode, as it was sent."""
    config = tiny("method=simsiam", *GROUP, *widths, "terms.alignment.weight=1",
                  f"terms.alignment.between={between}")  # fmt: skip
    learner = a_learner(config)
    received = received_by(learner, shift=0.05)
    learner.start_round(received)
    sent = copy.deepcopy(learner.method)
    sent.load_state_dict({k.removeprefix("method."): v for k, v in received.state.items()})
    sent.eval()
    batch = clean_batch(learner.method)
    value = term_value(learner, batch)

    def features(method, part):
        backbone = method.backbone(batch.views[0])
        projector = method.projector(backbone)
        predictor = method.predictor(projector)
        return {"backbone": backbone, "projector": projector, "predictor": predictor}[part]

    local, frozen = between.split("_")
    by_hand = -F.cosine_similarity(features(learner.method, local), features(sent, frozen))
    assert value.item() == pytest.approx(by_hand.mean().item(), abs=1e-5)


def test_each_image_is_held_against_its_own_features(tiny):
    """Whatever batch it is in: rows of the batch are looked up, not its positions."""
    learner = a_learner(tiny("method=simclr", *GROUP, "terms.alignment.weight=1"))
    learner.start_round(received_by(learner))
    rows = torch.tensor([31, 2, 7])
    whole = clean_batch(learner.method)
    part = Batch(rows, tuple(v[rows] for v in whole.views), (None, None), torch.Generator())
    assert term_value(learner, part).item() == pytest.approx(-1, abs=1e-6)
    wrong = Batch(rows.roll(1), part.views, (None, None), torch.Generator())
    assert term_value(learner, wrong).item() > -1 + 1e-3


def test_the_received_model_works_in_evaluation_mode_once_a_round_and_stays(tiny, monkeypatch):
    """Of the client's own statistics none moves, and its modes are as before."""
    learner = a_learner(tiny("method=simclr", "terms.alignment.weight=1")).train()
    received = received_by(learner, shift=0.05)
    before = {name: t.clone() for name, t in learner.state_dict().items()}
    sent = {name: t.clone() for name, t in received.state.items()}
    modes = [module.training for module in learner.modules()]
    passes, original = [], type(learner.method.backbone).forward

    def forward(self, x):
        passes.append((self.training, torch.is_grad_enabled(), len(x)))
        return original(self, x)

    monkeypatch.setattr(type(learner.method.backbone), "forward", forward)
    learner.start_round(received)
    assert passes == [(False, False, 16), (False, False, 16), (False, False, 8)]
    assert all(torch.equal(t, before[name]) for name, t in learner.state_dict().items())
    assert all(torch.equal(t, sent[name]) for name, t in received.state.items())
    assert modes == [module.training for module in learner.modules()]
    target = learner.terms["alignment"]._target
    loss = learner.loss(clean_batch(learner.method))[0]["alignment"]
    loss.backward()
    assert len(passes) == 3 + 2 and not target.requires_grad
    assert learner.terms["alignment"]._target is target


def test_what_the_server_did_not_send_is_the_clients_own(tiny):
    """With fedbn the received model has the client's norms."""
    config = tiny("method=simclr", "merging=fedbn", "terms.alignment.weight=1")
    learner = a_learner(config).eval()
    for tensor in learner.state(Role.LOCAL).values():
        tensor.mul_(1.5).add_(0.1)
    learner.start_round(received_by(learner))
    value = term_value(learner, clean_batch(learner.method))
    assert value.item() == pytest.approx(-1, abs=1e-6)


def test_norms_that_a_client_has_not_trained_yet_get_statistics_of_its_images(tiny):
    """With fedbn those of a client's first round are of no images, and all else is trained."""
    config = tiny("method=simclr", "merging=fedbn", "terms.alignment.weight=1")
    learner = a_learner(config)
    learner.start_round(received_by(learner))
    method = learner.method
    backbone = recalibrated(method.backbone, images(), 16, "half")
    features = extract_features(backbone, images(), 16, by="half")
    expected = method.projector.eval()(features)
    torch.testing.assert_close(learner.terms["alignment"]._target, expected)
    assert not has_statistics(method.backbone)


def test_weight_0_builds_nothing_and_leaves_the_bits(tiny):
    plain = train(tiny("method=simclr"))
    off = train(tiny("method=simclr", "terms.alignment.weight=0"))
    assert list(off[0].terms) == [] and not off[0].needs_received
    assert off[0].state_dict().keys() == plain[0].state_dict().keys()
    assert all(torch.equal(t, off[0].state_dict()[n]) for n, t in plain[0].state_dict().items())
    assert plain[2].losses == off[2].losses


def test_the_state_that_travels_is_the_same(tiny):
    shapes = [
        [(name, tensor.shape) for role in Role for name, tensor in learner.state(role).items()]
        for learner in (a_learner(tiny()), a_learner(tiny("terms.alignment.weight=1")))
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", PROJECTING)
def test_composes_with_every_method_that_projects(tiny, method, precision):
    overrides = (f"method={method}", f"training.precision={precision}", "training.local_epochs=5",
                 "training.lr=0.03", "terms.alignment.weight=0.5")  # fmt: skip
    learner, _, result = train(tiny(*overrides), shift=0.02)
    assert -0.5 <= result.losses["alignment"] < 0.5
    assert all(torch.isfinite(t).all() for t in learner.state(Role.SHARED).values())


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_its_gradient_leads_to_the_received_models_features(tiny, norm):
    """Twenty steps down from a model beside the received one, by the term alone."""
    learner = a_learner(tiny("method=simclr", f"model.norm={norm}", "terms.alignment.weight=1"))
    learner.start_round(received_by(learner, shift=0.1))
    optimizer = torch.optim.SGD(learner.method.parameters(), lr=0.3)
    values = []
    for _ in range(20):
        optimizer.zero_grad()
        value = term_value(learner, clean_batch(learner.method))
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[0] > -0.97 and values[-1] < values[0] - 0.02


@pytest.mark.parametrize("count", [1, 2, 17])
def test_any_number_of_images(tiny, count):
    _, _, result = train(tiny("method=simclr", "terms.alignment.weight=1"), count=count)
    assert -1 <= result.losses["alignment"] <= 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("method=supervised",), "projector_projector: method=supervised has no projector"),
        (
            ("method=simclr", "terms.alignment.between=predictor_projector"),
            "predictor_projector: method=simclr has no predictor",
        ),
        (
            ("method=simclr", "terms.alignment.between=projector_backbone"),
            "projector_backbone: needs equal widths, and the backbone has 128: "
            "model.projector_dim=16 must be 128",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(tiny, overrides, message):
    config = tiny(*overrides, "terms.alignment.weight=1")
    with pytest.raises(ConfigError) as error:
        build_learner(config, 1)
    assert str(error.value) == f"terms.alignment.between={message}"


def test_norms_without_trained_statistics_are_refused(tiny):
    clipped = ("federation.weighting=uniform", "privacy.clip=1", "method=simclr")
    says = r"privacy\.clip=1: must be null with terms\.alignment\.weight=1 and BatchNorm"
    with pytest.raises(ConfigError, match=says):
        tiny(*clipped, "terms.alignment.weight=1")
    tiny(*clipped, "model.batch_norm=frozen", "terms.alignment.weight=1")
    with pytest.raises(ConfigError, match="^model.batch_norm=recalibrated: must be null with term"):
        tiny("method=simclr", "model.batch_norm=recalibrated", "terms.alignment.weight=1")
    tiny(*clipped, "merging=fedbn", "terms.alignment.weight=1")  # statistics of its own
    tiny(*clipped, *GROUP, "terms.alignment.weight=1")
    tiny(*clipped, "terms.alignment.weight=0")


def test_a_step_without_the_features_is_no_silent_zero(tiny):
    learner = a_learner(tiny("method=simclr", "terms.alignment.weight=1"))
    learner.start_round(received_by(learner))
    with pytest.raises(KeyError, match="projector"):
        learner.terms["alignment"].loss(learner.method, clean_batch(learner.method), Step({}))
