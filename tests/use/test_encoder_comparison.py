"""Two encoders on the same images: accuracies, intervals, verdict."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from orchestra_flwr.use.encoder_comparison import Accuracy, compare
from orchestra_flwr.use.few_label_classifier import estimate_accuracy

LABELS = ["a"] * 40 + ["b"] * 40
NOTHING = {"lidar": 1.0}
PAIRS = ((True, True), (True, False), (False, True), (False, False))


def features(apart, seed=0, dim=6):
    """Two clouds whose centres are so far apart."""
    draws = torch.randn(80, dim, generator=torch.Generator().manual_seed(seed))
    draws[40:, 0] += apart
    return draws


def right(*counts):
    """Whether images are classified correctly: by both, before alone, after alone, by neither."""
    before, after = ([pair[side] for pair, n in zip(PAIRS, counts, strict=True) for _ in range(n)]
                     for side in (0, 1))  # fmt: skip
    return np.array(before), np.array(after)


def test_the_interval_is_of_paired_differences():
    """With many images it is that of the mean of the differences."""
    before, after = right(300, 250, 350, 100)
    accuracy = Accuracy.of(before, after)
    differences = after.astype(float) - before
    half = 1.96 * differences.std(ddof=1) / math.sqrt(1000)
    assert (accuracy.before, accuracy.after) == (0.55, 0.65)
    assert (accuracy.low, accuracy.high) == pytest.approx((0.1 - half, 0.1 + half), abs=1e-3)


@pytest.mark.parametrize("images", [40, 2000])
def test_a_handful_of_images_decides_about_as_in_an_exact_test(images):
    """The sign test (McNemar's) of the images that only one of the encoders gets right."""
    for lost, gained in itertools.product(range(4), range(16)):
        accuracy = Accuracy.of(*right(images - gained - lost, lost, gained, 0))
        chance = binomtest(gained, gained + lost).pvalue if gained + lost else 1
        if accuracy.low > 0:
            assert chance < 0.08  # of four images all for the same encoder: .125
        assert accuracy.low < accuracy.high <= 1
    assert Accuracy.of(*right(images - 6, 0, 6, 0)).low > 0


def test_encoders_that_agree_on_few_images_may_still_differ():
    accuracy = Accuracy.of(*right(6, 0, 0, 6))
    assert -0.4 < accuracy.low < -0.1 < 0.1 < accuracy.high == -accuracy.low


def test_a_better_encoder_is_called_so_and_a_worse_one():
    weak, strong = features(0.3), features(5.0)
    better = compare((weak, strong), (NOTHING, {"lidar": 2.0}), LABELS, 0)
    assert better.verdict.startswith("better: +")
    assert better.accuracies["knn"].after > 0.9 > better.accuracies["knn"].before
    assert better.label_free == {"lidar": (1.0, 2.0)}
    worse = compare((strong, weak), (NOTHING, NOTHING), LABELS, 0)
    assert worse.verdict.startswith("WORSE: -")
    assert worse.accuracies["linear"].low == pytest.approx(-better.accuracies["linear"].high)
    expected = estimate_accuracy(strong, LABELS, 0).accuracy
    assert better.accuracies["linear"].after == expected


def test_few_images_of_a_class_are_not_outvoted_by_those_of_all_others():
    """Of ten images nine are neighbours, four of them of the same class."""
    draws = torch.randn(10, 6, generator=torch.Generator().manual_seed(0))
    draws[5:, 0] += 8
    alike = draws + torch.tensor([0, 60, 0, 0, 0, 0])  # as features behind a ReLU are
    comparison = compare((alike, alike), (NOTHING, NOTHING), ["a"] * 5 + ["b"] * 5, 0)
    assert comparison.accuracies["knn"].before == 1


def test_what_so_many_images_cannot_show_is_said():
    level = compare((features(1.5), features(1.5, seed=1)), (NOTHING, NOTHING), LABELS, 0)
    assert level.verdict.startswith("no difference that 80 images can show: ")
    assert level.accuracies["linear"].low < 0 < level.accuracies["linear"].high


def test_without_labels_there_is_no_verdict():
    comparison = compare((features(1), features(2)), (NOTHING, NOTHING), None, 0)
    assert comparison.accuracies == {} and comparison.verdict.startswith("no verdict: ")
    assert comparison.as_json()["images"] == 80


def test_neighbours_in_common():
    one, two = features(1), features(1, seed=3)
    assert compare((one, one), (NOTHING, NOTHING), None, 0).neighbours_in_common == 1
    share = compare((one, two), (NOTHING, NOTHING), None, 0).neighbours_in_common
    shares = []
    for row in range(80):
        near = []
        for vectors in (one, two):
            unit = vectors / vectors.norm(dim=1, keepdim=True)
            order = (unit @ unit[row]).argsort(descending=True).tolist()
            order.remove(row)
            near.append(set(order[:10]))
        shares.append(len(near[0] & near[1]) / 10)
    assert share == pytest.approx(np.mean(shares))
