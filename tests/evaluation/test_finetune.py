import math
from collections import Counter

import pytest
import torch

from orchestra_flwr.config import AugmentationConfig, ModelConfig
from orchestra_flwr.data import epoch_batches
from orchestra_flwr.evaluation.classifier import Classifier
from orchestra_flwr.evaluation.few_labels import labelled_subset, over_seeds
from orchestra_flwr.evaluation.finetune import BATCH_SIZE, MIN_STEPS, finetune, schedule_of
from orchestra_flwr.models import Encoder, EncoderSpec

NO_FLIP = AugmentationConfig(flip=False)


def striped(count, seed=0):
    """Images of 3 classes: the class is the bright band."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    images = torch.randint(0, 90, (count, 1, 8, 8), generator=generator)
    for row in range(2):
        images[torch.arange(count), 0, 2 * labels + 1 + row] += 120
    return images.to(torch.uint8), labels


def convnet():
    torch.manual_seed(0)
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=1, image_size=8)
    return Encoder(spec)


def run(encoder, train, test, seeds=1):
    return finetune(
        encoder, train, test, fraction=0.1, seeds=range(seeds), augmentation=NO_FLIP, batch_size=64
    )


@pytest.mark.parametrize("fraction", [0.01, 0.1])
def test_a_subset_holds_the_same_share_of_every_class_rounded_up(fraction):
    labels = torch.tensor([0] * 700 + [1] * 50 + [4] * 3)[torch.randperm(753)]
    chosen = labelled_subset(labels, fraction, 0)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    expected = {0: round(700 * fraction), 1: math.ceil(50 * fraction), 4: 1}
    assert Counter(labels[chosen].tolist()) == expected
    assert torch.equal(chosen, labelled_subset(labels, fraction, 0))
    assert not torch.equal(chosen, labelled_subset(labels, fraction, 1))


def test_all_labels():
    labels = torch.arange(20) % 3
    assert torch.equal(labelled_subset(labels, 1.0, 5), torch.arange(20))


def test_schedules_are_fixed_by_the_number_of_labels():
    assert (schedule_of(0.01, 500).epochs, schedule_of(0.1, 5000).epochs) == (60, 30)
    assert schedule_of(0.01, 20).epochs == MIN_STEPS
    for count in (150, 300, 447, 640):
        schedule = schedule_of(0.1, count)
        batches = epoch_batches(count, schedule.batch_size, torch.Generator())
        assert MIN_STEPS <= schedule.epochs * len(batches) < MIN_STEPS + len(batches)
    assert schedule_of(0.1, 5000).batch_size == BATCH_SIZE
    assert schedule_of(0.1, 5000).lr == pytest.approx(0.025)


def test_few_labels_teach_and_the_encoder_stays_as_it_is():
    encoder, train, test = convnet(), striped(300), striped(100, seed=1)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    first = run(encoder, train, test, seeds=2)
    assert min(first["runs"]) > 0.8
    assert run(encoder, train, test)["runs"][0] == first["runs"][0]
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert not any(p.requires_grad or p.grad is not None for p in encoder.parameters())


def test_every_parameter_of_backbone_and_head_is_trained(monkeypatch):
    models = []
    monkeypatch.setattr(Classifier, "accuracy", lambda self, *_: models.append(self) or 0.5)
    encoder, data = convnet(), striped(40)
    assert run(encoder, data, data)["mean"] == 0.5
    (model,), before = models, dict(encoder.named_parameters())
    for name, parameter in model.encoder.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert model.head.weight.abs().sum() > 0


@pytest.mark.slow
def test_labels_beyond_the_subset_are_not_used():
    images, labels = striped(300)
    chosen = labelled_subset(labels, 0.1, 0)
    hidden = torch.full_like(images, 7)
    hidden[chosen] = images[chosen]
    encoder, test = convnet(), striped(60, seed=1)
    assert run(encoder, (hidden, labels), test) == run(encoder, (images, labels), test)


def test_mean_and_deviation_over_seeds():
    summary = over_seeds([0.5, 0.7, 0.9])
    assert summary == {
        "mean": pytest.approx(0.7),
        "std": pytest.approx(0.2),
        "runs": [0.5, 0.7, 0.9],
    }
    assert over_seeds([0.5])["std"] is None
