"""Orchestra's Flower strategy: cohorts, streaming averages, server state; no method by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from orchestra_flwr.config import Config
from orchestra_flwr.evaluation import Similarities
from orchestra_flwr.federation.aggregation import ClippedMean, StreamingMean
from orchestra_flwr.federation.cohort import draw_cohort
from orchestra_flwr.federation.replies import BadReplyError, Reply, check_reply, check_similarities
from orchestra_flwr.federation.report import Dropped, FederationError, RoundReport
from orchestra_flwr.federation.wire import (
    ARRAYS,
    CONFIG,
    SMALLEST_CLUSTER,
    TOLD_BY_CLIENT,
    Schemas,
    pack_state,
    payload_bytes,
)
from orchestra_flwr.methods import Method, Role
from orchestra_flwr.privacy.updates import raise_to, standard_normals, variance_floors
from orchestra_flwr.seeding import torch_generator
from orchestra_flwr.training import torch_threads


def _dropped(client: str, message: Message, reason: BadReplyError) -> Dropped:
    silent = message.has_error() and message.error.code not in TOLD_BY_CLIENT
    return Dropped(client, str(reason), silent)


class OrchestraStrategy(Strategy):
    """Averages shared state and lets the method make its server state (Algorithm 2).

    Round 0 is the first round without training, for methods that need one. Which method runs
    makes no difference here. Replies must come in the order of the messages, as the grids of
    :mod:`orchestra_flwr.federation.grid` yield them.

    Args:
        config: the run's configuration.
        method: the server's copy; its state is replaced by every round's result.
        on_client: told each client and whether its reply was used, as replies are taken.
        key: the run's secret, from which noise and cohorts are drawn; only with
            `privacy.noise_multiplier`.

    Raises:
        ValueError: noise is asked for without a key to draw it from.
    """

    def __init__(
        self,
        config: Config,
        method: Method,
        on_client: Callable[[str, bool], None] = lambda client, ok: None,
        key: bytes | None = None,
    ) -> None:
        if config.privacy.noise_multiplier > 0 and key is None:
            raise ValueError("noise needs a secret key")
        self.config = config
        self.method = method
        self.schemas = Schemas.of(method, config.federation.wire)
        self.nodes: Mapping[str, int] = {}  # node id of each client that can be asked
        self.silent: Collection[str] = ()  # clients that train, but may not contribute
        self.on_client = on_client
        self.key = key
        self.report = RoundReport(())

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message for every client of the cohort, in the cohort's order."""
        # Every client is told the seed. Where epsilon counts on nobody knowing who takes part,
        # the cohort comes from the secret.
        seed = self.config.seed if self.key is None else int.from_bytes(self.key)
        cohort = draw_cohort(self.nodes, self.config.federation.participation, seed, server_round)
        self.report = RoundReport(tuple(cohort), len(self.nodes))
        task = {**config, "train": server_round > 0}
        return [
            self._message(MessageType.TRAIN, client, server_round, arrays,
                          {**task, "contribute": client not in self.silent})
            for client in cohort
        ]  # fmt: skip

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """:meth:`take` as Flower calls it: returns the next round's arrays and the mean figures."""
        self.take(server_round, replies)
        return pack_state(self.method, self.schemas), MetricRecord(dict(self.report.metrics))

    def take(self, server_round: int, replies: Iterable[Message]) -> None:
        """Takes one reply for every client of the cohort, in the cohort's order.

        Raises:
            FederationError: fewer good replies than `federation.min_success` asks for, or no
                contribution at all to the first server state.
        """
        trained = server_round > 0
        received = self._as_received()
        mean = self._aggregation(server_round, received)
        told: list[tuple[float, dict[str, float]]] = []
        contributions: dict[str, list[np.ndarray]] = {
            name: [] for name in self.method.contribution_limits()
        }
        for client, message in zip(self.report.cohort, replies, strict=True):
            reply = self._checked(client, message, trained, received)
            if reply is None:
                continue
            weight = self._weight(reply.examples)
            if reply.shared is not None:
                mean.add(reply.shared, weight)
            told.append((weight, reply.metrics))
            self.report.client_seconds += reply.metrics.get("seconds", 0.0)
            for name, array in reply.contributions.items():
                contributions[name].append(array)
            if SMALLEST_CLUSTER in reply.metrics:
                sent = any(map(len, reply.contributions.values()))
                size = int(reply.metrics[SMALLEST_CLUSTER]) if sent else 0
                self.report.smallest_clusters[client] = size
        self._demand_success(server_round, len(told))
        if trained:
            self._set_shared_state(mean.mean(), received)
            del mean  # twice the model's memory, which what follows may need
        self._update_server_state(server_round, contributions)
        self._summarise(told)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """With `evaluation.unsupervised` one message for each client of the round's cohort.

        Follows :meth:`configure_train` of the same round, or stands alone where that round trained
        nothing; then the cohort is drawn here, in the same way.
        """
        if not self.config.evaluation.unsupervised:
            return []
        if not self.report.cohort:
            participation = self.config.federation.participation
            cohort = draw_cohort(self.nodes, participation, self.config.seed, server_round)
            self.report = RoundReport(tuple(cohort), len(self.nodes))
        return [
            self._message(MessageType.EVALUATE, client, server_round, arrays, dict(config))
            for client in self.report.cohort
            if client in self.nodes  # a client of a deployment may have left since
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The clients' scores, averaged by images; None if nobody answered well.

        A round does not fail for want of scores: who did not answer well is only dropped.
        """
        asked = [client for client in self.report.cohort if client in self.nodes]
        told: list[tuple[int, Similarities]] = []
        for client, message in zip(asked, replies, strict=True):
            self._count_up(message)
            try:
                told.append(check_similarities(message, self.schemas))
            except BadReplyError as reason:
                self.report.unscored.append(_dropped(client, message, reason))
                self.on_client(client, False)
            else:
                self.on_client(client, True)
        if not told:
            return None
        total = sum(images for images, _ in told)
        mean = Similarities(
            sum(images * each.alignment for images, each in told) / total,
            sum(images * each.uniformity for images, each in told) / total,
        )
        self.report.similarities = mean
        return MetricRecord({**asdict(mean), "score": mean.score})

    def summary(self) -> None:
        """Nothing: the run's progress says it all."""

    def _message(
        self,
        kind: str,
        client: str,
        server_round: int,
        arrays: ArrayRecord,
        task: Mapping[str, Any],
    ) -> Message:
        """A message down; its bytes are counted."""
        told = {
            **task,
            "client": client,
            "config": self.config.to_json(),
            "schema": self.schemas.fingerprint,
            "round": server_round,
        }
        # One copy of the arrays for the whole cohort; a client takes its message apart.
        content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(told)})
        self.report.bytes_down += payload_bytes(content)
        return Message(
            content,
            dst_node_id=self.nodes[client],
            message_type=kind,
            group_id=str(server_round),
            ttl=self.config.federation.round_timeout + 60,
        )

    def _count_up(self, message: Message) -> None:
        if message.has_content():
            self.report.bytes_up += payload_bytes(message.content)

    def _checked(
        self, client: str, message: Message, trained: bool, received: np.ndarray | None
    ) -> Reply | None:
        self._count_up(message)
        try:
            reply = check_reply(
                message,
                self.schemas,
                self.method.contribution_limits(),
                trained=trained,
                received=received,
                may_be_empty=self.method.may_contribute_nothing,
                k_min=self.config.privacy.k_min,
            )
        except BadReplyError as reason:
            self.report.dropped.append(_dropped(client, message, reason))
            self.on_client(client, False)
            return None
        self.on_client(client, True)
        return reply

    def _weight(self, examples: int) -> float:
        weighting = self.config.federation.weighting
        if weighting == "batches":  # full ones, as the published code counts them
            return max(1, examples // self.config.training.batch_size)
        return examples if weighting == "samples" else 1.0

    def _as_received(self) -> np.ndarray | None:
        """The shared state as clients received it; None where nothing depends on it."""
        if not self.schemas.sends_updates and self.config.privacy.clip is None:
            return None
        return self.schemas.as_received(self.schemas.shared.pack(self.method.state(Role.SHARED)))

    def _aggregation(
        self, server_round: int, received: np.ndarray | None
    ) -> StreamingMean | ClippedMean:
        privacy, size = self.config.privacy, self.schemas.shared.size
        if privacy.clip is None:
            return StreamingMean(size)
        assert received is not None
        noise = None
        if self.key is not None:
            noise = partial(self._noise, server_round, privacy.noise_multiplier * privacy.clip)
        return ClippedMean(received, privacy.clip, len(self.report.cohort), noise)

    def _noise(self, server_round: int, deviation: float) -> np.ndarray:
        assert self.key is not None
        return deviation * standard_normals(self.key, server_round, self.schemas.shared.size)

    def _set_shared_state(self, mean: np.ndarray, received: np.ndarray | None) -> None:
        state = self.method.state(Role.SHARED)
        if self.schemas.sends_updates:
            # The clients' updates belong to the state itself, not to its rounded copy.
            mean += self.schemas.shared.pack(state) - received
        floors = {} if self.config.privacy.clip is None else variance_floors(state)
        self.schemas.shared.unpack(mean, state)
        raise_to(state, floors)

    def _demand_success(self, server_round: int, good: int) -> None:
        asked = len(self.report.cohort)
        needed = max(1, int(np.ceil(self.config.federation.min_success * asked)))
        if good < needed:
            first = self.report.dropped[0]
            raise FederationError(
                f"round {server_round}: {good} of {asked} clients answered well, "
                f"federation.min_success={self.config.federation.min_success:g} asks for {needed}; "
                f"client {first.client}: {first.reason}"
            )

    def _update_server_state(
        self, server_round: int, contributions: dict[str, list[np.ndarray]]
    ) -> None:
        started = time.perf_counter()
        stacked = {
            name: torch.from_numpy(np.concatenate(arrays)) for name, arrays in contributions.items()
        }
        if stacked and not any(map(len, stacked.values())):
            self._keep_server_state(server_round)
            return
        generator = torch_generator(self.config.seed, "server", server_round)
        with torch_threads(self.config.training.threads):
            self.method.update_server_state(stacked, generator)
        self.report.server_seconds = time.perf_counter() - started

    def _keep_server_state(self, server_round: int) -> None:
        if server_round == 0:  # there is none yet
            privacy, least = self.config.privacy, self.config.federation.min_images
            why = f"all have fewer than privacy.k_min={privacy.k_min} images: lower it"
            if privacy.epsilon is not None:
                why = f"the noise of privacy.epsilon={privacy.epsilon:g} left none: raise it"
            raise FederationError(
                f"round 0: no client sent centroids, {why}, or have clients with more "
                f"(federation.min_images={least})"
            )
        self.report.server_state_kept = True

    def _summarise(self, told: list[tuple[float, dict[str, float]]]) -> None:
        total = sum(weight for weight, _ in told)
        names = set.intersection(*(set(metrics) for _, metrics in told))
        self.report.examples = int(sum(metrics["examples"] for _, metrics in told))
        self.report.metrics = {
            name: sum(weight * metrics[name] for weight, metrics in told) / total
            for name in sorted(names - {SMALLEST_CLUSTER})
        }
