"""Updates the server's models by the good replies of a stage."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from orchestra_flwr.config import Section
from orchestra_flwr.evaluation import StreamingDrift
from orchestra_flwr.federation.aggregations import Aggregation, TooFewResultsError
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges import Result, Stage, Task
from orchestra_flwr.federation.messages.fields import SMALLEST_GROUP
from orchestra_flwr.federation.messages.replies import Reply
from orchestra_flwr.federation.server.round import Federation, Round
from orchestra_flwr.federation.server.round_report import RoundReport
from orchestra_flwr.flower.arrays import all_finite
from orchestra_flwr.methods import Contributes, Role, weight_of
from orchestra_flwr.privacy.updates import clipped_update, standard_normals
from orchestra_flwr.seeding import torch_generator
from orchestra_flwr.training import Learner, torch_threads


@dataclass
class StageUpdate:
    """Adds replies up one by one, then updates every model that one of them entered.

    Memory is that of a running sum for each of these models, however many replies there are. A
    model that is sent to one client only, whose result enters no other, is updated at once.
    """

    federation: Federation  # :meth:`apply` changes its models
    round: Round
    stage: Stage
    report: RoundReport  # what happens is added to it
    number: int  # of the stage in the round

    def __post_init__(self) -> None:
        self._config = self.federation.config
        self._schemas = self.federation.schemas
        self._models = self.federation.models
        self._sent: dict[str, np.ndarray] = {}  # by model, as clients decode it
        self._means: dict[str, Aggregation] = {}
        # Of each mean, weights by trained model
        self._origins: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._contributions: dict[str, dict[str, list[np.ndarray]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._results = Counter[str]()  # good ones that entered each model
        self._independent = self._independent_models()
        self._drifts: dict[str, StreamingDrift] = {}
        spans, resting = self._schemas.shared.spans, self._models.learner.resting(self.round.number)
        self._resting = [span for name, span in spans.items() if name in resting]
        self._measures_drift = self._config.evaluation.drift and self.round.evaluated

    def apply(self) -> None:
        """Sets the shared state of the models, and lets the method make their server state.

        Raises:
            FederationError: a state is not finite.
        """
        minimum = self.federation.exchange.min_results()
        for name in [name for name, count in self._results.items() if count < minimum]:
            self._means.pop(name, None)
            self._contributions.pop(name, None)
            self.report.below_minimum.add(name)
        # All averages are made before any is set: a model may be averaged with another.
        states = {name: self._new_state(name) for name in list(self._means)}
        for name in list(states):
            self._update_model(name, states.pop(name), self._sent.get(name))
        drifts = [drift.result() for drift in self._drifts.values()]
        self.report.drifts += [drift for drift in drifts if drift is not None]
        if self.stage.mixing:
            self._models.mix(self.stage.mixing)
        self._update_server_states()

    def add(self, task: Task, reply: Reply) -> None:
        """Adds a good reply to the means and rows that it enters, and to the report."""
        weight = self._weight(reply)
        enters = self.federation.exchange.enters
        trained = [reply.model] if self.round.trains else task.models
        shares = {name: share for m in trained for name, share in enters(task, m).items()}
        if reply.shared is not None:
            before, spans = partial(self.as_received, reply.model), self._models.trained_spans
            self.federation.exchange.result(
                Result(task.client, reply.model, reply.shared, before, spans)
            )
            for name, share in shares.items():
                if name not in self._means:
                    self._means[name] = self._aggregation(name)
                self._means[name].add(reply.shared, weight * share)
                if self._measures_drift:
                    self._add_drift(name, reply.shared, weight * share)
                self._origins[name][reply.model] += weight * share
                if name in self._independent:
                    state = self._new_state(name)
                    self._update_model(name, state, self._sent.pop(name, None))
        for name in shares:
            self._results[name] += 1
            for array_name, array in reply.contributions.items():
                self._contributions[name][array_name].append(array)
        self.report.results.append((task.client, weight, reply.metrics))
        self.report.examples += reply.examples
        self.report.client_seconds += reply.metrics.get("seconds", 0.0)
        sent = any(map(len, reply.contributions.values()))
        if self.round.trains:
            self.report.trained.add(task.client)
        if sent:
            self.report.contributors.add(task.client)
        if SMALLEST_GROUP in reply.metrics:
            size = int(reply.metrics[SMALLEST_GROUP]) if sent else 0
            self.report.smallest_groups[task.client] = size

    def _independent_models(self) -> frozenset[str]:
        """Models that only one task is sent and enters: they need not wait for the others."""
        exchange = self.federation.exchange
        if exchange.min_results() > 1:
            return frozenset()
        tasks = self.stage.tasks
        sent = Counter(name for task in tasks for name in task.models)
        enters = [{n for m in task.models for n in exchange.enters(task, m)} for task in tasks]
        entered = Counter(name for names in enters for name in names)
        return frozenset(
            task.models[0]
            for task, names in zip(tasks, enters, strict=True)
            if names == {*task.models} and all(sent[n] == entered[n] == 1 for n in names)
            if len(task.models) == 1
        )

    def _add_drift(self, model: str, state: np.ndarray, weight: float) -> None:
        if model not in self._drifts:
            before = self._models.shared(model)
            self._drifts[model] = StreamingDrift(before, self._models.trained_spans)
        self._drifts[model].add(state, weight)

    def _weight(self, reply: Reply) -> float:
        weighting = self._config.federation.weighting
        images = self.round.counted(reply.examples)
        if weighting == "batches":  # full ones, as the published code counts them
            return max(1, images // self._config.training.batch_size)
        if weighting == "uniform":
            return 1.0
        rows = {name: torch.from_numpy(array) for name, array in reply.contributions.items()}
        return weight_of(self._config, images, rows)

    def as_received(self, model: str) -> np.ndarray:
        """(size,) shared state of a model as clients received it."""
        if model not in self._sent:
            for name in self._independent & self._sent.keys():  # nobody needs it any more
                del self._sent[name]
            self._sent[model] = self._models.as_received(model)
        return self._sent[model]

    def _aggregation(self, model: str) -> Aggregation:
        privacy = self._config.privacy
        if privacy.clip is None or privacy.secure_aggregation:  # the sum is clipped and noisy
            sent = partial(self.as_received, model)
            rule: Aggregation = self._config.aggregation.build(self._schemas.shared.size, sent)
            return rule
        noise = None
        if self.federation.key is not None:
            noise = partial(self._noise, privacy.noise_multiplier * privacy.clip)
        return ClippedMean(self.as_received(model), privacy.clip, len(self.stage.tasks), noise)

    def _noise(self, deviation: float) -> np.ndarray:
        assert self.federation.key is not None
        size = self._schemas.shared.size
        return deviation * standard_normals(self.federation.key, self.round.number, size)

    def _new_state(self, model: str) -> np.ndarray:
        rule = self._means.pop(model)
        try:
            mean = rule.result()
        except TooFewResultsError as error:
            raise FederationError(f"round {self.round.number}: {error}") from error
        if mean.shape != (size := (self._schemas.shared.size,)) or mean.dtype != np.float32:
            raise FederationError(
                f"aggregation={self._config.aggregation.name}: returned {mean.dtype} {mean.shape}, "
                f"expected float32 {size}"
            )
        # What clients sent is finite; noise may be too large.
        if not (isinstance(rule, ClippedMean) or all_finite(mean)):
            raise FederationError(
                f"round {self.round.number}: aggregation={self._config.aggregation.name}: returned "
                "values that are not finite"
            )
        if self._schemas.sends_updates:
            # The clients' updates belong to the states themselves, not to their rounded copies.
            origins = self._origins[model]
            for trained, weight in origins.items():
                rounding = self._models.shared(trained) - self.as_received(trained)
                mean += rounding * np.float32(weight / sum(origins.values()))
        if self._resting:  # what changed there is noise, or a client's lie
            before = self._models.shared(model)
            for span in self._resting:
                mean[span] = before[span]
        return mean

    def _update_model(self, name: str, state: np.ndarray, received: np.ndarray | None) -> None:
        """As :meth:`Models.update`.

        Raises:
            FederationError: the model would hold values that are not finite. Then nothing of this
                round is written.
        """
        try:
            self._models.update(name, state, received)
        except OverflowError as error:
            keys = ["training.lr"]
            if self._config.server_optimizer.name != "mean":
                keys.append("server_optimizer.lr")
            if self._config.privacy.noise_multiplier > 0:
                keys.append("privacy.noise_multiplier")
            number = self.round.number
            raise FederationError(
                f"round {number}: the server's model would no longer be finite; this round is not "
                f"kept, and resume= goes on after round {number - 1}. A new run with a smaller "
                f"{' or '.join(keys)} may stay finite"
            ) from error

    def _update_server_states(self) -> None:
        if self.federation.release is None:
            return
        started = time.perf_counter()
        contributed = False
        for name, arrays in self._contributions.items():
            stacked = {key: torch.from_numpy(np.concatenate(rows)) for key, rows in arrays.items()}
            if any(map(len, stacked.values())):
                contributed = True
                self._update_server_state(name, stacked)
        if contributed:
            self.report.contributed = True
            self.report.server_seconds += time.perf_counter() - started

    def _update_server_state(self, model: str, stacked: Mapping[str, torch.Tensor]) -> None:
        path: Sequence[int | str] = [self.round.number]
        if self.number > 0 or model != self._models.first:
            path = [*path, self.number, model]
        generator = torch_generator(self._config.seed, "server", *path)
        with torch_threads(self._config.training.threads):
            learner = self._models.load(model)
            assert isinstance(learner.method, Contributes)
            measures = learner.method.update_server_state(stacked, generator)
        self._check_server_state(learner, measures)
        if model == self._models.first:
            self.report.server_measures = dict(measures)

    def _check_server_state(self, learner: Learner, measures: Any) -> None:
        """Refuses what a method of a user's package can do wrong, before clients are sent it."""
        called = f"method={self._config.method.name}: update_server_state"
        if not isinstance(measures, Mapping):
            raise FederationError(
                f"{called} must return a dictionary of what is recorded, {{}} for nothing, and "
                f"returned {measures!r:.80}"
            )
        for name, tensor in learner.state(Role.SERVER).items():
            if not tensor.isfinite().all():
                raise FederationError(
                    f"round {self.round.number}: {called} left values in {name} that are not finite"
                )


