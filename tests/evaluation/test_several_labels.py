"""Mean average precision of images that may show several classes."""

import statistics

import pytest
import torch

from orchestra_flwr.evaluation.linear_probe import fit_linear_probe
from orchestra_flwr.evaluation.several_labels import mean_average_precision


def images(count, seed):
    """Features of which the first three tell, with noise, which of three classes are shown."""
    generator = torch.Generator().manual_seed(seed)
    tags = torch.rand(count, 3, generator=generator) < 0.4
    noise = torch.randn(count, 8, generator=generator)
    noise[:, :3] += 2 * tags
    return noise, tags


def average_precision(scores, shown):
    """Mean of the precisions at the ranks of the images that show the class."""
    order = scores.argsort(descending=True).tolist()
    hits = [rank for rank, image in enumerate(order, start=1) if shown[image]]
    return sum(count / rank for count, rank in enumerate(hits, start=1)) / len(hits)


def test_it_is_the_mean_over_the_classes_of_probes_of_one_against_the_rest():
    train, train_tags = images(200, 0)
    test, test_tags = images(100, 1)
    expected = []
    for class_ in range(3):
        logits = fit_linear_probe(train, train_tags[:, class_].long(), 1e-2).logits(test)
        expected.append(average_precision(logits[:, 1] - logits[:, 0], test_tags[:, class_]))
    precision = mean_average_precision(train, train_tags, test, test_tags, 1e-2)
    assert precision.mean == pytest.approx(sum(expected) / 3, abs=1e-6)
    assert 0.7 < precision.mean < 1
    shuffled = train_tags[torch.randperm(200, generator=torch.Generator().manual_seed(2))]
    assert mean_average_precision(train, shuffled, test, test_tags, 1e-2).mean < 0.6


def test_classes_that_cannot_be_learned_or_tested_do_not_count():
    train, train_tags = images(60, 0)
    test, test_tags = images(40, 1)
    alone = mean_average_precision(train, train_tags[:, :1], test, test_tags[:, :1], 1e-2)
    train_tags[:, 1], test_tags[:, 2] = False, False  # never shown in training, and in tests
    assert mean_average_precision(train, train_tags, test, test_tags, 1e-2) == alone
    train_tags[:, 0] = True
    with pytest.raises(ValueError, match="no class is shown by test images"):
        mean_average_precision(train, train_tags, test, test_tags)


@pytest.mark.slow
def test_its_standard_error_is_how_far_other_test_images_move_it():
    train, train_tags = images(200, 0)
    precisions = [
        mean_average_precision(train, train_tags, *images(100, n), 1e-2) for n in range(1, 9)
    ]
    spread = statistics.stdev(precision.mean for precision in precisions)
    reported = statistics.mean(precision.standard_error for precision in precisions)
    assert reported == pytest.approx(spread, rel=0.5)
    assert precisions[0] == mean_average_precision(train, train_tags, *images(100, 1), 1e-2)


def test_a_class_that_a_single_test_image_shows_has_an_error_too():
    """In many draws no image shows it."""
    (train, train_tags), (test, _) = images(60, 0), images(40, 1)
    test_tags = torch.zeros(40, 3, dtype=torch.bool)
    test_tags[7, 0] = True
    precision = mean_average_precision(train, train_tags, test, test_tags, 1e-2)
    assert 0 <= precision.standard_error < 0.5


@pytest.mark.parametrize("where", ["train", "test"])
def test_features_that_are_not_finite_are_refused(where):
    (train, train_tags), (test, test_tags) = images(60, 0), images(40, 1)
    (train if where == "train" else test)[3, 2] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        mean_average_precision(train, train_tags, test, test_tags, 1e-2)
