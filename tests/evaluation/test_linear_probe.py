import logging

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from orchestra_flwr.evaluation import linear_accuracy, linear_probe
from orchestra_flwr.evaluation.linear_probe import fit_linear_probe
from orchestra_flwr.seeding import torch_generator
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
    probe = fit_linear_probe(train, labels, linear_probe.PENALTY)
    assert probe.loss == pytest.approx(loss, abs=1e-5)
    disagreement = float((probe.predict(test).numpy() != predict(test)).mean())
    assert disagreement <= 0.005
    expected = float((predict(test) == answers.numpy()).mean())
    assert 0.3 < expected < 0.99
    penalty = linear_probe.PENALTY
    assert linear_accuracy(train, labels, test, answers, penalty) == pytest.approx(
        expected, abs=0.005
    )


def test_same_features_give_the_same_bits():
    train, labels, *_ = digits()
    first, second = fit_linear_probe(train, labels), fit_linear_probe(train, labels)
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)


def test_a_small_probe_is_the_same_with_any_number_of_threads():
    """And these are as before afterwards."""
    x, y = overlapping()
    before = torch.get_num_threads()
    probes = []
    for threads in (1, 2, 3):
        with torch_threads(threads):
            probes.append(fit_linear_probe(x, y))
            assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == before
    assert all(torch.equal(probe.weight, probes[0].weight) for probe in probes)


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


def wide(count=600, dim=200, classes=5, seed=0):
    """Wide features, of which ten dimensions say something about the class; wrong labels in set 0.

    The fixed penalty fits the wrong labels, by the dimensions that say nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    x = torch.randn(count, dim, generator=generator)
    x[:, :10] += torch.randn(classes, 10, generator=torch.Generator().manual_seed(99))[labels]
    if seed == 0:
        wrong = torch.rand(count, generator=generator) < 0.2
        labels = torch.where(wrong, (labels + 1) % classes, labels)
    return x, labels


def test_the_fixed_penalty_costs_points_with_wide_features_and_few_images():
    train, test = wide(), wide(2000, seed=1)
    fixed = linear_accuracy(*train, *test, linear_probe.PENALTY)
    chosen = linear_accuracy(*train, *test)
    assert fixed < 0.6 and chosen > fixed + 0.1


def test_many_images_lose_nothing_by_the_choice():
    train, test = overlapping(4000), overlapping(4000, seed=1)
    fixed = linear_accuracy(*train, *test, linear_probe.PENALTY)
    assert linear_accuracy(*train, *test) > fixed - 0.005


def test_of_many_features_some_choose(monkeypatch):
    """The fit is of all of them, with the weight on each feature that those would give it."""
    train, test = wide(1800), wide(2000, seed=1)
    by_all = fit_linear_probe(*train)
    monkeypatch.setattr(linear_probe, "MAX_CHOOSING", 900)
    by_some = fit_linear_probe(*train)
    assert 0.3 < by_some.penalty / by_all.penalty < 3.4  # a step of the grid apart at most
    drawn = torch.randperm(1800, generator=torch_generator(0, "probe", "drawn"))[:900]
    alone = fit_linear_probe(*(x[drawn] for x in train))
    assert by_some.penalty == pytest.approx(alone.penalty / 2)
    assert by_some.accuracy(*test) > by_all.accuracy(*test) - 0.05
    exact = fit_linear_probe(*train, by_some.penalty)
    assert by_some.loss == pytest.approx(exact.loss, abs=1e-6)


def test_the_choice_is_the_same_each_time_and_follows_the_seed():
    train, labels = wide()
    first, second = fit_linear_probe(train, labels), fit_linear_probe(train, labels)
    assert first.penalty == second.penalty and torch.equal(first.weight, second.weight)
    folds = [linear_probe._folds(labels, seed) for seed in (0, 0, 1)]
    assert torch.equal(folds[0], folds[1]) and not torch.equal(folds[0], folds[2])


def test_every_fold_has_its_share_of_each_class():
    labels = torch.tensor([0] * 30 + [1] * 9 + [2] * 3)
    folds = linear_probe._folds(labels, 0)
    for label, share in ((0, 10), (1, 3), (2, 1)):
        assert folds[labels == label].bincount(minlength=3).tolist() == [share] * 3


def test_cross_validation_chooses_scikit_learns_penalty():
    """By the same folds, in each of them with the same C."""
    train, labels = overlapping(150)
    folds = linear_probe._folds(labels, 3)
    penalties = linear_probe.PENALTIES
    grid = {"logisticregression__C": [1 / (penalty * len(labels)) for penalty in penalties]}
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=20_000)), grid,
        cv=PredefinedSplit(folds.numpy()), scoring="neg_log_loss",
    ).fit(train.double().numpy(), labels.numpy())  # fmt: skip
    expected = 1 / (search.best_params_["logisticregression__C"] * len(labels))
    assert fit_linear_probe(train, labels, seed=3).penalty == pytest.approx(expected)
    assert penalties[-1] < expected < penalties[0]  # neither end


def test_a_chosen_penalty_gives_the_fit_of_that_penalty():
    """Wherever its search starts."""
    train, labels = overlapping()
    probe = fit_linear_probe(train, labels)
    again = fit_linear_probe(train, labels, probe.penalty)
    assert probe.loss == pytest.approx(again.loss, abs=1e-6)
    assert float((probe.predict(train) != again.predict(train)).double().mean()) < 0.002


def test_too_few_features_to_choose_by():
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    for labels in (torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]), torch.tensor([4, 4, 4])):
        assert fit_linear_probe(x, labels).penalty == linear_probe.PENALTY
    rare = torch.cat([torch.arange(20) % 2, torch.tensor([2])])  # in one fold alone
    x = torch.randn(21, 8, generator=torch.Generator().manual_seed(0))
    assert fit_linear_probe(x, rare).classes.tolist() == [0, 1, 2]


def test_the_standard_error_is_that_of_a_share():
    draws = np.random.default_rng(0).binomial(400, 0.7, 20_000) / 400
    assert linear_probe.standard_error(0.7, 400) == pytest.approx(draws.std(), rel=0.02)
