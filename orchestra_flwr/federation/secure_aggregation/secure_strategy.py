"""A round whose results the server sees as one sum: the six stages of the protocol, as messages.

Plausibility is judged by the sum. A round without a sum ends the run with one line, and nothing is
known of its updates. `resume=` repeats the round if no client has confirmed a list of clients yet,
and leaves it out otherwise.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from orchestra_flwr.console.text import listed
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges import Task
from orchestra_flwr.federation.messages import fields
from orchestra_flwr.federation.messages.failures import describe_error
from orchestra_flwr.federation.messages.replies import (
    BadReplyError,
    Reply,
    checked_array,
    checked_contributions,
)
from orchestra_flwr.federation.secure_aggregation.basis import basis_of
from orchestra_flwr.federation.secure_aggregation.sum_codec import MAX_METRICS, Start, codec_of
from orchestra_flwr.federation.server.round_report import Dropped, reasons
from orchestra_flwr.federation.server.stage_update import StageUpdate
from orchestra_flwr.federation.server.strategy import OrchestraStrategy, dropped
from orchestra_flwr.privacy.secure_sums import SumFailedError, SumServer
from orchestra_flwr.privacy.secure_sums.sum_client import Verify

MAX_TEXT = 1 << 24  # characters of a client's text: that of a thousand clients is shorter
SUM = "all of them"  # stands for a client where the sum does


class SecureStrategy(OrchestraStrategy):
    """The only stage of a round of `exchange=star`; arguments as :class:`OrchestraStrategy`."""

    def exchange(
        self,
        grid: Grid,
        timeout: float | None,
        run: str,
        verify: Verify | None = None,
        before_confirming: Callable[[], None] = lambda: None,
    ) -> None:
        """Runs the round and updates the model.

        Args:
            timeout: seconds of each stage of the protocol; None: as long as it takes.
            verify: as for :class:`SumServer`.
            before_confirming: called before clients are asked to confirm whose updates have come,
                which each does for one list in a round.

        Raises:
            FederationError: too few clients are left, or the sum is not plausible.
        """
        self._grid, self._timeout = grid, timeout
        self._states: dict[str, str] = {}
        self._rows: dict[str, dict[str, np.ndarray]] = {}  # of those whose vectors are in the sum
        self._names: Counter[tuple[str, ...]] = Counter()
        self._codec = codec_of(self._config, self._schemas)
        self._sum = SumServer(
            run, self.round.number, self._codec.layout, noise=self._codec.noise, verify=verify
        )
        self.report.asked += len(self.stage.tasks)
        try:
            total = self._summed(before_confirming)
        except SumFailedError as error:
            why = listed([str(error), *reasons(self.report.dropped)], separator="; ")
            raise FederationError(
                f"round {self.round.number}: no sum with secure aggregation: {why}. "
                "Nothing is known of the clients' updates"
            ) from error
        self._apply(total)

    def _summed(self, before_confirming: Callable[[], None]) -> list[np.ndarray]:
        server = self._sum
        layout = [list(part) for part in server.occasion.layout]
        asked = {"run": server.occasion.run, "attempt": server.occasion.attempt, "layout": layout,
                 "noise": server.occasion.noise}  # fmt: skip
        everybody = [task.client for task in self.stage.tasks]
        self._ask("keys", everybody, _same(asked), server.take_keys)
        roster = server.roster()
        clients = [name for name, *_ in roster]
        try:
            self._codec.check(len(clients))
        except ValueError as error:
            raise SumFailedError(str(error)) from error
        self._ask("shares", clients, _same({"roster": roster}), server.take_shares)
        self._ask(
            "boxes", server.sealing, lambda client: json.dumps(server.boxes_for(client)),
            server.take_holding,
        )  # fmt: skip
        self._note_unopened()
        self._ask_for_vectors(server.alive)
        survivors = server.survivors
        asked = {"survivors": survivors}
        before_confirming()
        self._ask("confirm", survivors, _same(asked), server.take_signature)
        asked = {"signatures": server.signatures, "views": server.views}
        self._ask("unmask", sorted(server.signatures), _same(asked), server.take_unmasking)
        return server.total()

    def _note_unopened(self) -> None:
        """Names both: nobody else can tell whether the sender or a receiver is lying."""
        for sender, receivers in self._sum.unopened.items():
            why = f"the shares that it sealed for {', '.join(receivers)} do not open there"
            if sender in self._sum.left_out:
                self._drop(Dropped(sender, why, silent=False))
            else:
                self.report.notes.append(f"client {sender}: {why}: one of them is lying")

    def _ask(
        self,
        stage: str,
        clients: Sequence[str],
        text: Callable[[str], str],
        take: Callable[[str, Any], None],
    ) -> None:
        """One stage without arrays: `text` makes what a client is asked, `take` takes its reply."""
        empty = ArrayRecord()
        messages = (
            self._envelope(
                MessageType.TRAIN, client, empty, self._entries(stage, client, text(client))
            )
            for client in clients
        )
        replies = self._grid.send_and_receive(messages, timeout=self._timeout)
        for client, message in zip(clients, replies, strict=True):
            self._take_reply(client, message, lambda name, reply, _: take(name, reply))

    def _ask_for_vectors(self, clients: Sequence[str]) -> None:
        """The stage in which clients train."""
        tasks = tuple(task for task in self.stage.tasks if task.client in clients)
        text = _same({"alive": clients})
        training = replace(
            self,
            stage=replace(self.stage, tasks=tasks),
            entries=lambda client: self._entries("input", client, text(client)),
        )
        messages = training.configure_train(self.round.number)
        replies = training.replies(self._grid, map(self._with_basis, messages))
        for task, message in zip(tasks, replies, strict=True):
            self._note_answer(task.client, message)
            self._take_reply(task.client, message, self._take_vector)

    def _with_basis(self, message: Message) -> Message:
        """The message; the first one sets the basis from which all train."""
        self._sum.basis = self._sum.basis or basis_of(message.content)
        return message

    def _take_vector(self, client: str, about: Any, content: RecordDict) -> None:
        names, view = about["metrics"], str(about["view"])
        record = content.get(fields.ARRAYS)
        layout = {f"ring{bits}": (bits, size) for bits, size in self._sum.occasion.layout}
        release = self.federation.release
        expected = [*layout, *(release.rows if release else ())]
        if not isinstance(record, ArrayRecord) or record.keys() != {*expected}:
            raise ValueError(f"the reply lacks its arrays, {', '.join(expected)}")
        images = self.round.images.get(client, 1)
        rows = checked_contributions(record, release, images) if release else {}
        vector = [
            checked_array(record, name, np.dtype(f"<u{bits // 8}"), size)
            for name, (bits, size) in layout.items()
        ]
        if not isinstance(names, list) or len(names) > MAX_METRICS:
            raise ValueError("the names of losses and measures are no list, or too many")
        self._sum.take_vector(client, vector, view)
        self._names[tuple(map(str, names))] += 1
        self._rows[client] = rows
        self.federation.on_client(client, True)

    def _take_reply(
        self, client: str, message: Message, take: Callable[[str, Any, RecordDict], None]
    ) -> None:
        """Takes one client's reply; a client without a good one drops out."""
        try:
            if message.has_error():
                raise BadReplyError(describe_error(message.error))
            about = message.content.get(fields.CONFIG)
            text = str(about.get(fields.SECURE_TEXT, "")) if isinstance(about, ConfigRecord) else ""
            self.report.bytes_up += len(text)
            if not 0 < len(text) <= MAX_TEXT or not isinstance(about, ConfigRecord):
                raise BadReplyError("the reply lacks its text, or it is too long")
            if len(state := str(about.get(fields.SECURE_STATE, ""))) <= MAX_TEXT and state:
                self._states[client] = state
            take(client, json.loads(text), message.content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = error if isinstance(error, BadReplyError) else BadReplyError(str(error))
            if client in self._rows:  # what it sent is in the sum
                self.report.dropped.append(dropped(client, message, reason))
            else:
                self._drop(dropped(client, message, reason))

    def _entries(self, stage: str, client: str, text: str) -> dict[str, Any]:
        self.report.bytes_down += len(text)
        remembered = {fields.SECURE_STATE: self._states[client]} if client in self._states else {}
        return {fields.SECURE_STAGE: stage, fields.SECURE_TEXT: text, **remembered}

    def _apply(self, total: list[np.ndarray]) -> None:
        """Makes the sum the model's new state, if it is plausible."""
        survivors = self._sum.survivors
        update = StageUpdate(self.federation, self.round, self.stage, self.report, self.number)
        plausibility = self._plausibility(update)
        model = self._models.first
        names = self._names.most_common(1)[0][0]
        try:
            start = Start(update.as_received(model), len(self._sum.roster()))
            state, numbers = self._codec.decode(total, start, len(survivors), names)
        except ValueError as error:
            raise FederationError(f"round {self.round.number}: {error}") from error
        for span, is_variance in self._schemas.shared.statistics:
            if is_variance:  # rounding may have taken one that is nearly 0 below it
                np.maximum(state[span], 0, out=state[span])
        metrics = {name: value / numbers.weight for name, value in numbers.metrics.items()}
        if len(self._names) > 1:
            metrics = {}
            self.report.notes.append("the clients measured different things: no losses this time")
        if cut := round(numbers.cut):
            self.report.notes.append(
                f"{cut} of {len(survivors)} clients changed more than fits into the sum, which was "
                "cut"
            )
        images = max(1, round(numbers.images))
        stacked = {
            name: np.concatenate([rows[name] for rows in self._rows.values()])
            for name in next(iter(self._rows.values()))
        }
        task, reply = Task(SUM, (model,)), Reply(state, stacked, images, metrics, model)
        if not plausibility.is_plausible(task, reply):
            ((task, reply, reason),) = plausibility.late()
            if reason is not None:
                raise FederationError(f"round {self.round.number}: the sum: {reason}")
        self.report.moved.append(plausibility.moved())
        update.add(task, reply)
        self.report.trained = {*survivors}
        self.report.contributors = {
            client for client, rows in self._rows.items() if any(map(len, rows.values()))
        }
        self.report.smallest_groups = {}  # each client's own, which is in the sum
        self.report.answered += len(survivors)
        self.report.client_seconds *= len(survivors)
        self.report.examples = max(0, round(numbers.images))  # 0: unknown, in a noisy sum
        update.apply()
        self.report.summarise()


def _same(asked: dict[str, Any]) -> Callable[[str], str]:
    """The text of what all clients are asked alike, which is written once."""
    text = json.dumps(asked)
    return lambda client: text
