"""How good an encoder is: features, kNN, linear probes, fine-tuning, alignment and uniformity."""

from orchestra_flwr.evaluation.drift import Drift, StreamingDrift
from orchestra_flwr.evaluation.features import extract_features, feature_std
from orchestra_flwr.evaluation.few_labels import labelled_subset
from orchestra_flwr.evaluation.finetune import finetune
from orchestra_flwr.evaluation.knn import fewer_voters, knn_accuracy, voters
from orchestra_flwr.evaluation.linear_probe import LinearProbe, fit_linear_probe, linear_accuracy
from orchestra_flwr.evaluation.own_classes import (
    OwnClasses,
    personal_accuracy,
    spread_over_clients,
)
from orchestra_flwr.evaluation.published_probe import published_accuracy
from orchestra_flwr.evaluation.scores import evaluate, evaluate_by
from orchestra_flwr.evaluation.similarity import Similarities, similarities

__all__ = [
    "Drift",
    "LinearProbe",
    "OwnClasses",
    "Similarities",
    "StreamingDrift",
    "evaluate",
    "evaluate_by",
    "extract_features",
    "feature_std",
    "fewer_voters",
    "finetune",
    "fit_linear_probe",
    "knn_accuracy",
    "labelled_subset",
    "linear_accuracy",
    "personal_accuracy",
    "published_accuracy",
    "similarities",
    "spread_over_clients",
    "voters",
]
