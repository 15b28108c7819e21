"""Judging a frozen encoder: features, kNN and linear probe."""

from orchestra_flwr.evaluation.features import extract_features, feature_std
from orchestra_flwr.evaluation.knn import knn_accuracy
from orchestra_flwr.evaluation.linear_probe import LinearProbe, fit_linear_probe, linear_accuracy
from orchestra_flwr.evaluation.scores import Scores, evaluate, evaluate_features

__all__ = [
    "LinearProbe",
    "Scores",
    "evaluate",
    "evaluate_features",
    "extract_features",
    "feature_std",
    "fit_linear_probe",
    "knn_accuracy",
    "linear_accuracy",
]
