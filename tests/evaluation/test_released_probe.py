"""The probe of Dec-SSL's released code, and what of it raises the figure."""

import copy

import torch
from torch import nn

from orchestra_flwr.config import AugmentationConfig
from orchestra_flwr.evaluation.classifier import Classifier, Schedule
from orchestra_flwr.evaluation.published_probe import published_accuracy, released_accuracy

PLAIN = AugmentationConfig(flip=False, crop_min=1)
SHORT = Schedule(epochs=3, batch_size=4, lr=0.03)  # 40 steps an epoch: statistics are replaced


class Shifted(nn.Module):
    """Pixels behind a BatchNorm whose running mean is far off: a ReLU then lets nothing through."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.norm.running_mean.fill_(2)
        self.eval()

    def forward(self, images):
        images = images.float() / 255 if images.dtype == torch.uint8 else images
        return self.norm(images).relu().flatten(1)


def striped(count, seed):
    """The class is the bright row."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    images = torch.randint(0, 60, (count, 1, 8, 8), generator=generator)
    images[torch.arange(count), 0, 2 * labels] += 180
    return images.to(torch.uint8), labels


def test_it_takes_batch_norms_statistics_anew_and_leaves_the_encoder():
    encoder, train, test = Shifted(), striped(160, 0), striped(80, 1)
    before = copy.deepcopy(encoder.state_dict())
    named = {"augmentation": PLAIN, "batch_size": 50}
    frozen = published_accuracy(encoder, train, test, schedule=SHORT, **named)
    released = released_accuracy(encoder, train, test, schedule=SHORT, **named)
    assert frozen <= 0.3 and released > 0.8
    assert all(torch.equal(t, before[name]) for name, t in encoder.state_dict().items())
    assert not encoder.training and not encoder.norm.training
    again = released_accuracy(encoder, train, test, schedule=SHORT, **named)
    assert again == released


def test_the_epoch_is_chosen_by_the_test_images(monkeypatch):
    accuracies = iter([0.3, 0.9, 0.5])
    monkeypatch.setattr(Classifier, "accuracy", lambda *_: next(accuracies))
    schedule = Schedule(epochs=3, batch_size=32, lr=0.1)
    images = striped(40, 0)
    best = released_accuracy(
        Shifted(), images, images, augmentation=PLAIN, batch_size=50, schedule=schedule
    )
    assert best == 0.9
