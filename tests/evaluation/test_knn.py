import math

import pytest
import torch

from orchestra_flwr.evaluation import fewer_voters, knn, knn_accuracy, voters


def blobs(count, classes=5, dim=6, noise=1.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(0, classes, (count,), generator=generator)
    return centres[labels] + noise * torch.randn(count, dim, generator=generator), labels


def slow_knn(bank, bank_labels, queries, query_labels, *, k, temperature):
    hits = 0
    for query, label in zip(queries.tolist(), query_labels.tolist(), strict=True):
        neighbours = []
        for feature, its_label in zip(bank.tolist(), bank_labels.tolist(), strict=True):
            dot = sum(a * b for a, b in zip(query, feature, strict=True))
            norms = math.hypot(*query) * math.hypot(*feature)
            neighbours.append((dot / norms, its_label))
        votes = {}
        for cosine, its_label in sorted(neighbours, reverse=True)[:k]:
            votes[its_label] = votes.get(its_label, 0) + math.exp(cosine / temperature)
        hits += max(votes, key=votes.get) == label
    return hits / len(queries)


@pytest.mark.parametrize("k", [1, 7, 60, 1000])
@pytest.mark.parametrize("temperature", [0.02, 0.1, 1.0])
def test_agrees_with_a_slow_double_loop(k, temperature):
    bank, queries = blobs(60), blobs(53, seed=1)
    expected = slow_knn(*bank, *queries, k=k, temperature=temperature)
    assert 0.2 < expected < 1
    assert knn_accuracy(*bank, *queries, k=k, temperature=temperature) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("k", "bank", "votes"),
    [(200, 160, 16), (200, 2000, 200), (200, 1999, 199), (5, 9, 1), (1, 1, 1)],
)
def test_at_most_a_tenth_of_the_bank_votes(k, bank, votes):
    assert voters(k, bank) == votes
    said = fewer_voters(k, bank)
    assert (said is None) == (votes == k)
    if said:
        assert said.startswith(f"evaluation.knn_k={k}: only {votes} of the {bank:,} training")


def test_blocks_of_queries_change_nothing(monkeypatch):
    bank, queries = blobs(60), blobs(53, seed=1)
    whole = knn_accuracy(*bank, *queries, k=9)
    monkeypatch.setattr(knn, "SIMILARITIES_AT_ONCE", 60 * 4 + 1)
    assert knn_accuracy(*bank, *queries, k=9) == whole
    monkeypatch.setattr(knn, "SIMILARITIES_AT_ONCE", 1)
    assert knn_accuracy(*bank, *queries, k=9) == whole


def test_norms_do_not_matter_and_arguments_stay_as_they_are():
    (bank, labels), (queries, answers) = blobs(60), blobs(53, seed=1)
    scales = torch.linspace(0.1, 50, 60)[:, None]
    before = bank.clone()
    expected = knn_accuracy(bank, labels, queries, answers, k=9)
    assert knn_accuracy(bank * scales, labels, queries * 3, answers, k=9) == expected
    assert torch.equal(bank, before)


def test_near_neighbours_outvote_many_far_ones():
    bank = torch.tensor([[1.0, 0.0]] + [[0.0, 1.0]] * 9)
    labels = torch.tensor([1] + [0] * 9)
    query, answer = torch.tensor([[1.0, 0.05]]), torch.tensor([1])
    assert knn_accuracy(bank, labels, query, answer, temperature=0.1) == 1  # e^10 against 9
    assert knn_accuracy(bank, labels, query, answer, temperature=10) == 0


def test_one_class():
    bank, _ = blobs(20)
    ones = torch.ones(20, dtype=torch.int64)
    assert knn_accuracy(bank, ones, bank, ones) == 1
    assert knn_accuracy(bank, ones, bank, ones + 1) == 0  # a class that the bank does not know


def test_equal_features_give_every_query_the_same_class():
    labels = torch.tensor([0, 0, 1, 1])
    same = torch.ones(4, 3)
    assert knn_accuracy(same, labels, same, labels, k=4) == 0.5


def test_a_feature_of_norm_zero_is_far_from_everything_but_counts():
    bank = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    labels = torch.tensor([0, 1, 2])
    queries = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    assert knn_accuracy(bank, labels, queries[:2], labels[1:], k=1) == 1
    # All three cosines of the zero query are 0: one of the classes, and no NaN.
    scores = [knn_accuracy(bank, labels, queries[2:], torch.tensor([c])) for c in range(3)]
    assert sorted(scores) == [0, 0, 1]


def test_low_temperature_does_not_overflow():
    bank, queries = blobs(60), blobs(53, seed=1)
    nearest = knn_accuracy(*bank, *queries, k=1)
    assert knn_accuracy(*bank, *queries, k=60, temperature=1e-6) == nearest


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_features_that_are_not_finite_are_refused(bad):
    bank, queries = blobs(10), blobs(5, seed=1)
    bank[0][3, 2] = bad
    with pytest.raises(ValueError, match="kNN bank: 1 of 10 feature vectors are not finite"):
        knn_accuracy(*bank, *queries)
    with pytest.raises(ValueError, match="kNN queries: 1 of 10"):
        knn_accuracy(*queries, *bank)


def test_shapes_and_labels_are_checked():
    bank, labels = blobs(10)
    with pytest.raises(ValueError, match="labels"):
        knn_accuracy(bank, labels[:9], bank, labels)
    with pytest.raises(ValueError, match="N >= 1"):
        knn_accuracy(bank, labels, bank[:0], labels[:0])
    with pytest.raises(ValueError, match="integers from 0"):
        knn_accuracy(bank, labels - 1, bank, labels)
