"""How good an encoder is: features, kNN, linear probes, fine-tuning, scores without labels."""

from orchestra_flwr.evaluation.drift import Drift, StreamingDrift
from orchestra_flwr.evaluation.knn import fewer_voters, knn_accuracy, voters
from orchestra_flwr.evaluation.label_free import LabelFreeScores, label_free_scores
from orchestra_flwr.evaluation.linear_probe import linear_accuracy
from orchestra_flwr.evaluation.own_classes import OwnClasses, personal_accuracy, spread_over_clients
from orchestra_flwr.evaluation.scores import evaluate

__all__ = [
    "Drift",
    "LabelFreeScores",
    "OwnClasses",
    "StreamingDrift",
    "evaluate",
    "fewer_voters",
    "knn_accuracy",
    "label_free_scores",
    "linear_accuracy",
    "personal_accuracy",
    "spread_over_clients",
    "voters",
]
