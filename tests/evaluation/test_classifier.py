import math

import pytest
import torch
from torch import nn

from orchestra_flwr.config import AugmentationConfig
from orchestra_flwr.evaluation.classifier import Classifier, Schedule, train_supervised
from orchestra_flwr.evaluation.published_probe import PUBLISHED, published_accuracy

LIMITS = AugmentationConfig(flip=False, crop_min=1.0)


class Pixels(nn.Module):
    def forward(self, images):
        scale = 255 if images.dtype == torch.uint8 else 1
        return images.flatten(1).float() / scale


def data(count=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    images = torch.randint(0, 120, (count, 1, 8, 8), generator=generator)
    images[torch.arange(count), 0, labels * 2] += 100
    return images.to(torch.uint8), labels


def test_steps_are_sgd_with_momentum_down_a_half_cosine():
    """One batch an epoch and views that are the images: torch's own optimizer must agree."""
    images, labels = data()
    model = Classifier.of(Pixels(), images, labels)
    model.head.bias.requires_grad_(False)
    schedule = Schedule(epochs=5, batch_size=64, lr=0.5)
    train_supervised(
        model, images, labels, schedule=schedule, augmentation=LIMITS, seed=0, purpose="test"
    )
    twin = torch.zeros(3, 64, requires_grad=True)
    running = torch.zeros(3, 64)
    x = images.flatten(1) / 255
    for step in range(5):
        loss = nn.functional.cross_entropy(x @ twin.T, labels)
        (gradient,) = torch.autograd.grad(loss, twin)
        running = 0.9 * running + gradient
        lr = 0.5 * (1 + math.cos(math.pi * step / 5)) / 2
        twin = (twin - lr * running).detach().requires_grad_()
    torch.testing.assert_close(model.head.weight.detach(), twin.detach(), atol=1e-5, rtol=1e-4)
    assert not model.head.bias.any()


def test_a_loss_that_is_not_finite_is_told():
    images, labels = data()
    model = Classifier.of(Pixels(), images, labels)
    schedule = Schedule(2, 64, math.inf)
    with pytest.raises(ValueError, match="^diverges: the loss is nan"):
        train_supervised(
            model, images, labels, schedule=schedule, augmentation=LIMITS, seed=0,
            purpose="diverges",
        )  # fmt: skip


def test_accuracy_counts_all_images():
    model = Classifier(Pixels(), 64, 3)
    images, labels = data(7)
    assert model.accuracy(images, labels, 3) == pytest.approx(float((labels == 0).double().mean()))


def test_the_published_probe_learns_and_leaves_the_encoder_alone():
    assert (PUBLISHED.epochs, PUBLISHED.batch_size, PUBLISHED.lr) == (50, 256, 30.0)
    encoder = nn.Sequential(Pixels(), nn.BatchNorm1d(64))
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    train, test = data(200), data(80, seed=1)
    accuracy = published_accuracy(
        encoder, train, test, augmentation=LIMITS, batch_size=64, schedule=Schedule(50, 64, 1.0)
    )
    assert accuracy > 0.95
    assert encoder.training and all(p.grad is None for p in encoder.parameters())
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_published_probe_that_diverges_is_nan_and_told(caplog):
    train = data(50)
    encoder = nn.Sequential(Pixels(), nn.Linear(64, 64))
    with torch.no_grad():
        encoder[1].weight.fill_(1e38)
    assert math.isnan(published_accuracy(encoder, train, train, augmentation=LIMITS, batch_size=64))
    assert "published linear probe: the loss is" in caplog.text
