"""What holds for all methods, and for each that will be added."""

import copy

import pytest
import torch
from sklearn.datasets import load_digits

from orchestra_flwr.data import ImageSet
from orchestra_flwr.federation.wire import Schemas
from orchestra_flwr.methods import METHODS, Role, build_method
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import observe_round, train_round

SEED = ClientSeed(0, 1, "0")
GRAY = ("training.lr=0.03",)
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


@pytest.fixture(params=["digits", "colour"])
def given(request, tiny):
    """The configuration of a method, and its images."""

    def configured(name, *overrides):
        if request.param == "digits":
            return tiny(*GRAY, f"method={name}", *overrides), digits()
        named = ["method.classes=[a,b,c,d]"] if name == "supervised" else []
        return tiny(f"method={name}", *COLOUR, *named, *overrides), stripes()

    return configured


def build(config):
    """A method as a client has it after the first round, if it needs one."""
    method = build_method(config, config.data.channels)
    limits = method.contribution_limits()
    if limits:
        random = {n: torch.randn(8, w, generator=SEED.generator(n)) for n, (_, w) in limits.items()}
        method.update_server_state(random, SEED.generator("server"))
    return method


def train(method, config, images):
    return train_round(
        method, images.images, config.training, config.data.augmentation, SEED,
        labels=images.labels,
    )  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_round_trains_all_that_is_trained_and_the_loss_falls(given, name):
    config, images = given(name)
    method = build(config)
    before = copy.deepcopy(method)
    first = train(method, config, images)
    assert first.steps == -(-len(images) // 16)
    trained = {n for n, p in method.named_parameters() if p.requires_grad}
    start = dict(before.named_parameters())
    moved = {n for n, p in method.named_parameters() if not torch.equal(p, start[n])}
    assert trained <= moved and all("target" in name for name in moved - trained)
    assert all(torch.isfinite(t).all() for t in method.state(Role.SHARED).values())

    longer, _ = given(name, "training.local_epochs=25")
    again = train(build(longer), longer, images)  # a mean over all steps
    falling = "rotation" if name == "orchestra" else next(iter(first.losses))
    assert again.losses[falling] < first.losses[falling]


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_that_is_trained_gets_a_gradient_in_each_step(given, name, monkeypatch):
    config, images = given(name)
    method = build(config)
    steps = []

    def look(self):
        steps.append({n: float(p.grad.abs().sum()) for n, p in method.named_parameters()
                      if p.requires_grad})  # fmt: skip
        for parameter in method.parameters():
            assert parameter.requires_grad or parameter.grad is None
            parameter.grad = None

    monkeypatch.setattr("orchestra_flwr.training.SGD.step", look)
    train(method, config, images)
    assert steps and all(size > 0 for step in steps for size in step.values())


@pytest.mark.parametrize("name", METHODS)
def test_roles_cover_all_and_private_state_has_no_way_out(given, name):
    config, images = given(name)
    method = build(config)
    train(method, config, images)
    roles = [set(method.state(role)) for role in Role]
    floats = {n for n, t in method.state_dict().items() if t.is_floating_point()}
    assert set.union(*roles) == floats and sum(map(len, roles)) == len(floats)
    schemas = Schemas.of(method)
    travelling = {n for s in (schemas.shared, schemas.server) for n, _ in s.entries}
    assert travelling == set(method.state(Role.SHARED)) | set(method.state(Role.SERVER))
    assert not any("memory" in each for each in travelling)
    assert {n for n, p in method.named_parameters() if p.requires_grad} <= travelling


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("count", [1, 2, 17])
def test_any_number_of_images(given, name, count):
    config, images = given(name)
    images = ImageSet(images.images[:count], images.labels[:count])
    method = build(config)
    assert train(method, config, images).steps == 1  # 17 images: no batch of one
    assert all(torch.isfinite(t).all() for t in method.state(Role.SHARED).values())


@pytest.mark.parametrize("name", METHODS)
def test_the_kept_backbone_is_one_of_the_method(given, name):
    method = build(given(name)[0])
    children = {id(child) for child in method.children()}
    assert all(id(backbone) in children for backbone in method.backbones().values())
    expected = "target" if name == "orchestra" else "online"
    assert next(iter(method.backbones())) == expected


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n].needs_first_round])
def test_the_first_round_trains_nothing(given, name):
    config, images = given(name)
    method = build(config)
    before = {n: t.clone() for n, t in method.state(Role.SHARED).items()}
    observe_round(method, images.images, config.training, config.data.augmentation, SEED)
    assert all(torch.equal(before[n], t) for n, t in method.state(Role.SHARED).items())
