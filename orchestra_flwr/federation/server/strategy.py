"""One stage of a round as a Flower strategy: messages to clients, and checks of their replies.

It does not depend on the method or the exchange.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from orchestra_flwr.evaluation import LabelFreeScores
from orchestra_flwr.federation.exchanges import Stage, Task
from orchestra_flwr.federation.exchanges.asynchronous import Asynchronous, refreshed
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import (
    ARRAYS,
    CONFIG,
    FROZEN,
    LOCAL_SCORES,
    MODELS,
    PERSONAL,
    STATE_OF,
    with_prefix,
)
from orchestra_flwr.federation.messages.replies import (
    BadReplyError,
    Reply,
    check_reply,
    check_scores,
    score_ranges,
)
from orchestra_flwr.federation.messages.schema import for_models
from orchestra_flwr.federation.server.plausibility import Plausibility, with_last
from orchestra_flwr.federation.server.round import Federation, Round
from orchestra_flwr.federation.server.round_report import Dropped, RoundReport
from orchestra_flwr.federation.server.stage_update import StageUpdate
from orchestra_flwr.flower.arrays import NumpyArray, payload_bytes, record_of, to_record
from orchestra_flwr.flower.fleet import time_to_live
from orchestra_flwr.flower.streaming_grid import Arrival, StreamingGrid
from orchestra_flwr.methods import Role


@dataclass
class OrchestraStrategy(Strategy):
    """One stage of one round (Algorithm 2): averages, and the server state that methods make.

    Replies must come in the order of the messages, as the grids of
    :mod:`orchestra_flwr.federation.engines` yield them.
    """

    federation: Federation  # its models are changed
    round: Round
    stage: Stage
    report: RoundReport  # what happens is added to it
    number: int = 0  # of the stage in the round
    entries: Callable[[str], Mapping[str, Any]] = lambda client: {}  # further entries of a task

    def __post_init__(self) -> None:
        self._config = self.federation.config
        self._schemas = self.federation.schemas
        self._models = self.federation.models
        self.began = time.perf_counter()  # no client can have worked for longer
        self._decoded: dict[int, np.ndarray] = {}  # by version: models of asynchronous rounds
        self._good = 0  # valid replies; some may yet prove implausible beside the others

    def configure_train(self, server_round: int, *_: object, **__: object) -> Iterator[Message]:
        """One message for every task, in the tasks' order, each made when it is requested.

        Flower's other arguments are not read: each task names its models.
        """
        for task, record in self._messages_per_task():
            entries = {**self._task_entries(task), **self.entries(task.client)}
            yield self._message(MessageType.TRAIN, task.client, record, entries)

    def _task_entries(self, task: Task) -> dict[str, Any]:
        entries: dict[str, Any] = {
            **self.round.state_location,
            **self.round.last_used.get(task.client, {}),
            "train": self.round.trains,
            "contribute": task.client not in self.round.exhausted,
        }
        if task.client in self.round.indices:
            entries["index"] = self.round.indices[task.client]
            entries["population"] = len(self.round.indices)
        if self.number > 0:
            entries["stage"] = self.number
        if len(task.models) > 1:
            entries[MODELS] = list(task.models)
        return entries

    def replies(self, grid: Grid, messages: Iterable[Message]) -> Iterator[Message]:
        """One reply for every message of the stage, in their order."""
        timeout = self.federation.timeout
        if isinstance(grid, StreamingGrid):
            return grid.send_and_receive(messages, timeout=timeout, came=self.came)
        return iter(grid.send_and_receive(messages, timeout=timeout))

    def came(self, message: Message, good: bool) -> None:
        """Called when the reply to a message of the stage is there, though its turn may not be."""
        self.federation.on_arrival(str(message.content[CONFIG]["client"]), good)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """Takes one reply for every task, in the tasks' order, and updates the models.

        Returns:
            No arrays: the models hold the new state. The weighted means of the clients' metrics.
            Whether a round may count is only known after its last stage:
            :func:`orchestra_flwr.federation.server.round_messages.check_round`.
        """
        self.report.asked += len(self.stage.tasks)
        tasks = zip(self.stage.tasks, replies, strict=True)
        return None, self._aggregate((task, message, None) for task, message in tasks)

    def aggregate_first(self, arrivals: Iterable[Arrival]) -> None:
        """As :meth:`aggregate_train`, of a stage that does not wait for all; returns no metrics.

        Args:
            arrivals: replies that came while :meth:`needed` was above 0. All others are late.
        """
        self.report.asked += self._awaited
        late = {task.client: None for task in self.stage.tasks}

        def came() -> Iterator[tuple[Task, Message, float]]:
            for arrival in arrivals:
                task = self.stage.tasks[arrival.place]
                del late[task.client]
                yield task, arrival.reply, arrival.seconds

        self._aggregate(came())
        self.report.late += [client for client in late if client not in self.report.late]

    def needed(self) -> int:
        """How many more good replies end the stage."""
        return self._awaited - self._good

    @property
    def _awaited(self) -> int:
        """With how many good replies the stage ends."""
        return min(len(self.stage.tasks), self._config.federation.awaited(self.round.there))

    def _aggregate(self, replies: Iterable[tuple[Task, Message, float | None]]) -> MetricRecord:
        """Updates the models by replies, each with the seconds after which it came if known."""
        update = StageUpdate(self.federation, self.round, self.stage, self.report, self.number)
        plausibility = self._plausibility(update)
        for task, message, seconds in replies:
            reply = self._checked(task, message, update)
            if reply is None:
                continue
            self._good += 1
            if seconds is not None:
                self.report.slowest = max(seconds, self.report.slowest or 0.0)
            if plausibility.is_plausible(task, reply):
                self._take(task, reply, update)
            else:
                self.federation.on_arrival(task.client, True)
        for task, reply, reason in plausibility.late():
            if reason is None:
                self._take(task, reply, update)
            else:
                self._drop(Dropped(task.client, str(reason)))
        self.report.moved.append(plausibility.moved())
        update.apply()
        self.report.summarise()
        return MetricRecord(dict(self.report.metrics))

    def configure_evaluate(self, server_round: int, *_: object, **__: object) -> Iterator[Message]:
        """As :meth:`configure_train`, if clients are to score the encoder; else no message."""
        if not self._config.evaluation.asks_clients:
            return
        for task, record in self._messages_per_task():
            yield self._message(
                MessageType.EVALUATE, task.client, record, self.round.state_location
            )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The clients' scores without labels, averaged by images; None if there are none.

        A round does not fail for want of scores: clients without a good answer are only dropped.
        """
        scores: list[tuple[int, LabelFreeScores]] = []
        ranges = score_ranges(self._config, self._models.learner.method)
        optional = {PERSONAL} if self._config.evaluation.personal_by_clients else frozenset()
        for task, message in zip(self.stage.tasks, replies, strict=True):
            self._note_answer(task.client, message)
            joined = self.round.images.get(task.client)
            try:
                images, values = check_scores(message, self._schemas, ranges, optional, joined)
            except BadReplyError as reason:
                self.report.unscored.append(dropped(task.client, message, reason))
                self.federation.on_client(task.client, False)
            else:
                self.federation.on_client(task.client, True)
                if self._config.evaluation.unsupervised:
                    scores.append((self.round.counted(images), LabelFreeScores.of(values)))
                if local := with_prefix(values, LOCAL_SCORES):
                    self.report.own_classes.append(local)
        if not scores:
            return None
        self.report.label_free = mean = LabelFreeScores.mean(scores)
        return MetricRecord({**asdict(mean), "score": mean.score})

    def summary(self) -> None:
        """Nothing: the run's progress says it all."""

    def _messages_per_task(self) -> Iterator[tuple[Task, ArrayRecord]]:
        """Every task with the arrays of its models, each made when it is requested.

        Tasks of the same models share one copy, which is dropped after the last of them: where
        every client has a model of its own, memory is that of one.
        """
        left = Counter(map(self._what_is_sent, self.stage.tasks))
        records: dict[Any, ArrayRecord] = {}
        for task in self.stage.tasks:
            sent = self._what_is_sent(task)
            record = records.pop(sent, None)
            if record is None:
                record = to_record(self._state_sent(task))
            left[sent] -= 1
            if left[sent]:
                records[sent] = record
            yield task, record

    def _state_sent(self, task: Task) -> dict[str, np.ndarray]:
        """The arrays of a task's models."""
        version, exchange = self.round.versions.get(task.client), self.federation.exchange
        if version is not None and isinstance(exchange, Asynchronous):
            return exchange.sent(version)
        return for_models({name: self._models.arrays(name) for name in task.models})

    def _what_is_sent(self, task: Task) -> tuple[tuple[str, ...], int | None]:
        """Names of models, and the round whose result is sent; None: the newest."""
        return task.models, self.round.versions.get(task.client)

    def _message(
        self, kind: str, client: str, arrays: ArrayRecord, entries: Mapping[str, Any]
    ) -> Message:
        """A message down with models; its bytes are counted."""
        self.federation.on_asked(client)
        task = dict(entries)
        if frozen := self.federation.frozen:
            task |= frozen.entries
            if client not in frozen.holders and frozen.folder is None:
                arrays = record_of({**arrays, FROZEN: NumpyArray(frozen.values)})
            elif client not in frozen.holders:
                self.report.bytes_down += frozen.values.nbytes
                frozen.holders.add(client)  # even if it is late, and so never heard of
        return self._envelope(kind, client, arrays, task)

    def _envelope(
        self, kind: str, client: str, arrays: ArrayRecord, entries: Mapping[str, Any]
    ) -> Message:
        task = {
            **entries,
            "client": client,
            "config": self._config.to_json(),
            "schema": self._schemas.fingerprint,
            "round": self.round.began_with(client) + 1,
        }
        # One copy of the arrays for the whole cohort; a client takes its message apart.
        content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(task)})
        self.report.bytes_down += payload_bytes(content)
        return Message(
            content,
            dst_node_id=self.round.nodes[client],
            message_type=kind,
            group_id=str(self.round.number),
            ttl=time_to_live(self.federation.timeout),
        )

    def _note_answer(self, client: str, message: Message) -> None:
        """Counts its bytes, and notes what the client has: its own state, the frozen weights."""
        if message.has_content():
            self.report.bytes_up += payload_bytes(message.content)
            about = message.content.get(CONFIG)
            state = about.get(STATE_OF) if isinstance(about, ConfigRecord) else None
            if isinstance(state, int):
                goes_on = f"went on from that of round {state}" if state else "began afresh"
                self.report.notes.append(f"client {client} lost its latest state and {goes_on}")
        if frozen := self.federation.frozen:
            frozen.heard_from(client, message.error.code if message.has_error() else None)

    def _checked(self, task: Task, message: Message, update: StageUpdate) -> Reply | None:
        self._note_answer(task.client, message)
        try:
            reply = check_reply(
                message,
                self._schemas,
                self.federation.release,
                models=task.models,
                trained=self.round.trains,
                images=self.round.images.get(task.client),
                received=self._received(task.client, update),
            )
        except BadReplyError as reason:
            self._drop(dropped(task.client, message, reason))
            return None
        if (reported := reply.metrics["examples"]) > reply.examples:
            self.report.notes.append(
                f"client {task.client} reports {reported:g} images and joined with "
                f"{reply.examples}, which count"
            )
        reply = self._refreshed(task.client, reply, update)
        elapsed = time.perf_counter() - self.began
        seconds = min(max(0.0, reply.metrics.get("seconds", 0.0)), elapsed)
        return replace(reply, metrics={**reply.metrics, "seconds": seconds})

    def _received(self, client: str, update: StageUpdate) -> Callable[[str], np.ndarray]:
        """A function that makes the (size,) state that a client received."""
        version = self.round.began_with(client)
        latest = version == self.round.number - 1
        return update.as_received if latest else lambda model: self._older(version)

    def _older(self, version: int) -> np.ndarray:
        """(size,) state with which results of this stage began, decoded once."""
        if version not in self._decoded:
            exchange = self.federation.exchange
            assert isinstance(exchange, Asynchronous)
            sent = exchange.sent(version)
            self._decoded[version] = self._schemas.codec.decode(Role.SHARED.value, sent)
        return self._decoded[version]

    def _refreshed(self, client: str, reply: Reply, update: StageUpdate) -> Reply:
        """Converts a reply to an older model into one to the current model."""
        version = self.round.began_with(client)
        staleness = self.round.number - 1 - version
        if not staleness or reply.shared is None:
            return reply
        began, now = self._older(version), update.as_received(reply.model)
        spans = self._models.trained_spans
        return replace(reply, shared=refreshed(reply.shared, began, now, spans, staleness))

    def _plausibility(self, update: StageUpdate) -> Plausibility:
        """For the replies of the stage. With a clip, which bounds all updates, nothing is refused:
        if what others sent decided that, a client could move more than its own part of the sum."""
        config = self._config
        times = config.federation.max_update if config.privacy.clip is None else None
        usual = with_last(self.round.usual, self.report.moved)
        schema, folder = self._schemas.shared, self.federation.folder
        return Plausibility(schema, times, usual, update.as_received, folder)

    def _take(self, task: Task, reply: Reply, update: StageUpdate) -> None:
        self.report.answered += 1
        self.federation.on_client(task.client, True)
        update.add(task, reply)

    def _drop(self, dropped: Dropped) -> None:
        self.report.dropped.append(dropped)
        self.federation.on_client(dropped.client, False)


def dropped(client: str, message: Message, reason: BadReplyError) -> Dropped:
    """A client whose reply cannot be used."""
    silent = message.has_error() and Failure.of(message.error.code) is None
    return Dropped(client, str(reason), silent)
