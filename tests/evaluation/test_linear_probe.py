import logging

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from orchestra_flwr.evaluation import fit_linear_probe, linear_accuracy, linear_probe
from orchestra_flwr.training import torch_threads


def digits():
    data = load_digits()  # 64 pixels, some of them constant
    x, y = torch.tensor(data.data).float(), torch.tensor(data.target)
    return x[:1200], y[:1200], x[1200:], y[1200:]


def overlapping(count=900, dim=12, classes=4, seed=0):
    """Classes that cannot be separated, in features of very different scales and correlations."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(5))
    x = centres[labels] + 2 * torch.randn(count, dim, generator=generator)
    mixing = torch.randn(dim, dim, generator=torch.Generator().manual_seed(6))
    return (x @ mixing) * torch.logspace(-3, 3, dim) + 5, labels


def oracle(train, labels, penalty=linear_probe.PENALTY):
    """scikit-learn's fit of the same objective in float64, with its value."""
    x = train.double().numpy()
    mean, deviation = x.mean(0), x.std(0)
    scale = np.where(deviation > 0, 1 / np.where(deviation > 0, deviation, 1), 0)
    model = LogisticRegression(C=1 / (penalty * len(x)), tol=1e-8, max_iter=20_000)
    x = (x - mean) * scale
    model.fit(x, labels.numpy())
    loss = log_loss(labels.numpy(), model.predict_proba(x))
    loss += penalty / 2 * (model.coef_**2).sum()
    return loss, lambda test: model.predict((test.double().numpy() - mean) * scale)


@pytest.mark.parametrize("case", ["digits", "overlapping"])
def test_agrees_with_scikit_learn(case):
    train, labels, test, answers = (
        digits() if case == "digits" else (*overlapping(), *overlapping(seed=1))
    )
    loss, predict = oracle(train, labels)
    probe = fit_linear_probe(train, labels)
    assert probe.loss == pytest.approx(loss, abs=1e-5)
    disagreement = float((probe.predict(test).numpy() != predict(test)).mean())
    assert disagreement <= 0.005
    expected = float((predict(test) == answers.numpy()).mean())
    assert 0.3 < expected < 0.99
    assert linear_accuracy(train, labels, test, answers) == pytest.approx(expected, abs=0.005)


def test_same_features_give_the_same_bits():
    train, labels, *_ = digits()
    first, second = fit_linear_probe(train, labels), fit_linear_probe(train, labels)
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)


def test_a_small_probe_is_the_same_with_any_number_of_threads():
    """And these are as before afterwards."""
    x, y = overlapping()
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        with torch_threads(threads):
            found.append(fit_linear_probe(x, y))
            assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == before
    assert all(torch.equal(each.weight, found[0].weight) for each in found)


def test_shift_and_scale_of_the_features_do_not_matter():
    train, labels = overlapping()
    test, answers = overlapping(seed=1)
    factor, shift = torch.logspace(2, -2, 12), 3.0
    assert linear_accuracy(train, labels, test, answers) == pytest.approx(
        linear_accuracy(train * factor + shift, labels, test * factor + shift, answers), abs=0.003
    )


def test_constant_and_nearly_constant_features_are_ignored():
    train, labels = overlapping()
    test, answers = overlapping(seed=1)
    rounding = 1000 + 1e-4 * torch.randn(900, 1, generator=torch.Generator().manual_seed(1))
    wide = torch.cat([train, torch.full((900, 2), 0.1), rounding], dim=1)
    probe = fit_linear_probe(wide, labels)
    assert torch.equal(probe.weight[:, 12:], torch.zeros(4, 3))
    wide_test = torch.cat([test, torch.full((900, 3), 1e6)], dim=1)
    assert linear_accuracy(wide, labels, wide_test, answers) == pytest.approx(
        linear_accuracy(train, labels, test, answers), abs=0.003
    )


def test_classes_missing_in_train_or_only_in_test():
    x = torch.tensor([[0.0, 0.0], [0.1, 0.1], [5.0, 5.0], [5.1, 5.0]])
    labels = torch.tensor([2, 2, 7, 7])  # 0, 1 and 3 to 6 are missing
    probe = fit_linear_probe(x, labels)
    assert probe.classes.tolist() == [2, 7]
    assert linear_accuracy(x, labels, x, labels) == 1
    assert linear_accuracy(x, labels, x, torch.tensor([2, 9, 7, 0])) == 0.5


def test_one_class_and_one_image():
    x, labels = overlapping(20)
    assert linear_accuracy(x, labels * 0 + 3, x, labels * 0 + 3) == 1
    assert linear_accuracy(x[:1], labels[:1], x[:1], labels[:1]) == 1


def test_collapsed_features_fall_back_to_the_most_frequent_class():
    same, labels = torch.full((10, 8), 0.3), torch.tensor([1] * 7 + [0] * 3)
    assert linear_accuracy(same, labels, same, labels) == pytest.approx(0.7)


def test_more_dimensions_than_images():
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.randn(30, 256, generator=generator), torch.arange(30) % 3
    assert linear_accuracy(x, labels, x, labels) == 1


def test_a_fit_that_was_stopped_early_says_so(monkeypatch, caplog):
    train, labels, *_ = digits()
    with caplog.at_level(logging.WARNING):
        fit_linear_probe(train, labels)
        assert not caplog.records
        monkeypatch.setattr(linear_probe, "MAX_ITERATIONS", 2)
        fit_linear_probe(train, labels)
    assert "before it converged" in caplog.text


def test_features_that_are_not_finite_are_refused():
    train, labels, test, answers = digits()
    test[3, 0] = float("nan")
    with pytest.raises(ValueError, match="test set: 1 of"):
        linear_accuracy(train, labels, test, answers)
    with pytest.raises(ValueError, match="training set: 1 of"):
        linear_accuracy(test, answers, train, labels)


@pytest.mark.parametrize("penalty", [1e-3, 0.1, 10.0])
def test_a_penalty_is_scikit_learns(penalty):
    train, labels = overlapping()
    loss, predict = oracle(train, labels, penalty)
    probe = fit_linear_probe(train, labels, penalty)
    assert probe.loss == pytest.approx(loss, abs=1e-5)
    test, _ = overlapping(seed=1)
    assert float((probe.predict(test).numpy() != predict(test)).mean()) <= 0.005


def test_several_penalties_give_the_probes_that_each_of_them_gives():
    train, labels = overlapping()
    penalties = (0.1, 1e-4)
    several = linear_probe.fit_linear_probes(train, labels, penalties)
    for probe, penalty in zip(several, penalties, strict=True):
        assert torch.equal(probe.weight, fit_linear_probe(train, labels, penalty).weight)


def test_cross_validation_chooses_scikit_learns_penalty():
    """In each fold with the same C."""
    train, labels = overlapping(150)
    penalties = [10.0**power for power in range(-4, 3)]
    chosen = linear_probe.best_penalty(train, labels, penalties, folds=5, seed=3)
    grid = {"logisticregression__C": [1 / (penalty * len(labels)) for penalty in penalties]}
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=20_000)), grid,
        cv=StratifiedKFold(5, shuffle=True, random_state=3), scoring="neg_log_loss",
    ).fit(train.double().numpy(), labels.numpy())  # fmt: skip
    expected = 1 / (search.best_params_["logisticregression__C"] * len(labels))
    assert chosen == pytest.approx(expected)
    assert 1e-4 < chosen < 100  # neither end
