"""A run's encoders: when they are evaluated, which is the best so far, and what is saved."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.console.text import lookup
from orchestra_flwr.data import Dataset
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges import Exchange
from orchestra_flwr.federation.messages.fields import with_prefix
from orchestra_flwr.federation.server.evaluator import Evaluator, Scores
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.methods import ordered_backbones
from orchestra_flwr.models import Backbone, Encoder, save_encoder
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.training import Learner, first_weights

BEST = "best/"  # prefix of the best encoder's tensors in a checkpoint
BY_LABELS = ("knn", "linear")
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
        With several models, round 0 may mix them.
        """
        return number == 0 and len(self.models.names) == 1

    def evaluate(self, number: int) -> Evaluated:
        """Evaluates the models as they are.

        The run's scores are None if nothing can be evaluated. With several models, the entries of
        the round's record are `models`, with each one's `weight` and `scores` by its name; with a
        mean model also `nodes`, the mean, least and largest of the scores by backbone, and
        `consensus`, how far the models are from their mean.
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
        per_model: dict[str, Any] = {}
        for name, weight in weights.items():
            scores = evaluator.scores(models.load(name).method, kept_only=kept_only)
            if scores is None:
                return None, entries
            per_model[name] = {"weight": weight, "scores": scores}
        entries["models"] = per_model
        every = [entry["scores"] for entry in per_model.values()]
        mean = _weighted_mean(every, [entry["weight"] for entry in per_model.values()])
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
            encoder_of: makes the encoder to be saved from a model's backbone.
            rounds: after how many they are saved.

        Returns:
            The model whose encoder is the run's; "mean" for their mean.
        """
        weights, models = self.exchange.evaluated(), self.models
        several = len(weights) > 1

        def save(path: Path, name: str, learner: Learner) -> None:
            backbones = ordered_backbones(learner.method, self.config.evaluation.backbone)
            saved, backbone = next(iter(backbones.items()))
            about = {"model": name} if several else {}
            save_encoder(
                path,
                encoder_of(backbone),
                method=self.config.method.name,
                backbone=saved,
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
    """The mean, the least and the largest of the models' scores, by backbone and score."""
    return {
        backbone: {
            key: {"mean": value, "min": min(values), "max": max(values)}
            for key, value in means.items()
            if isinstance(value, float)
            and (values := [of_model[backbone][key] for of_model in scores])
        }
        for backbone, means in mean.items()
    }


def _weighted_mean(records: list[dict[str, Any]], weights: list[float]) -> dict[str, Any]:
    """The mean of every number, by backbone; scores within scores (`recalibrated`) as well."""
    mean: dict[str, Any] = {}
    for key, value in records[0].items():
        values = [record[key] for record in records]
        if isinstance(value, dict):
            mean[key] = _weighted_mean(values, weights)
        elif isinstance(value, float):
            weighted = sum(w * v for w, v in zip(weights, values, strict=True))
            mean[key] = weighted / sum(weights)
    return mean


class BestEncoder:
    """The encoder of the evaluated round with the highest score; of equal ones the first.

    The encoder before training competes, but without labels only where it is pretrained: random
    weights score high by the ranks of their features, without having learned anything.

    Scores are those on the server's images; where it has none, the mean of the clients'. The two
    cannot be compared: a resumed run goes on with those by which it has chosen so far.

    Args:
        evaluator: of the run; makes encoders of backbones.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        evaluation = evaluator.config.evaluation
        self._by = evaluation.best_by
        self._is_last = evaluation.keep == "last"
        self._start_counts = self._by in BY_LABELS or bool(first_weights(evaluator.config))
        self._evaluator = evaluator
        self._tensors: dict[str, Tensor] = {}
        self.round: int | None = None  # after which it was taken; None: no round was scored yet
        self.score: float | None = None  # that it had
        self._by_clients: bool | None = None  # whose score that was; None: not known

    def check(self) -> None:
        """Refuses a score that the server's images cannot give, once a checkpoint has been loaded.

        Raises:
            FederationError: says what is missing.
        """
        evaluation, why = self._evaluator.config.evaluation, self._evaluator.why_not
        dataset = self._evaluator.dataset
        if self._by in BY_LABELS and why is None and dataset and dataset.train.tags is not None:
            why = "images with several labels have no such score"
        by_server = self._by in BY_LABELS or not evaluation.unsupervised
        if not self._is_last and by_server and why:
            raise FederationError(
                f"evaluation.best_by={self._by}: {why}; "
                "evaluation.unsupervised=true with a score without labels needs none, "
                "nor does evaluation.keep=last"
            )
        if self._by_clients is False and dataset is None:
            raise FederationError(
                f"evaluation.best_by={self._by}: {why}, on which the best encoder so far was "
                "scored; the clients' scores cannot be compared with that"
            )

    def consider(self, record: Mapping[str, Any], name: str, backbone: Backbone) -> None:
        """Takes the encoder of a round if it is better than that of all rounds before.

        Args:
            record: the round's line of `metrics.jsonl`.
        """
        if self._is_last or (record["round"] == 0 and not self._start_counts):
            return
        of_server = lookup(record, "scores", name, self._by)
        by_clients = of_server is None if self._by_clients is None else self._by_clients
        score = lookup(record, "unsupervised", self._by) if by_clients else of_server
        before = -math.inf if self.score is None else self.score
        if score is None or not score > before:  # NaN is not
            return
        encoder = self._evaluator.encoder(backbone, statistics_of(record, name))
        self.round, self.score, self._by_clients = record["round"], score, by_clients
        self._tensors = {k: v.detach().cpu() for k, v in encoder.backbone.state_dict().items()}

    def encoder(self, backbone: Backbone, *, statistics: str | None = None) -> Encoder:
        """The best encoder, or the last one if that is asked for or no round was scored.

        Args:
            backbone: as it is after the last round; the encoder has another one.
            statistics: :func:`statistics_of` the last round.
        """
        encoder = self._evaluator.encoder(backbone, statistics)
        if self._tensors:
            encoder.backbone.load_state_dict(self._tensors)
        return encoder

    def position(self) -> dict[str, float]:
        """Round, score, and whether it is the clients', for a checkpoint; empty without any."""
        if self.round is None or self.score is None:
            return {}
        position: dict[str, float] = {"round": self.round, "score": self.score}
        return position if self._by_clients is None else position | {"clients": self._by_clients}

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds of it."""
        return {BEST + name: tensor for name, tensor in self._tensors.items()}

    def load(self, position: Mapping[str, float], saved: Mapping[str, Tensor]) -> None:
        """Takes back what :meth:`position` and :meth:`tensors` returned."""
        if position:
            self.round, self.score = int(position["round"]), position["score"]
            by_clients = position.get("clients")  # earlier versions did not say it
            self._by_clients = None if by_clients is None else bool(by_clients)
        self._tensors = with_prefix(saved, BEST)

    def summary(self) -> dict[str, Any]:
        """Entries of `summary.json`."""
        return {} if self.round is None else {"kept_round": self.round, "kept_by": self._by}


def check_kept(config: Config, dataset: Dataset | None) -> None:
    """Refuses, before a run begins, what :meth:`BestEncoder.check` would refuse in it.

    Args:
        dataset: the server's images, or their labels alone.

    Raises:
        ConfigError: says what is missing.
    """
    if config.evaluation.keep == "last":
        return  # an evaluator copies images
    try:
        BestEncoder(Evaluator(config, dataset)).check()
    except FederationError as error:
        raise ConfigError(str(error)) from None


def statistics_of(record: Mapping[str, Any], name: str) -> str | None:
    """Whose BatchNorm statistics a round's scores were made with; None: the run's own."""
    scores = (record.get("scores") or {}).get(name) or {}
    return scores.get("batch_norm")
