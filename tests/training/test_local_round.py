import copy
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits

from orchestra_flwr.clustering import FeatureMemory
from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import augment
from orchestra_flwr.data.augment import PLAIN, SIMCLR
from orchestra_flwr.methods import Received, Role, build_method
from orchestra_flwr.methods.orchestra import Orchestra
from orchestra_flwr.models import normalise
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, observe_round, train_round
from orchestra_flwr.training.optimizers.sgd import SGD
from orchestra_flwr.training.step import BatchMaker, TrainingError


def images(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=generator)


SEED = ClientSeed(0, 1, "0")


def train(config, pictures=40, seed=SEED, work=train_round, **named):
    """A learner after a round on so many images, or on these, and the round's result."""
    learner = build_learner(config, 1)
    learner.method.global_centroids.copy_(torch.eye(4, 16))
    pictures = images(pictures) if isinstance(pictures, int) else pictures
    return learner, work(learner, pictures, config, seed, **named)


def shared(learner):
    return learner.state(Role.SHARED)


def test_steps_losses_and_centroids(tiny):
    _, result = train(tiny("training.local_epochs=3"))
    assert result.steps == 3 * 3  # 40 images in batches of 16: the last of 8 is kept
    assert set(result.losses) == {"cluster", "rotation"}
    assert all(0 < loss < 10 for loss in result.losses.values())
    assert result.contribution.arrays["local_centroids"].shape == (2, 16)
    assert result.contribution.smallest_group == 16  # of the memory's 32


def test_what_is_only_recorded_is_made_in_the_first_step_alone(tiny, monkeypatch):
    made, loss = [], Orchestra.loss

    def measured(method, batch):
        measures = lambda: made.append(1) or {"agreement": torch.tensor(0.25)}  # noqa: E731
        return replace(loss(method, batch), measures=measures)

    monkeypatch.setattr(Orchestra, "loss", measured)
    _, result = train(tiny("training.local_epochs=3"))
    assert result.steps > 1 and len(made) == 1
    assert result.measures == {"agreement": 0.25}


def test_a_last_batch_that_is_not_full_can_be_left_out(tiny):
    assert train(tiny("training.drop_last=true"), 40)[1].steps == 2
    assert train(tiny("training.drop_last=true"), 10)[1].steps == 1  # rather than training nothing


@pytest.mark.parametrize("schedule", ["constant", "steps"])
def test_steps_that_an_epoch_lacks_are_made_in_more_of_them(tiny, schedule):
    """And rates change as in so many epochs."""
    chosen = [f"schedule={schedule}", "federation.rounds=1", "training.lr=0.1"]
    few, result = train(tiny(*chosen, "training.min_steps=8"))  # an epoch has three
    more, expected = train(tiny(*chosen, "training.local_epochs=3"))
    assert result.steps == expected.steps == 9
    for name, tensor in shared(more).items():
        assert torch.equal(tensor, shared(few)[name])
    assert train(tiny(*chosen, "training.min_steps=3"))[1].steps == 3


@pytest.mark.slow
def test_the_loss_falls_on_a_client_that_trains_long(tiny):
    digits = torch.from_numpy(load_digits().images[:200, None] * 15).to(torch.uint8)
    config, longer = (tiny("training.lr=0.03", f"training.local_epochs={n}") for n in (1, 15))
    first, last = (train(c, digits)[1].losses for c in (config, longer))
    assert last["rotation"] < first["rotation"] - 0.2


@pytest.mark.parametrize(("views", "recipe"), [("default", SIMCLR), ("plain", PLAIN)])
def test_views_are_the_methods_or_plain_within_the_images_limits(tiny, views, recipe):
    config = tiny("method=simclr", f"method.views={views}", "data.augmentation.crop_min=0.3")
    batch = BatchMaker(build_method(config, 1), images(6), None, config, SEED)(torch.arange(6))
    limited = recipe.limited(config.data.augmentation)
    assert limited.flip == 0 and limited.crop_scale == (max(0.3, recipe.crop_scale[0]), 1)
    expected = augment(images(6), [limited] * 2, SEED.generator("augment")).images
    for view, plain in zip(batch.views, expected, strict=True):
        assert torch.equal(view, normalise(plain, "half"))


def test_views_that_do_not_exist_are_refused(tiny):
    with pytest.raises(ConfigError, match=r"^method\.views=strong: .*'default' or 'plain'"):
        tiny("method.views=strong")


