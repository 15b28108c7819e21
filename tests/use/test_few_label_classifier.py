"""The classifier of few labels, and its accuracy by cross-validation."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from orchestra_flwr.console import image_count
from orchestra_flwr.use.few_label_classifier import (
    FewLabelClassifier,
    estimate_accuracy,
    fit_few_labels,
)


def some_digits(each, classes=10):
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))  # they are sorted by writer
    chosen = np.concatenate([order[digits.target[order] == c][:each] for c in range(classes)])
    rest = np.setdiff1d(np.flatnonzero(digits.target < classes), chosen)
    data, names = torch.from_numpy(digits.data).float(), [str(t) for t in digits.target]
    return data, names, chosen, rest


@pytest.mark.parametrize("classes", [2, 3])
def test_it_is_scikit_learns_with_the_penalty_that_was_chosen(exact_probes, classes):
    data, names, chosen, rest = some_digits(6, classes)
    labels = [names[i] for i in chosen]
    fitted = fit_few_labels(data[chosen], labels, seed=0)
    strength = fitted.strength * (2 if classes == 2 else 1)  # there, one vector for both classes
    expected = make_pipeline(
        StandardScaler(), LogisticRegression(C=strength, tol=1e-8, max_iter=10_000)
    )
    expected.fit(data[chosen].double().numpy(), labels)
    assert fitted.classes == tuple(expected.classes_)
    probabilities = fitted.probabilities(data[rest]).numpy()
    np.testing.assert_allclose(
        probabilities, expected.predict_proba(data[rest].double().numpy()), atol=0.02
    )
    np.testing.assert_allclose(probabilities.sum(1), 1)


def test_the_interval_holds_the_accuracy_on_all_other_images(exact_probes):
    data, names, chosen, rest = some_digits(10)
    labels = [names[i] for i in chosen]
    fitted = fit_few_labels(data[chosen], labels, seed=0)
    predicted = [fitted.classes[i] for i in fitted.probabilities(data[rest]).argmax(1)]
    accuracy = np.mean([names[i] == p for i, p in zip(rest, predicted, strict=True)])
    estimate = estimate_accuracy(data[chosen], labels, seed=0)
    assert accuracy > 0.7
    assert estimate.low <= accuracy <= estimate.high
    assert estimate.images == 100 and set(estimate.by_class) == {str(c) for c in range(10)}
    right = round(100 * estimate.accuracy)
    interval = binomtest(right, 100).proportion_ci(0.95, "wilson")
    assert (estimate.low, estimate.high) == (interval.low, interval.high)
    assert np.mean([*estimate.by_class.values()]) == pytest.approx(estimate.accuracy)


def test_labels_that_mean_nothing_are_not_called_accurate():
    """No image is tested by a classifier, or a penalty, that it had a part in."""
    vectors = torch.randn(60, 200)
    labels = [str(i % 3) for i in range(60)]
    estimate = estimate_accuracy(vectors, labels, seed=0)
    assert estimate.low < 1 / 3 < estimate.high
    fitted = fit_few_labels(vectors, labels, seed=0)
    assert fitted.strength < 1  # noise asks for a strong penalty


def test_progress_of_an_estimate_is_shown(capsys, monkeypatch):
    """With 81 classes of 2,000 images nothing was said for minutes."""
    ticks = itertools.count(step=11.0)
    monkeypatch.setattr(image_count.time, "monotonic", lambda: next(ticks))
    estimate_accuracy(torch.randn(60, 4), [str(i % 3) for i in range(60)], seed=0)
    out, err = capsys.readouterr()
    assert out == "" and [line.partition(",")[0] for line in err.splitlines()] == [
        f"classified {tried} of 60 images" for tried in (12, 24, 36, 48, 60)
    ]


def test_five_images_of_a_class_are_enough():
    vectors = torch.cat([torch.randn(5, 4) + 6, torch.randn(5, 4) - 6])
    labels = ["a"] * 5 + ["b"] * 5
    assert estimate_accuracy(vectors, labels, 0).accuracy == 1
    fitted = fit_few_labels(vectors, labels, 0)
    assert isinstance(fitted, FewLabelClassifier)
    assert fitted.probabilities(torch.full((1, 4), 6.0)).argmax() == 0
