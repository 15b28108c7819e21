"""What holds for all methods, and for each that will be added."""

import copy
import hashlib
import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from orchestra_flwr.config.choices import MethodConfig, ModelConfig
from orchestra_flwr.data import ImageSet, augment
from orchestra_flwr.methods import (
    Batch,
    ChecksClients,
    Contributes,
    KeepsState,
    LearnsLabels,
    Received,
    Role,
    build_method,
    classes_of,
    release_of,
    sees_labels,
)
from orchestra_flwr.models import normalise
from orchestra_flwr.models.precision import passes_in
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, observe_round, train_round

METHODS = sorted(MethodConfig.room.found())
SEED = ClientSeed(0, 1, "0")
GRAY = ("training.lr=0.03",)
NEEDS = {
    "mae": ("model=vit_tiny", "model.width=24", "model.depth=2"),
    # Losses of one size: a filling queue and a centre that comes to its place make them grow.
    "mocov2": ("method.queue=16", "method.ema=0.9"),
    "dino": ("method.outputs=32", "method.centre_ema=0"),
}
COLOUR = ("training.lr=0.03", "data=image_folder", "data.root=x", "data.image_size=16")


def digits():
    data = load_digits()
    images = torch.from_numpy(data.images[:64, None] * 15).to(torch.uint8)
    return ImageSet(images, torch.from_numpy(data.target[:64]).long())


