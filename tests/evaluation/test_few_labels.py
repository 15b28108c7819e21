import pytest
import torch

from orchestra_flwr.evaluation import linear_accuracy
from orchestra_flwr.evaluation.few_labels import FRACTIONS, labelled_subset, probe_accuracies


def clusters(count, seed):
    """Ten classes of 5 features each, far apart and with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 10
    centres = torch.randn(10, 5, generator=torch.Generator().manual_seed(9))
    return 2 * centres[labels] + torch.randn(count, 5, generator=generator), labels


def test_the_fractions():
    assert FRACTIONS == {"linear_10": 0.1, "linear_1": 0.01}


@pytest.mark.parametrize(("fraction", "each"), [(0.1, 10), (0.01, 1)])
def test_a_probe_sees_as_many_labels_of_every_class(monkeypatch, fraction, each):
    bank, queries, seen = clusters(1000, 0), clusters(100, 1), []

    def looking(features, labels, *test):
        seen.append(torch.bincount(labels).tolist())
        return linear_accuracy(features, labels, *test)

    monkeypatch.setattr("orchestra_flwr.evaluation.few_labels.linear_accuracy", looking)
    accuracies = probe_accuracies(bank, queries, fraction, (3, 4))
    assert seen == [[each] * 10] * 2
    chosen = labelled_subset(bank[1], fraction, 3)
    assert accuracies["runs"][0] == linear_accuracy(bank[0][chosen], bank[1][chosen], *queries)
    assert not torch.equal(chosen, labelled_subset(bank[1], fraction, 4))
    assert accuracies["mean"] == pytest.approx(sum(accuracies["runs"]) / 2)


@pytest.mark.slow
def test_more_labels_are_better():
    bank, queries = clusters(1000, 0), clusters(500, 1)
    one, ten = (probe_accuracies(bank, queries, f, range(3))["mean"] for f in (0.01, 0.1))
    assert 0.3 < one < ten - 0.05 < linear_accuracy(*bank, *queries)