class ClippedMean(Aggregation):
    """previous + (sum of clipped updates + noise) / cohort, one client at a time.

    No client moves the sum by more than `clip`, whatever it sends: its update is what it sent
    minus what the server knows that it was sent. The divisor is the number of clients that were
    asked, even where some of them fail: how many answer depends on the clients, and a divisor
    that does would reveal what the noise does not hide. Clients that fail count as no change.

    Args:
        previous: (size,) float32 state that the clients were sent.
        clip: L2 norm of an update, at most.
        cohort: clients that were asked.
        noise: makes (size,) float64 noise, which is added to the sum; None: none.
    """

    def __init__(
        self,
        previous: np.ndarray,
        clip: float,
        cohort: int,
        noise: Callable[[], np.ndarray] | None = None,
    ) -> None:
        super().__init__(Section(), len(previous), lambda: previous)
        self._clip = clip
        self._cohort = cohort
        self._noise = noise
        self._sum = np.zeros(previous.shape)

    def add(self, values: np.ndarray, weight: float) -> None:
        """Adds a client's (size,) float32 state; all weigh the same."""
        self._sum += clipped_update(self.sent, values, self._clip)

    def result(self) -> np.ndarray:
        """(size,) float32 new state."""
        total = self._sum if self._noise is None else self._sum + self._noise()
        return (self.sent + total / self._cohort).astype(np.float32)