@pytest.mark.parametrize("n", [1, 2, 7, 16, 17, 33])
def test_any_number_of_images(tiny, n):
    learner, result = train(tiny("training.local_epochs=2"), n)
    assert all(torch.isfinite(t).all() for t in shared(learner).values())
    assert len(result.contribution.arrays["local_centroids"]) == min(2, n // 2)  # privacy.k_min


@pytest.mark.parametrize("work", [train_round, observe_round])
@pytest.mark.parametrize(
    ("n", "k_min", "rows", "smallest"), [(5, 8, 0, 0), (5, 5, 1, 5), (5, 3, 1, 5), (5, 2, 2, 2)]
)
def test_epochs_do_not_make_images_out_of_views(tiny, n, k_min, rows, smallest, work):
    """Six epochs on five images fill the memory with thirty rows of five images."""
    config = tiny("training.local_epochs=6", f"privacy.k_min={k_min}")
    learner, result = train(config, n, work=work)
    assert len(learner.method.clustering.memory) == (30 if work is train_round else 5)
    assert result.contribution.arrays["local_centroids"].shape == (rows, 16)
    assert result.contribution.smallest_group == smallest


def test_same_seed_same_bits_whatever_the_global_generator(tiny):
    torch.manual_seed(1)
    first, _ = train(tiny())
    torch.manual_seed(2)
    again, _ = train(tiny())
    assert all(
        torch.equal(a, b)
        for a, b in zip(shared(first).values(), shared(again).values(), strict=True)
    )


@pytest.mark.parametrize("seed", [ClientSeed(1, 1, 0), ClientSeed(0, 2, 0), ClientSeed(0, 1, 1)])
def test_other_seed_round_or_client_other_weights(tiny, seed):
    first, other = train(tiny())[0], train(tiny(), seed=seed)[0]
    assert not torch.equal(first.method.rotation_head.weight, other.method.rotation_head.weight)


def test_the_target_follows_before_the_optimizer_steps(tiny, monkeypatch):
    """After two steps the target is m T0 + (1 - m) O1, O1 being the online weights after one."""
    config = tiny("method.ema=0.9", "training.lr=0.1")
    learner = build_learner(config, 1)
    method, start = learner.method, copy.deepcopy(learner.method.backbone)
    online = []
    step = SGD.step

    def recording(self):
        step(self)
        online.append(copy.deepcopy(method.backbone))

    monkeypatch.setattr(SGD, "step", recording)
    train_round(learner, images(32), config, SEED)
    assert len(online) == 2
    for t, t0, o1 in zip(
        method.target_backbone.parameters(), start.parameters(), online[0].parameters(), strict=True
    ):
        torch.testing.assert_close(t, 0.9 * t0 + 0.1 * o1)


def test_no_label_reaches_a_method_that_needs_none(tiny, monkeypatch):
    config = tiny()
    learner = build_learner(config, 1)
    method, seen, loss = learner.method, [], type(learner.method).loss
    monkeypatch.setattr(
        type(method), "loss", lambda self, batch: (seen.append(batch.labels), loss(self, batch))[1]
    )
    train_round(learner, images(40), config, SEED, labels=torch.zeros(40, dtype=torch.long))
    assert seen == [None] * 3


def test_the_first_round_changes_nothing_shared(tiny):
    before = copy.deepcopy(shared(build_learner(tiny(), 1)))
    learner, result = train(tiny(), work=observe_round)
    assert all(torch.equal(before[name], t) for name, t in shared(learner).items())
    assert (result.losses, result.steps) == ({}, 0)
    assert result.contribution.arrays["local_centroids"].shape == (2, 16)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("work", [train_round, observe_round])
def test_a_round_in_bfloat16_ends_near_the_one_in_float32(tiny, norm, work):
    """Two steps on digits; near: the change of all weights together by less than a quarter of it,
    losses and centroids within a hundredth, statistics within two or .005."""
    digits = torch.from_numpy(load_digits().images[:128, None] * 15).to(torch.uint8)
    chosen = ("training.batch_size=64", f"model.norm={norm}")
    start = shared(build_learner(tiny(*chosen), 1))
    exact, expected = train(tiny(*chosen), digits, work=work)
    learner, result = train(tiny(*chosen, "training.precision=bfloat16"), digits, work=work)
    for name, tensor in shared(learner).items():
        assert tensor.dtype == torch.float32 and torch.isfinite(tensor).all()
        if "running" in name:
            torch.testing.assert_close(tensor, shared(exact)[name], rtol=0.02, atol=5e-3)
    changes = [
        torch.cat([(t - start[n]).flatten() for n, t in shared(m).items() if "running" not in n])
        for m in (exact, learner)
    ]
    assert (changes[1] - changes[0]).norm() <= 0.25 * changes[0].norm()
    assert result.losses == pytest.approx(expected.losses, rel=0.01)
    ours, theirs = (r.contribution.arrays["local_centroids"] for r in (result, expected))
    assert ours.dtype == torch.float32
    assert (ours * theirs).sum(1).min() > 0.99
    assert learner.state(Role.TRANSIENT)["clustering.memory.features"].dtype == torch.float32


@pytest.mark.parametrize("work", [train_round, observe_round])
def test_bfloat16_reaches_every_encoder_and_no_loss(tiny, work, monkeypatch):
    config = tiny("training.precision=bfloat16")
    learner = build_learner(config, 1)
    seen = {}
    for name, module in learner.method.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            hook = lambda *call, name=name: seen.update({name: call[-1].dtype})  # noqa: E731
            module.register_forward_hook(hook)
    features = []
    push = FeatureMemory.push
    monkeypatch.setattr(
        FeatureMemory, "push", lambda *call: (features.append(call[-1].dtype), push(*call))
    )
    work(learner, images(16), config, SEED)
    encoders = {"target_backbone"} | ({"backbone"} if work is train_round else set())
    assert {name.partition(".")[0] for name in seen} == encoders
    assert set(seen.values()) == {torch.bfloat16} and set(features) == {torch.float32}


def test_the_same_bits_again_in_bfloat16(tiny):
    first, again = (train(tiny("training.precision=bfloat16"))[0] for _ in range(2))
    assert all(torch.equal(t, shared(again)[name]) for name, t in shared(first).items())


def test_a_loss_that_is_not_finite_is_an_error(tiny):
    with pytest.raises(TrainingError, match="a lower training.lr may help"):
        train(tiny("training.lr=1e30", "training.local_epochs=5"))


@pytest.mark.parametrize("work", [train_round, observe_round])
def test_a_client_that_may_not_contribute_sends_arrays_without_rows(tiny, work):
    contribution = train(tiny(), work=work, contribute=False)[1].contribution
    assert {name: a.shape for name, a in contribution.arrays.items()} == {
        "local_centroids": (0, 16)
    }


def test_methods_without_a_release_contribute_nothing(tiny):
    config = tiny("method=simclr")
    for contribute in (True, False):
        result = train_round(
            build_learner(config, 1), images(20), config, SEED, contribute=contribute
        )
        assert result.contribution.arrays == {}


@pytest.mark.parametrize("work", [train_round, observe_round])
def test_a_round_starts_with_what_the_client_knows(tiny, work, monkeypatch):
    """As it was given, or made from the seed: then without the received state."""
    config, seen = tiny(), []
    learner = build_learner(config, 1)
    monkeypatch.setattr(
        type(learner.method), "start_round", lambda self, received: seen.append(received)
    )
    pictures = images(20)
    work(learner, pictures, config, SEED)
    (made,) = seen
    assert (made.client, made.index, made.round, made.state) == ("0", None, 1, None)
    assert made.images is pictures
    received = Received("0", 3, 1, pictures, {})
    work(learner, pictures, config, SEED, received=received)
    assert seen[1] is received


def test_what_needs_the_received_state_does_not_start_without_it(tiny):
    config = tiny("terms.proximal.weight=0.1")
    for received in (None, Received("0", 0, 1, images(4))):
        with pytest.raises(ValueError, match="client 0: .* needs the state .*received.state"):
            train(config, received=received)
    train(config, work=observe_round)  # nothing is trained: terms take no part


def test_what_a_loss_draws_leaves_the_views_as_they_are(tiny, monkeypatch):
    config, draws, views = tiny("method=simclr"), [], []
    learner = build_learner(config, 1)
    loss = type(learner.method).loss

    def recording(self, batch):
        views[-1].extend(batch.views)
        if len(views) == 2:
            draws.append(torch.rand(5, generator=batch.generator))
        return loss(self, batch)

    monkeypatch.setattr(type(learner.method), "loss", recording)
    for _ in range(2):
        views.append([])
        train_round(build_learner(config, 1), images(40), config, SEED)
    assert all(torch.equal(a, b) for a, b in zip(*views, strict=True))
    assert len(draws) == 3 and not torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], torch.rand(5, generator=SEED.generator("loss")))


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_every_optimizer_trains(tiny, precision):
    digits = torch.from_numpy(load_digits().images[:100, None] * 15).to(torch.uint8)
    overrides = ("optimizer=adamw", "training.lr=0.003", f"training.precision={precision}")
    first, last = (
        train(tiny(*overrides, f"training.local_epochs={n}"), digits)[1].losses for n in (1, 15)
    )
    assert last["rotation"] < first["rotation"] - 0.2


def test_an_optimizers_state_is_new_in_every_round(tiny):
    """Two rounds in one object are two rounds in two objects."""
    config = tiny()
    learner, _ = train(config)
    fresh = build_learner(config, 1)
    fresh.load_state_dict(learner.state_dict())
    for network in (learner, fresh):
        train_round(network, images(40), config, ClientSeed(0, 2, "0"))
    assert all(torch.equal(t, shared(fresh)[name]) for name, t in shared(learner).items())
