"""The best encoder of a run so far (`evaluation.keep=best`), which every checkpoint holds."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from orchestra_flwr.console.text import lookup
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import with_prefix
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.models import Backbone, Encoder
from orchestra_flwr.training import begins_trained

BEST = "best/"  # what the names of its tensors in a checkpoint begin with
BY_LABELS = ("knn", "linear")


class BestEncoder:
    """Of the evaluated rounds that with the highest score; of equal ones the first.

    The encoder before training takes part, but without labels only where it is pretrained: random
    weights score high by the ranks of their features, without having learned anything.

    Scores are those on the server's images; where it has none, the mean of the clients'.

    Args:
        evaluator: of the run; makes encoders of backbones.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        evaluation = evaluator.config.evaluation
        self._by = evaluation.best_by
        self._is_last = evaluation.keep == "last"
        self._start_counts = self._by in BY_LABELS or begins_trained(evaluator.config)
        self._evaluator = evaluator
        self._tensors: dict[str, Tensor] = {}
        self.round: int | None = None  # after which it was; None: no round was scored yet
        self.score: float | None = None  # that it had

    def check(self) -> None:
        """Refuses a score that the server's images cannot give.

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
                "evaluation.unsupervised=true with a score without labels needs none"
            )

    def consider(self, record: Mapping[str, Any], name: str, backbone: Backbone) -> None:
        """Takes the encoder of a round if it is better than that of all rounds before.

        Args:
            record: the round's line of `metrics.jsonl`.
        """
        if self._is_last or (record["round"] == 0 and not self._start_counts):
            return
        score = lookup(record, "scores", name, self._by)
        if score is None:
            score = lookup(record, "unsupervised", self._by)
        before = -math.inf if self.score is None else self.score
        if score is None or not score > before:  # NaN is not
            return
        encoder = self._evaluator.encoder(backbone, _statistics(record, name))
        self.round, self.score = record["round"], score
        self._tensors = {k: v.detach().cpu() for k, v in encoder.backbone.state_dict().items()}

    def encoder(self, backbone: Backbone) -> Encoder:
        """The best one, or the last one's where that is asked for or nothing else was scored.

        Args:
            backbone: as it is after the last round; that of the encoder is another one.
        """
        encoder = self._evaluator.encoder(backbone)
        if self._tensors:
            encoder.backbone.load_state_dict(self._tensors)
        return encoder

    def position(self) -> dict[str, float]:
        """Round and score, for a checkpoint; empty without any."""
        if self.round is None or self.score is None:
            return {}
        return {"round": self.round, "score": self.score}

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds of it."""
        return {BEST + name: tensor for name, tensor in self._tensors.items()}

    def load(self, position: Mapping[str, float], saved: Mapping[str, Tensor]) -> None:
        """Takes back what :meth:`position` and :meth:`tensors` returned."""
        if position:
            self.round, self.score = int(position["round"]), position["score"]
        self._tensors = with_prefix(saved, BEST)

    def summary(self, record: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Entries of `summary.json`.

        Args:
            record: the line of `metrics.jsonl` of the round whose encoder is saved.
        """
        if self.round is None:
            return {}
        statistics = _statistics(record, name)
        about_norms = {"batch_norm": statistics} if statistics else {}
        return {"kept_round": self.round, "kept_by": self._by, **about_norms}


def _statistics(record: Mapping[str, Any], name: str) -> str | None:
    """Whose BatchNorm statistics the scores of a round are of; None: as the run has them."""
    scores = (record.get("scores") or {}).get(name) or {}
    return scores.get("batch_norm")
