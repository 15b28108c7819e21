"""Distillation: oracles of its losses, and that the teacher stays on the client."""

import math

import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Received, Role, build_method, distill
from orchestra_flwr.methods.distill import (
    cosine_distillation_loss,
    matched_temperatures,
    similarity_distillation_loss,
)
from orchestra_flwr.methods.teacher import targets_of
from orchestra_flwr.models import load_encoder
from orchestra_flwr.seeding import ClientSeed, drawn
from orchestra_flwr.training import build_learner, train_round

IMAGES = torch.randint(0, 256, (20, 1, 8, 8), generator=torch.Generator().manual_seed(0)).byte()


def unit(count, dim, seed):
    draw = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dim, generator=draw), dim=1)


def test_the_cosine_loss_is_that_of_a_loop():
    predictions, targets = 3 * unit(5, 7, 0), unit(5, 7, 1)
    slow = sum(
        1 - float(p @ t) / float(p.norm() * t.norm())
        for p, t in zip(predictions, targets, strict=True)
    )
    loss = cosine_distillation_loss(predictions, targets)
    assert float(loss) == pytest.approx(slow / 5, abs=1e-6)
    assert float(cosine_distillation_loss(2 * targets, targets)) == pytest.approx(0, abs=1e-6)
    assert float(cosine_distillation_loss(-targets, targets)) == pytest.approx(2, abs=1e-6)


def test_the_similarity_loss_is_that_of_a_loop():
    predictions, targets, compared = 3 * unit(4, 6, 0), unit(4, 6, 1), unit(9, 6, 2)
    slow = 0.0
    for prediction, target in zip(predictions, targets, strict=True):
        logits = [float(prediction / prediction.norm() @ row) / 0.2 for row in compared]
        teachers = [float(target @ row) / 0.05 for row in compared]
        partition = math.log(sum(map(math.exp, logits)))
        weights = [math.exp(value) for value in teachers]
        for value, weight in zip(logits, weights, strict=True):
            slow -= weight / sum(weights) * (value - partition)
    temperatures = {"temperature": 0.2, "teacher_temperature": 0.05}
    loss = similarity_distillation_loss(predictions, targets, compared, **temperatures)
    assert float(loss) == pytest.approx(slow / 4, abs=1e-5)


def test_a_student_like_its_teacher_has_the_least_similarity_loss():
    targets = unit(8, 6, 1)

    def loss(predictions):
        same = {"temperature": 0.1, "teacher_temperature": 0.1}
        return float(similarity_distillation_loss(predictions, targets, targets, **same))

    similarities = F.softmax(targets @ targets.T / 0.1, dim=1)
    entropy = -float((similarities * similarities.log()).sum(1).mean())
    assert loss(targets) == pytest.approx(entropy, abs=1e-5)
    assert all(loss(targets + 0.2 * unit(8, 6, seed)) > entropy for seed in range(2, 6))


@pytest.mark.parametrize("spread", [0.2, 5.0])
@pytest.mark.parametrize("perplexity", [1.5, 4, 16])
def test_temperatures_give_each_image_the_perplexity(spread, perplexity):
    """Of teachers whose features lie close together, or far apart."""
    targets = F.normalize(1 + spread * unit(40, 9, 3), dim=1)
    temperatures = matched_temperatures(targets @ targets.T, perplexity)
    assert temperatures.shape == (40, 1)
    for row, temperature in zip(targets @ targets.T, temperatures, strict=True):
        shares = F.softmax(row / temperature, dim=0)
        entropy = -float((shares * shares.clamp_min(1e-30).log()).sum())
        assert math.exp(entropy) == pytest.approx(perplexity, rel=0.01)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_images_or_like_ones_have_temperatures(count):
    for targets in (unit(count, 5, 0), unit(1, 5, 0).repeat(count, 1)):
        temperatures = matched_temperatures(targets @ targets.T, 16)
        assert torch.isfinite(temperatures).all() and (temperatures > 0).all()


def test_a_temperature_of_ones_own_is_that_of_all_images(tiny):
    for options, wanted in [((), None), (("method.teacher_temperature=0.3",), 0.3)]:
        method = build_method(tiny("method=distill", "method.perplexity=2", *options), 1)
        method.start_round(Received("0", 0, 1, IMAGES))
        rows = torch.tensor([4, 0, 17])
        targets = targets_of(tiny("method=distill"), "0", IMAGES)
        used = wanted or matched_temperatures(targets @ targets.T, 2)[rows]
        predictions = unit(3, targets.shape[1], 1)
        method.embed = lambda views, made=predictions: (views, (made,))
        batch = type("Batch", (), {"images": rows, "views": (IMAGES[rows],)})
        loss = similarity_distillation_loss(
            predictions, targets[rows], targets, temperature=0.1, teacher_temperature=used
        )
        assert float(method.loss(batch).losses["similarity"]) == pytest.approx(float(loss))


