"""One stage of a round as a Flower strategy: messages to clients, and what comes of their replies.

Which method runs and which exchange makes no difference here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from orchestra_flwr.config import Config
from orchestra_flwr.evaluation import Similarities
from orchestra_flwr.federation.exchanges import Exchange, Stage, Task
from orchestra_flwr.federation.messages.arrays import (
    ARRAYS,
    CLIENT_ERRORS,
    CONFIG,
    MODELS,
    SMALLEST_GROUP,
    payload_bytes,
    to_record,
)
from orchestra_flwr.federation.messages.replies import (
    BadReplyError,
    Reply,
    check_reply,
    check_similarities,
)
from orchestra_flwr.federation.messages.schema import Schemas, for_models
from orchestra_flwr.federation.server.aggregation import ClippedMean, StreamingMean
from orchestra_flwr.federation.server.models import Models
from orchestra_flwr.federation.server.round import Round
from orchestra_flwr.federation.server.round_report import Dropped, FederationError, RoundReport
from orchestra_flwr.methods import Release, Role
from orchestra_flwr.privacy.updates import raise_to, standard_normals, variance_floors
from orchestra_flwr.seeding import torch_generator
from orchestra_flwr.training import torch_threads

Aggregation = StreamingMean | ClippedMean


@dataclass(frozen=True)
class Federation:
    """What stays the same from round to round on the server.

    Attributes:
        config: the run's configuration.
        models: the server's models, which every stage changes.
        exchange: who talks with whom.
        release: what clients contribute beside their state; None: nothing.
        on_client: called with each client's name and whether its reply was used.
        key: the run's secret, from which noise and cohorts are drawn; only with
            `privacy.noise_multiplier`.

    Raises:
        ValueError: noise is asked for without a key to draw it from.
    """

    config: Config
    models: Models
    exchange: Exchange
    release: Release | None
    on_client: Callable[[str, bool], None] = lambda client, ok: None
    key: bytes | None = None

    def __post_init__(self) -> None:
        if self.config.privacy.noise_multiplier > 0 and self.key is None:
            raise ValueError("noise needs a secret key")

    @property
    def schemas(self) -> Schemas:
        """Of everything that travels."""
        return self.models.schemas


@dataclass
class _Results:
    """What a stage's good replies come to, as they are taken one by one.

    Attributes:
        means: of each model that a result entered, which are running sums.
        contributions: of each model, the rows of each array by the array's name.
    """

    means: dict[str, Aggregation] = field(default_factory=dict)
    contributions: dict[str, dict[str, list[np.ndarray]]] = field(default_factory=dict)
    good: int = 0


class OrchestraStrategy(Strategy):
    """One stage of one round (Algorithm 2): averages, and the server state that methods make.

    Replies must come in the order of the messages, as the grids of
    :mod:`orchestra_flwr.federation.engines` yield them.

    Args:
        federation: what all rounds share; its models are changed.
        round_: the round.
        stage: the tasks of the stage.
        report: what happens is added to it.
        number: of the stage in the round.
    """

    def __init__(
        self,
        federation: Federation,
        round_: Round,
        stage: Stage,
        report: RoundReport,
        number: int = 0,
    ) -> None:
        self.federation = federation
        self.round = round_
        self.stage = stage
        self.report = report
        self.number = number
        self._config = federation.config
        self._schemas = federation.schemas
        self._models = federation.models
        self._received: dict[str, np.ndarray] = {}  # by model, as clients decode it

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message for every task, in the tasks' order.

        Args:
            server_round: the round's number.
            arrays: not read: each task names the models that it is sent.
            config: entries for every task.
            grid: not read.
        """
        records: dict[tuple[str, ...], ArrayRecord] = {}  # one copy for all with the same models
        messages = []
        for task in self.stage.tasks:
            if task.models not in records:
                state = for_models({name: self._models.arrays(name) for name in task.models})
                records[task.models] = to_record(state)
            entries: dict[str, Any] = {
                **config,
                **self.round.place,
                "train": self.round.trains,
                "contribute": task.client not in self.round.exhausted,
            }
            if task.client in self.round.indices:
                entries["index"] = self.round.indices[task.client]
            if len(task.models) > 1:
                entries[MODELS] = list(task.models)
            messages.append(
                self._message(MessageType.TRAIN, task.client, records[task.models], entries)
            )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """Takes one reply for every task, in the tasks' order, and updates the models.

        Returns:
            No arrays: the models hold the new state. The weighted means of the clients' metrics.

        Raises:
            FederationError: fewer good replies than `federation.min_success` asks for, or no
                contribution at all to the first server state.
        """
        results = _Results()
        for task, message in zip(self.stage.tasks, replies, strict=True):
            reply = self._checked(task, message)
            if reply is not None:
                self._add(task, reply, results)
        self._demand_success(results.good)
        for name in list(results.means):
            self._set_shared_state(name, results.means.pop(name).mean())
        self._update_server_states(results)
        self.report.summarise()
        return None, MetricRecord(dict(self.report.metrics))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """With `evaluation.unsupervised` one message for each client with a task.

        Arguments as in :meth:`configure_train`; all are sent the first model.
        """
        if not self._config.evaluation.unsupervised:
            return []
        first = to_record(self._models.arrays(self._models.first))
        return [
            self._message(MessageType.EVALUATE, task.client, first, dict(config))
            for task in self.stage.tasks
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The clients' scores, averaged by images; None if nobody answered well.

        A round does not fail for want of scores: who did not answer well is only dropped.
        """
        scores: list[tuple[int, Similarities]] = []
        for task, message in zip(self.stage.tasks, replies, strict=True):
            self._count_up(message)
            try:
                scores.append(check_similarities(message, self._schemas))
            except BadReplyError as reason:
                self.report.unscored.append(_dropped(task.client, message, reason))
                self.federation.on_client(task.client, False)
            else:
                self.federation.on_client(task.client, True)
        if not scores:
            return None
        total = sum(images for images, _ in scores)
        mean = Similarities(
            sum(images * score.alignment for images, score in scores) / total,
            sum(images * score.uniformity for images, score in scores) / total,
        )
        self.report.similarities = mean
        return MetricRecord({**asdict(mean), "score": mean.score})

    def summary(self) -> None:
        """Nothing: the run's progress says it all."""

    def _message(
        self, kind: str, client: str, arrays: ArrayRecord, entries: Mapping[str, Any]
    ) -> Message:
        """A message down; its bytes are counted."""
        task = {
            **entries,
            "client": client,
            "config": self._config.to_json(),
            "schema": self._schemas.fingerprint,
            "round": self.round.number,
        }
        # One copy of the arrays for the whole cohort; a client takes its message apart.
        content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(task)})
        self.report.bytes_down += payload_bytes(content)
        return Message(
            content,
            dst_node_id=self.round.nodes[client],
            message_type=kind,
            group_id=str(self.round.number),
            ttl=self._config.federation.round_timeout + 60,
        )

    def _count_up(self, message: Message) -> None:
        if message.has_content():
            self.report.bytes_up += payload_bytes(message.content)

    def _checked(self, task: Task, message: Message) -> Reply | None:
        self._count_up(message)
        try:
            reply = check_reply(
                message,
                self._schemas,
                self.federation.release,
                models=task.models,
                trained=self.round.trains,
                received=self._as_received,
            )
        except BadReplyError as reason:
            self.report.dropped.append(_dropped(task.client, message, reason))
            self.federation.on_client(task.client, False)
            return None
        self.federation.on_client(task.client, True)
        return reply

    def _add(self, task: Task, reply: Reply, results: _Results) -> None:
        """Adds a good reply to the means and rows that it enters, and to the report."""
        results.good += 1
        weight = self._weight(reply.examples)
        shares = self.federation.exchange.enters(task, reply.model)
        if reply.shared is not None:
            self.federation.exchange.result(task, reply.model, reply.shared)
            for name, share in shares.items():
                if name not in results.means:
                    results.means[name] = self._aggregation(name)
                results.means[name].add(reply.shared, weight * share)
        for name in shares:
            rows = results.contributions.setdefault(name, {})
            for array_name, array in reply.contributions.items():
                rows.setdefault(array_name, []).append(array)
        self.report.results.append((weight, reply.metrics))
        self.report.client_seconds += reply.metrics.get("seconds", 0.0)
        if SMALLEST_GROUP in reply.metrics:
            sent = any(map(len, reply.contributions.values()))
            size = int(reply.metrics[SMALLEST_GROUP]) if sent else 0
            self.report.smallest_groups[task.client] = size

    def _weight(self, examples: int) -> float:
        weighting = self._config.federation.weighting
        if weighting == "batches":  # full ones, as the published code counts them
            return max(1, examples // self._config.training.batch_size)
        return examples if weighting == "samples" else 1.0

    def _as_received(self, model: str) -> np.ndarray | None:
        """A model's shared state as clients received it; None where nothing depends on it."""
        if not self._schemas.sends_updates and self._config.privacy.clip is None:
            return None
        if model not in self._received:
            self._received[model] = self._schemas.as_received(self._models.shared(model))
        return self._received[model]

    def _aggregation(self, model: str) -> Aggregation:
        privacy, size = self._config.privacy, self._schemas.shared.size
        received = self._as_received(model)
        if privacy.clip is None:
            return StreamingMean(size)
        assert received is not None
        noise = None
        if self.federation.key is not None:
            noise = partial(self._noise, privacy.noise_multiplier * privacy.clip)
        return ClippedMean(received, privacy.clip, len(self.stage.tasks), noise)

    def _noise(self, deviation: float) -> np.ndarray:
        assert self.federation.key is not None
        size = self._schemas.shared.size
        return deviation * standard_normals(self.federation.key, self.round.number, size)

    def _set_shared_state(self, model: str, mean: np.ndarray) -> None:
        if self._schemas.sends_updates:
            # The clients' updates belong to the state itself, not to its rounded copy.
            mean += self._models.shared(model) - self._as_received(model)
        state = self._models.load(model).state(Role.SHARED)
        floors = {} if self._config.privacy.clip is None else variance_floors(state)
        self._models.update(model, mean)
        raise_to(state, floors)

    def _demand_success(self, good: int) -> None:
        asked = len(self.stage.tasks)
        needed = max(1, int(np.ceil(self._config.federation.min_success * asked)))
        if good < needed:
            first = self.report.dropped[0]
            raise FederationError(
                f"round {self.round.number}: {good} of {asked} clients answered well, "
                f"federation.min_success={self._config.federation.min_success:g} asks for "
                f"{needed}; client {first.client}: {first.reason}"
            )

    def _update_server_states(self, results: _Results) -> None:
        if self.federation.release is None:
            return
        started = time.perf_counter()
        contributed = False
        for name, arrays in results.contributions.items():
            stacked = {key: torch.from_numpy(np.concatenate(rows)) for key, rows in arrays.items()}
            if any(map(len, stacked.values())):
                contributed = True
                self._update_server_state(name, stacked)
        if contributed:
            self.report.server_seconds += time.perf_counter() - started
        elif self.round.trains:
            self.report.server_state_kept = True
        else:
            raise FederationError(self._why_nothing_came())

    def _update_server_state(self, model: str, stacked: Mapping[str, torch.Tensor]) -> None:
        path: Sequence[int | str] = [self.round.number]
        if self.number > 0 or model != self._models.first:
            path = [*path, self.number, model]
        generator = torch_generator(self._config.seed, "server", *path)
        with torch_threads(self._config.training.threads):
            self._models.load(model).method.update_server_state(stacked, generator)

    def _why_nothing_came(self) -> str:
        """Round 0 without a single row: there is no server state to go on with."""
        release, privacy = self.federation.release, self._config.privacy
        assert release is not None
        why = f"all have fewer than privacy.k_min={privacy.k_min} images: lower it"
        if release.epsilon is not None:
            why = f"the noise of privacy.epsilon={release.epsilon:g} left none: raise it"
        return (
            f"round 0: no client sent {release.label}, {why}, or have clients with more "
            f"(federation.min_images={self._config.federation.min_images})"
        )


def _dropped(client: str, message: Message, reason: BadReplyError) -> Dropped:
    silent = message.has_error() and message.error.code not in CLIENT_ERRORS
    return Dropped(client, str(reason), silent)