def stripes():
    """Coloured stripes of four directions and widths, with noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(48) % 4
    ramp = torch.arange(16).float()
    waves = torch.stack([(ramp * (k + 1) / 2).sin() for k in range(4)])[labels]
    images = waves[:, None, None, :] * torch.rand(48, 3, 1, 1, generator=generator)
    images = images + 0.2 * torch.randn(48, 3, 16, 16, generator=generator)
    return ImageSet((images * 60 + 128).clamp(0, 255).to(torch.uint8), labels)


IN_BOTH = pytest.mark.parametrize("task", ["digits", "colour"], indirect=True)


@pytest.fixture
def task(request, tiny):
    """The configuration of a method, and its images: digits, or coloured ones."""

    def configured(name, *overrides):
        overrides = (*NEEDS.get(name, ()), *overrides)
        if getattr(request, "param", "digits") == "digits":
            return tiny(*GRAY, f"method={name}", *overrides), digits()
        learns = getattr(MethodConfig.room.find(name), "needs_labels", False)
        named = ["method.classes=[a,b,c,d]"] if learns else []
        return tiny(f"method={name}", *COLOUR, *named, *overrides), stripes()

    return configured


def build(config):
    """A learner as a client has it after the first round, if its method needs one."""
    learner = build_learner(config, config.data.channels)
    release = release_of(config)
    if release is not None:
        random = {
            name: torch.randn(8, width, generator=SEED.generator(name))
            for name, (_, width) in release.rows.items()
        }
        learner.method.update_server_state(random, SEED.generator("server"))
    return learner


def train(learner, config, images):
    return train_round(learner, images.images, config, SEED, labels=images.labels)


def a_batch(method, images, count=16):
    """A batch as training makes it, in a round that has begun."""
    if isinstance(method, ChecksClients):  # it needs something of the client's own
        method.start_round(Received("0", 0, 1, images.images))
    draw = torch.Generator().manual_seed(0)
    views = augment(images.images[:count], method.recipes(), draw)
    learns = isinstance(method, LearnsLabels) and method.needs_labels
    labels = images.labels[:count] if learns else None
    normalised = tuple(normalise(view, "half") for view in views.images)
    generator = torch.Generator().manual_seed(1)
    return Batch(torch.arange(count), normalised, views.rotations, generator, labels)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("task", "epochs"),
    [("digits", 12), pytest.param("colour", 25, marks=pytest.mark.slow)],
    indirect=["task"],
)
def test_a_round_trains_all_that_is_trained_and_the_loss_falls(task, epochs, name):
    config, images = task(name)
    learner = build(config)
    before = copy.deepcopy(learner)
    first = train(learner, config, images)
    assert first.steps == -(-len(images) // 16)
    trained = {n for n, p in learner.named_parameters() if p.requires_grad}
    start = dict(before.named_parameters())
    moved = {n for n, p in learner.named_parameters() if not torch.equal(p, start[n])}
    assert trained <= moved and all("target" in name for name in moved - trained)
    assert all(torch.isfinite(t).all() for t in learner.state(Role.SHARED).values())

    longer, _ = task(name, f"training.local_epochs={epochs}")
    again = train(build(longer), longer, images)  # a mean over all steps
    falling = "rotation" if name.startswith("orchestra") else next(iter(first.losses))
    assert again.losses[falling] < first.losses[falling]


@pytest.mark.parametrize(
    "task", ["digits", pytest.param("colour", marks=pytest.mark.slow)], indirect=True
)
@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_that_is_trained_gets_a_gradient_in_each_step(task, name, monkeypatch):
    config, images = task(name)
    learner = build(config)
    steps = []

    def look(self):
        steps.append({n: float(p.grad.abs().sum()) for n, p in learner.named_parameters()
                      if p.requires_grad})  # fmt: skip
        for parameter in learner.parameters():
            assert parameter.requires_grad or parameter.grad is None
            parameter.grad = None

    monkeypatch.setattr("orchestra_flwr.training.optimizers.Optimizer.step", look)
    train(learner, config, images)
    assert steps and all(size > 0 for step in steps for size in step.values())


# Those of commit ce3db6f, before heads could be chosen: names, in order, and weights that travel.
FIRST = {
    "byol": ("a5704e28c4fb", 24478.060215420963),
    "orchestra": ("0d8e1599469b", 21943.74291068334),
    "rotpred": ("e2449984b377", 5980.440264179841),
    "simclr": ("878d94436aa5", 5961.450339987412),
    "simsiam": ("7fd50ab7874a", 6844.016970837143),
    "specloss": ("60bbd200f8ae", 5801.049624815121),
    "supervised": ("6aebb6ad5e81", 5556.276849488848),
}


@pytest.mark.parametrize("name", FIRST)
def test_names_and_first_weights_stay_as_they_are(tiny, name):
    """So that runs with the defaults end in the same bits, and old ones can be resumed."""
    method = build_method(tiny(f"method={name}"), 1)
    travels = (Role.SHARED, Role.SERVER)
    state = {n: t for n, t in method.state_dict().items() if method.role(n) in travels}
    sums = [value.double().sum().item() for value in state.values()]
    names = hashlib.sha256(",".join(state).encode()).hexdigest()[:12]
    weights = sum(i * total for i, total in enumerate(sums, 1))
    assert (names, weights) == (FIRST[name][0], pytest.approx(FIRST[name][1], rel=1e-9))


@pytest.mark.parametrize("name", [name for name in METHODS if name != "mae"])  # as images are
def test_plain_heads_and_views_with_group_norm(task, name):
    plain = ("model.projector=plain", "model.projector_hidden=24", "method.views=plain",
             "model.norm=group", "model.groups=2")  # fmt: skip
    config, images = task(name, *plain)
    learner = build(config)
    before = {n: t.clone() for n, t in learner.trained().items()}
    result = train(learner, config, images)
    assert all(map(math.isfinite, result.losses.values()))
    assert all(not torch.equal(t, before[n]) for n, t in learner.trained().items())
    for head in (m for n, m in learner.method.named_children() if n in ("projector", "predictor")):
        assert [m.out_features for m in head if isinstance(m, nn.Linear)] == [24, 16]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("remembers", [False, True])
def test_every_tensor_has_a_role_and_an_unknown_name_is_an_error(task, name, remembers):
    config, images = task(name)
    learner = build(config)
    train(learner, config, images)
    method = learner.method
    if remembers and isinstance(method, KeepsState):
        method.keep_locally()
    roles = {tensor: method.role(tensor) for tensor in method.state_dict()}
    assert all(isinstance(role, Role) for role in roles.values())
    states = [set(learner.state(role)) for role in Role]
    floats = {n for n, t in method.state_dict().items() if t.is_floating_point()}
    assert set.union(*states) == floats and sum(map(len, states)) == len(floats)
    trained = {n for n, p in method.named_parameters() if p.requires_grad}
    assert trained <= set(learner.state(Role.SHARED))
    assert not any("memory" in tensor for tensor in states[0] | states[1])
    for unknown in ("", "unknown.weight", "backbones.weight", "back"):
        with pytest.raises(ValueError, match="has no role"):
            method.role(unknown)


@IN_BOTH
@pytest.mark.parametrize("name", METHODS)
def test_sizes_are_known_without_a_network(task, name, monkeypatch):
    """What is released and which classes are learned is asked of the class."""
    config, _ = task(name)
    built = build_method(config, config.data.channels)

    def refuse(*_):
        raise AssertionError("a network was built")

    monkeypatch.setattr(ModelConfig, "build", refuse)
    release, classes = release_of(config), classes_of(config)
    assert (release is not None) == isinstance(built, Contributes)
    assert (classes is not None) == sees_labels(config)
    with pytest.raises(AssertionError, match="a network was built"):
        build_method(config, config.data.channels)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_contributed_is_what_the_release_says(task, name):
    config, images = task(name)
    learner = build(config)
    release = release_of(config)
    arrays = train(learner, config, images).contribution.arrays
    assert arrays.keys() == (release.rows if release else {}).keys()
    for key, array in arrays.items():
        most, width = release.rows[key]
        assert array.shape[1:] == (width,) and len(array) <= most


@IN_BOTH
@pytest.mark.parametrize("name", METHODS)
def test_features_are_one_row_an_image_for_each_view_with_gradient(task, name):
    config, images = task(name)
    learner = build(config).train()
    method = learner.method
    step = method.loss(a_batch(method, images))
    assert all(loss.shape == () for loss in step.losses.values())
    assert "backbone" in step.features and step.features.keys() <= {
        "backbone",
        "projector",
        "predictor",
    }
    for part in ("projector", "predictor"):
        assert (part in step.features) == hasattr(method, part)
    widths = {"backbone": method.backbone.dim}
    views = {len(features) for features in step.features.values()}
    assert len(views) == 1 and 1 <= views.pop() <= len(method.recipes())
    for module, features in step.features.items():
        for feature in features:
            width = widths.get(module, config.model.projector_dim)
            assert feature.shape == (16, width) and feature.requires_grad


@pytest.mark.parametrize("name", METHODS)
def test_a_loss_draws_from_the_batchs_generator_alone(task, name):
    config, images = task(name)
    losses = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        learner = build(config).train()
        batch = a_batch(learner.method, images)
        state = torch.get_rng_state()
        losses.append(learner.method.loss(batch).losses)
        assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(losses[0][part], losses[1][part]) for part in losses[0])


@pytest.mark.parametrize("name", [n for n in METHODS if n not in ("mae", "distill")])  # mae draws
def test_a_loss_decides_nothing_by_values(task, name):
    """So that a step can be captured as a CUDA graph. Tensors on the device meta have no values."""
    config, images = task(name)
    with torch.device("meta"):
        method = build_learner(config, config.data.channels).train().method
    real = a_batch(build_method(config, config.data.channels), images)
    views, turns, labels = (
        tuple(None if tensor is None else tensor.to("meta") for tensor in every)
        for every in (real.views, real.rotations, (real.labels,))
    )
    batch = Batch(real.images.to("meta"), views, turns, real.generator, *labels)
    first, again = (method.loss(batch) for _ in range(2))
    torch.stack(list(again.losses.values())).sum().backward()
    shapes = [{n: f.shape for n, (f, *_) in step.features.items()} for step in (first, again)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", METHODS)
def test_losses_are_float32_in_bfloat16(task, name):
    config, images = task(name)
    learner = build(config).train()
    batch = a_batch(learner.method, images)
    seen = []
    for module in learner.method.backbone.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            module.register_forward_hook(lambda *call: seen.append(call[-1].dtype))
    with passes_in("bfloat16", "cpu"):
        step = learner.method.loss(batch)
    assert set(seen) == {torch.bfloat16}
    assert {loss.dtype for loss in step.losses.values()} == {torch.float32}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("count", [1, 2, 17])
def test_any_number_of_images(task, name, count):
    config, images = task(name)
    images = ImageSet(images.images[:count], images.labels[:count])
    learner = build(config)
    assert train(learner, config, images).steps == 1  # 17 images: no batch of one
    assert all(torch.isfinite(t).all() for t in learner.state(Role.SHARED).values())


@pytest.mark.parametrize("name", METHODS)
def test_the_backbone_to_keep_is_one_of_the_method(task, name):
    method = build(task(name)[0]).method
    children = {id(child) for child in method.children()}
    assert all(id(backbone) in children for backbone in method.backbones().values())
    expected = "target" if name.startswith("orchestra") else "online"
    assert next(iter(method.backbones())) == expected


@pytest.mark.parametrize("name", METHODS)
def test_the_first_round_trains_nothing(task, name):
    config, images = task(name)
    learner = build(config)
    before = {n: t.clone() for n, t in learner.state(Role.SHARED).items()}
    observe_round(learner, images.images, config, SEED)
    assert all(torch.equal(before[n], t) for n, t in learner.state(Role.SHARED).items())
