import dataclasses

import pytest
import torch
from torch import nn

from orchestra_flwr.config import EvaluationConfig
from orchestra_flwr.evaluation import Scores, evaluate, evaluate_features, knn_accuracy


class Pixels(nn.Module):
    def forward(self, images):
        return images.flatten(1).float() / 255


def striped(count, seed):
    """Images of 4 classes: the brightest row is the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = torch.randint(0, 150, (count, 1, 4, 4), generator=generator)
    images[torch.arange(count), 0, labels] += 100
    return images.to(torch.uint8), labels


def test_scores_of_an_encoder_are_those_of_its_features():
    config = EvaluationConfig(every=1, batch_size=7, knn_k=5)
    train, test = striped(200, 0), striped(100, 1)
    scores = evaluate(Pixels(), *train, *test, config=config)
    x, queries = Pixels()(train[0]), Pixels()(test[0])
    assert scores == evaluate_features(x, train[1], queries, test[1], config=config)
    assert scores.knn == knn_accuracy(x, train[1], queries, test[1], k=5, temperature=0.1)
    assert scores.linear > 0.9
    assert 0 < scores.feature_std < 1
    assert dataclasses.asdict(scores).keys() == {"knn", "linear", "feature_std"}


def test_collapsed_features_are_seen():
    labels = torch.tensor([0, 1] * 5)
    scores = evaluate_features(
        torch.ones(10, 3), labels, torch.ones(10, 3), labels, config=EvaluationConfig(every=1)
    )
    assert scores.knn == scores.linear == 0.5
    assert scores.feature_std == pytest.approx(0, abs=1e-9)


def test_scores_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Scores(0.1, 0.2, 0.3).knn = 1.0