def test_images_are_compared_with_some_of_all_classes(tiny, monkeypatch):
    """Files are sorted by their folders: the first ones would all be of the first classes."""
    monkeypatch.setattr(distill, "MAX_COMPARED", 6)
    config = tiny("method=distill", "method.perplexity=2")
    targets = targets_of(config, "0", IMAGES)
    compared = targets[torch.from_numpy(drawn(20, 6, config.seed, "compared"))]
    assert not torch.equal(compared, targets[:6])
    rows, predictions = torch.tensor([4, 0, 17]), unit(3, targets.shape[1], 1)
    method = build_method(config, 1)
    for _ in range(2):  # the same ones in each round
        method.start_round(Received("0", 0, 1, IMAGES))
        method.embed = lambda views: (views, (predictions,))
        batch = type("Batch", (), {"images": rows, "views": (IMAGES[rows],)})
        loss = similarity_distillation_loss(
            predictions,
            targets[rows],
            compared,
            temperature=0.1,
            teacher_temperature=matched_temperatures(targets @ compared.T, 2)[rows],
        )
        assert float(method.loss(batch).losses["similarity"]) == pytest.approx(float(loss))


@pytest.mark.parametrize(("width", "error"), [(64, 0.1), (256, 1e-6)])
def test_targets_keep_the_cosines_of_the_teachers_features(tiny, width, error):
    """All of them where the model is as wide as the teacher, and about so where it is narrower."""
    config = tiny("method=distill", f"model.projector_dim={width}")
    features = load_encoder(config.method.settings.teacher).encode(IMAGES)
    wanted = F.normalize(features, dim=1) @ F.normalize(features, dim=1).T
    targets = targets_of(config, "0", IMAGES)
    assert targets.shape == (20, width) and 64 < features.shape[1] < 256
    assert torch.allclose(targets.norm(dim=1), torch.ones(20))
    assert float((targets @ targets.T - wanted).abs().mean()) < error


def test_a_teacher_is_asked_once_for_the_same_images(tiny, monkeypatch):
    config, asked = tiny("method=distill"), []
    encode = type(load_encoder(config.method.settings.teacher)).encode

    def counted(self, images, *rest):
        asked.append(len(images))
        return encode(self, images, *rest)

    monkeypatch.setattr("orchestra_flwr.models.Encoder.encode", counted)
    images = IMAGES[:13].flip(3)
    first = targets_of(config, "0", images)
    again = targets_of(config, "1", images.clone())  # as the next round's client has them
    other = targets_of(config, "0", images.flip(2))
    assert asked == [13, 13] and torch.equal(first, again) and not torch.equal(first, other)


def test_the_students_target_is_that_of_its_own_image(tiny):
    """The loss of a student whose head repeats the targets is 0 only in the right order."""
    config = tiny("method=distill", "method.loss=cosine")
    method = build_method(config, 1)
    method.start_round(Received("0", 0, 1, IMAGES))
    rows = torch.tensor([4, 0, 17])
    method.embed = lambda views: (views, (targets_of(config, "0", IMAGES)[rows],))
    batch = type("Batch", (), {"images": rows, "views": (IMAGES[rows],)})
    assert float(method.loss(batch).losses["cosine"]) == pytest.approx(0, abs=1e-6)
    batch.images = rows.flip(0)
    assert float(method.loss(batch).losses["cosine"]) > 1e-3


def test_the_teacher_is_no_part_of_the_state(tiny):
    config = tiny("method=distill")
    learner = build_learner(config, 1)
    names = {name for role in Role for name in learner.state(role)}
    train_round(learner, IMAGES, config, ClientSeed(0, 1, "0"))
    assert {name for role in Role for name in learner.state(role)} == names
    assert all(name.startswith(("backbone.", "projector.")) for name in names)
    assert not any("teacher" in name for name, _ in learner.named_modules())


def test_a_local_head_is_the_clients_own(tiny):
    learner = build_learner(tiny("method=distill", "method.head=local"), 1)
    assert all(name.startswith("backbone.") for name in learner.state(Role.SHARED))
    local = learner.state(Role.LOCAL)
    assert local and all(name.startswith("projector.") for name in local)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method.teacher=null", "client 3 has none; give a run folder"),
        ("method.teacher=/nowhere", "no file or folder, and as a network of timm"),
        ("method.teacher={client}/none", "method.teacher=3/none: no file or folder"),
    ],
)
def test_a_client_without_its_teacher_is_refused_in_one_line(tiny, override, message):
    config = tiny("method=distill", override)
    with pytest.raises(ConfigError, match="^method.teacher") as error:
        config.method.plugin.check_client(config, "3")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_folder_without_an_encoder_is_refused(tiny, tmp_path):
    config = tiny("method=distill", f"method.teacher={tmp_path}")
    with pytest.raises(ConfigError, match="no such file"):
        config.method.plugin.check_client(config, "3")


def test_temperatures_without_their_loss_are_not_read(tiny):
    unread = tiny("method=distill", "method.loss=cosine").unread()
    assert "method.temperature" in unread and "method.teacher_temperature" in unread
    assert "method.temperature" not in tiny("method=distill").unread()
