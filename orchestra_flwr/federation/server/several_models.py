"""Scores and encoders of a run whose exchange has several models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestra_flwr.federation.server.evaluator import Evaluator, Scores
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.methods import kept_first
from orchestra_flwr.models import save_encoder
from orchestra_flwr.reporting import RunFolder


def evaluate_models(
    evaluator: Evaluator, models: Models, weights: Mapping[str, float], *, untrained: bool
) -> tuple[Scores | None, dict[str, Any]]:
    """The run's scores, and those of each model where there are several.

    Args:
        evaluator: of the run.
        models: the server's.
        weights: what :meth:`Exchange.evaluated` returned.
        untrained: whether nothing was trained yet.

    Returns:
        The weighted means of the models' scores, None without labels; and by the models' names
        `weight` and `scores`, {} with a single one.
    """
    if len(weights) < 2:
        name = next(iter(weights), models.first)
        return evaluator.scores(models.load(name).method, untrained=untrained), {}
    found: dict[str, Any] = {}
    for name, weight in weights.items():
        scores = evaluator.scores(models.load(name).method, untrained=untrained)
        if scores is None:
            return None, {}
        found[name] = {"weight": weight, "scores": scores}
    return _weighted_mean(list(found.values())), found


def _weighted_mean(entries: list[dict[str, Any]]) -> Scores:
    """Of every score that is a number, by backbone."""
    total = sum(entry["weight"] for entry in entries)
    return {
        backbone: {
            key: sum(e["weight"] * e["scores"][backbone][key] for e in entries) / total
            for key, value in scores.items()
            if isinstance(value, float)
        }
        for backbone, scores in entries[0]["scores"].items()
    }


def save_encoders(
    folder: RunFolder,
    evaluator: Evaluator,
    models: Models,
    weights: Mapping[str, float],
    rounds: int,
) -> str:
    """Saves the encoder of the largest weight as the run's, and, of several, each as its own.

    Args:
        folder: of the run; the others are `encoders/<model>.safetensors`.
        evaluator: of the run; makes encoders of backbones.
        models: the server's.
        weights: what :meth:`Exchange.evaluated` returned.
        rounds: after how many they are saved.

    Returns:
        The model whose encoder is the run's.
    """
    config = evaluator.config
    chosen = max(weights, key=weights.__getitem__) if weights else models.first
    paths = [(chosen, folder.encoder)]
    if len(weights) > 1:
        folder.encoders.mkdir(exist_ok=True)
        paths += [(name, folder.encoders / f"{name}.safetensors") for name in weights]
    for name, path in paths:
        backbones = kept_first(models.load(name).method, config.evaluation.backbone)
        kept, backbone = next(iter(backbones.items()))
        about = {"model": name} if len(weights) > 1 else {}
        save_encoder(
            path,
            evaluator.encoder(backbone),
            method=config.method.name,
            backbone=kept,
            rounds=rounds,
            data=config.data.name,
            **about,
        )
    return chosen
