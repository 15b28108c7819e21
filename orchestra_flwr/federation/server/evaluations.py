"""When a run's models are evaluated, and what comes of it."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from orchestra_flwr.config import Config
from orchestra_flwr.federation.evaluate_models import evaluate_models
from orchestra_flwr.federation.exchanges import Exchange
from orchestra_flwr.federation.server.evaluator import Evaluator, Scores
from orchestra_flwr.federation.server.named_models import Models

Evaluated = tuple[Scores | None, dict[str, Any]]  # the run's scores, and entries of the record
NOT_EVALUATED: Evaluated = (None, {})


@dataclass(frozen=True)
class Evaluations:
    """Evaluates a run's models after its rounds.

    Attributes:
        config: of the run.
        evaluator: with the server's own images, if it has any.
        models: the server's.
        exchange: says which of them are evaluated.
        phase: shows what is going on while its block runs.
    """

    config: Config
    evaluator: Evaluator
    models: Models
    exchange: Exchange
    phase: Callable[[str], AbstractContextManager[None]]

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

    def of(self, number: int) -> tuple[Evaluated, float]:
        """The scores of the models as they are, and the seconds that it took."""
        began = time.perf_counter()
        when = f"after round {number}" if number else "before training"
        with self.phase(f"evaluating the encoder {when}"):
            evaluated = evaluate_models(
                self.evaluator,
                self.models,
                self.exchange,
                untrained=number == 0,
                kept_only=0 < number < self.config.federation.rounds,
            )
        return evaluated, time.perf_counter() - began
