"""Scores and encoders of a run's models: when they are evaluated, and what is saved."""

from collections.abc import Callable
from dataclasses import dataclass
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

Evaluated = tuple[Scores | None, dict[str, Any]]  # the run's scores, and entries of the record
NOT_EVALUATED: Evaluated = (None, {})


@dataclass(frozen=True)
class RunEncoders:
    """Evaluates a run's models after its rounds, and saves their encoders."""

    config: Config
    evaluator: Evaluator
    models: Models
    exchange: Exchange  # says which of them are evaluated

    def is_due(self, number: int) -> bool:
        """Whether a round's models are evaluated."""
        last = number == self.config.federation.rounds
        return last or number % self.config.evaluation.every == 0

    def is_before(self, number: int) -> bool:
        """Whether a round's scores are those of the model that it begins with.

        Round 0 trains nothing, so its evaluation need not wait for workers that are still starting.
        Several models may be mixed in it.
        """
        return number == 0 and len(self.models.names) == 1

    def evaluate(self, number: int) -> Evaluated:
        """The scores of the models as they are.

        The run's scores are None without labels. The entries of the round's record are `models`, by
        name each one's `weight` and `scores`, where there are several; with a mean model also
        `nodes`, mean, least and largest of the scores by backbone, and `consensus`, how far the
        models are from their mean.
        """
        evaluator, models, exchange = self.evaluator, self.models, self.exchange
        kept_only = 0 < number < self.config.federation.rounds
        weights = exchange.evaluated()
        if number == 0 or len(weights) < 2:
            method = models.load(next(iter(weights), models.first)).method
            return evaluator.scores(method, untrained=number == 0, kept_only=kept_only), {}
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
        every = [entry["scores"] for entry in found.values()]
        mean = _weighted_mean(every, [entry["weight"] for entry in found.values()])
        if not exchange.averages:
            return mean, entries
        entries["nodes"] = _ranges(mean, every)
        return evaluator.scores(models.load_mean(weights).method, kept_only=kept_only), entries

    def save(
        self, folder: RunFolder, encoder_of: Callable[[Backbone], Encoder], rounds: int
    ) -> str:
        """Saves the run's encoder and, where there are several models, that of each.

        Args:
            folder: of the run; the models' own are `encoders/<model>.safetensors`.
            encoder_of: makes the encoder that is saved of a model's backbone.
            rounds: after how many they are saved.

        Returns:
            The model whose encoder is the run's; "mean" for their mean.
        """
        weights, models = self.exchange.evaluated(), self.models
        several = len(weights) > 1

        def save(path: Path, name: str, learner: Learner) -> None:
            backbones = ordered_backbones(learner.method, self.config.evaluation.backbone)
            kept, backbone = next(iter(backbones.items()))
            about = {"model": name} if several else {}
            save_encoder(
                path,
                encoder_of(backbone),
                method=self.config.method.name,
                backbone=kept,
                rounds=rounds,
                data=self.config.data.name,
                **about,
            )

        chosen = max(weights, key=weights.__getitem__) if weights else models.first
        if several:
            folder.encoders.mkdir(exist_ok=True)
            for name in weights:
                save(folder.encoders / f"{name}.safetensors", name, models.load(name))
        if several and self.exchange.averages:
            save(folder.encoder, "mean", models.load_mean(weights))
            return "mean"
        save(folder.encoder, chosen, models.load(chosen))
        return chosen


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


def _weighted_mean(records: list[dict[str, Any]], weights: list[float]) -> dict[str, Any]:
    """Of every number, by backbone; scores within scores (`recalibrated`) as well."""
    mean: dict[str, Any] = {}
    for key, value in records[0].items():
        values = [record[key] for record in records]
        if isinstance(value, dict):
            mean[key] = _weighted_mean(values, weights)
        elif isinstance(value, float):
            weighted = sum(w * v for w, v in zip(weights, values, strict=True))
            mean[key] = weighted / sum(weights)
    return mean
