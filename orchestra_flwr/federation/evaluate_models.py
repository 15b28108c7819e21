"""Scores and encoders of a run whose exchange has several models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestra_flwr.config import Config
from orchestra_flwr.federation.exchanges import Exchange
from orchestra_flwr.federation.server.evaluator import Evaluator, Scores
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.methods import ordered_backbones
from orchestra_flwr.models import Backbone, Encoder, save_encoder
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.training import Learner


def evaluate_models(
    evaluator: Evaluator,
    models: Models,
    exchange: Exchange,
    *,
    untrained: bool,
    kept_only: bool = False,
) -> tuple[Scores | None, dict[str, Any]]:
    """The run's scores, and those of each model where there are several.

    Args:
        evaluator: of the run.
        models: the server's.
        exchange: says which models are evaluated, and whether their mean is.
        untrained: whether nothing was trained yet: then the first model alone is evaluated.
        kept_only: whether of each model only the backbone that is kept is evaluated.

    Returns:
        The scores, None without labels. And entries of the round's record: `models`, by name each
        one's `weight` and `scores`; with a mean model also `nodes`, mean, least and largest of the
        scores by backbone, and `consensus`, how far the models are from their mean.
    """
    weights = exchange.evaluated()
    if untrained or len(weights) < 2:
        name = next(iter(weights), models.first)
        method = models.load(name).method
        return evaluator.scores(method, untrained=untrained, kept_only=kept_only), {}
    entries: dict[str, Any] = {}
    if exchange.averages:
        entries["consensus"] = models.consensus_distance(weights)
    found: dict[str, Any] = {}
    for name, weight in weights.items():
        scores = evaluator.scores(models.load(name).method, kept_only=kept_only)
        if scores is None:
            return None, entries
        found[name] = {"weight": weight, "scores": scores}
    entries["models"] = found
    mean = _weighted_mean(list(found.values()))
    if not exchange.averages:
        return mean, entries
    entries["nodes"] = _ranges(mean, [entry["scores"] for entry in found.values()])
    return evaluator.scores(models.load_mean(weights).method, kept_only=kept_only), entries


def _ranges(mean: Scores, scores: list[Scores]) -> dict[str, Any]:
    """By backbone and score the mean, the least and the largest of the models."""
    return {
        backbone: {
            key: {"mean": value, "min": min(values), "max": max(values)}
            for key, value in means.items()
            if isinstance(value, float) and (values := [each[backbone][key] for each in scores])
        }
        for backbone, means in mean.items()
    }


def _weighted_mean(entries: list[dict[str, Any]]) -> Scores:
    """Of every number, by backbone; scores within scores (`recalibrated`) as well."""
    weights = [entry["weight"] for entry in entries]
    return _mean_of_numbers([entry["scores"] for entry in entries], weights)


def _mean_of_numbers(records: list[dict[str, Any]], weights: list[float]) -> dict[str, Any]:
    mean: dict[str, Any] = {}
    for key, value in records[0].items():
        values = [record[key] for record in records]
        if isinstance(value, dict):
            mean[key] = _mean_of_numbers(values, weights)
        elif isinstance(value, float):
            weighted = sum(w * v for w, v in zip(weights, values, strict=True))
            mean[key] = weighted / sum(weights)
    return mean


def save_encoders(
    folder: RunFolder,
    config: Config,
    encoder_of: Callable[[Backbone], Encoder],
    models: Models,
    *,
    exchange: Exchange,
    rounds: int,
) -> str:
    """Saves the run's encoder and, where there are several models, that of each.

    Args:
        folder: of the run; the models' own are `encoders/<model>.safetensors`.
        config: of the run.
        encoder_of: makes the encoder that is saved of a model's backbone.
        models: the server's.
        exchange: says which models are saved, and whether the run's encoder is that of their mean.
        rounds: after how many they are saved.

    Returns:
        The model whose encoder is the run's; "mean" for their mean.
    """
    weights = exchange.evaluated()
    several = len(weights) > 1

    def save(path: Path, name: str, learner: Learner) -> None:
        backbones = ordered_backbones(learner.method, config.evaluation.backbone)
        kept, backbone = next(iter(backbones.items()))
        about = {"model": name} if several else {}
        save_encoder(
            path,
            encoder_of(backbone),
            method=config.method.name,
            backbone=kept,
            rounds=rounds,
            data=config.data.name,
            **about,
        )

    chosen = max(weights, key=weights.__getitem__) if weights else models.first
    if several:
        folder.encoders.mkdir(exist_ok=True)
        for name in weights:
            save(folder.encoders / f"{name}.safetensors", name, models.load(name))
    if several and exchange.averages:
        save(folder.encoder, "mean", models.load_mean(weights))
        return "mean"
    save(folder.encoder, chosen, models.load(chosen))
    return chosen
