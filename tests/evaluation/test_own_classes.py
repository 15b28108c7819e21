import math

import pytest
import torch
from torch import nn

from orchestra_flwr.evaluation import (
    OwnClasses,
    linear_accuracy,
    personal_accuracy,
    spread_over_clients,
)
from orchestra_flwr.evaluation.own_classes import weighted_accuracy


def test_classes_count_as_they_do_among_the_clients_images():
    """Class 0: 1 of 2 right, class 1: all, class 2: none; three images of 0, one of 2."""
    right = torch.tensor([True, False, True, True, False])
    labels = torch.tensor([0, 0, 1, 1, 2])
    assert weighted_accuracy(right, labels, torch.tensor([0, 2, 0, 0])) == 0.75 * 0.5
    assert weighted_accuracy(right, labels, torch.tensor([1])) == 1
    assert weighted_accuracy(right, labels, torch.tensor([0, 7])) == 0.5  # nobody tests class 7
    with pytest.raises(ValueError, match="no test image of any class"):
        weighted_accuracy(right, labels, torch.tensor([7]))


def test_mean_and_worst_tenth():
    assert spread_over_clients([0.5]) == {
        "mean": 0.5, "worst_tenth": 0.5, "std": 0, "clients": 1,
    }  # fmt: skip
    scores = [i / 20 for i in range(20)]
    assert spread_over_clients(scores) == {
        "mean": pytest.approx(0.475), "worst_tenth": pytest.approx(0.025),
        "std": pytest.approx(math.sqrt((20**2 - 1) / 12) / 20), "clients": 20,
    }  # fmt: skip


class Pixels(nn.Module):
    def forward(self, images):
        return images.flatten(1).float() / 255


def test_a_head_of_few_labels_is_judged_by_the_clients_other_labelled_images(generator):
    labels = torch.tensor([0, 1, -1, 0, 1, 0, 1, -1])
    images = (200 * labels.clamp(min=0)).to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)

    def accuracy(labels, count):
        return personal_accuracy(
            Pixels(), images, labels, count=count, generator=generator, batch_size=4
        )

    assert accuracy(labels, 5) == 1  # one is left, and both classes are among the five
    assert accuracy(labels, 6) is None  # six have labels
    swapped = torch.where(labels < 0, labels, torch.tensor([0, 1, 0, 1] * 2))
    assert accuracy(torch.full_like(labels, -1), 1) is None
    assert 0 <= accuracy(swapped, 3) <= 1
    # Of two classes that look the same a head knows nothing.
    alike = torch.zeros(400, 1, 2, 2, dtype=torch.uint8)
    guess = personal_accuracy(
        Pixels(), alike, torch.arange(400) % 2, count=20, generator=generator, batch_size=100
    )
    assert guess == pytest.approx(0.5, abs=0.02)


def test_scores_of_a_client_with_the_shares_of_everybody_are_the_usual_ones():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    images = torch.randint(0, 120, (60, 1, 2, 2), generator=generator)
    images[torch.arange(60), 0, 0, labels.clamp(max=1)] += 60
    images = images.to(torch.uint8)
    head = nn.Linear(4, 3)
    everybody = OwnClasses((images, labels), (images, labels), labels, labels)
    scores = everybody.scores(Pixels(), head, 16)
    features = Pixels()(images)
    assert scores["linear"] == pytest.approx(linear_accuracy(features, labels, features, labels))
    expected = (head(features).argmax(1) == labels).double().mean()
    assert scores["accuracy"] == pytest.approx(float(expected))
    # A head of the client's own knows the classes of its few images alone.
    few = labels < 2
    few_shown = OwnClasses(
        (images, labels), (images, labels), labels, labels, (images[few], labels[few])
    )
    expected = linear_accuracy(features[few], labels[few], features, labels)
    personal = few_shown.scores(Pixels(), None, 16)["personal"]
    assert personal == pytest.approx(expected) and personal <= 2 / 3
    # The method may number classes in its own way: only that counts for its classifier.
    turned = OwnClasses((images, labels), (images, labels), 2 - labels, labels)
    expected = (head(features).argmax(1) == 2 - labels).double().mean()
    assert turned.scores(Pixels(), head, 16)["accuracy"] == pytest.approx(float(expected))
    assert everybody.scores(Pixels(), None, 16).keys() == {"linear"}
