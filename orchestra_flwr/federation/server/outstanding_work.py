"""What real clients work on from round to round, where they begin and end when they can."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from orchestra_flwr.federation.exchanges import Stage, Task
from orchestra_flwr.federation.exchanges.asynchronous import Asynchronous
from orchestra_flwr.federation.server.members import ConnectedMembers, Members
from orchestra_flwr.federation.server.round import Federation, Round
from orchestra_flwr.federation.server.round_report import RoundReport
from orchestra_flwr.federation.server.strategy import OrchestraStrategy
from orchestra_flwr.flower.streaming_grid import NODE_GONE, failure
from orchestra_flwr.flower.superlink_grid import SuperLinkGrid

LOOK_SECONDS = 0.2  # between two looks for replies, which cost nothing while clients train
MEET_SECONDS = 2.0  # between two looks for clients that come


@dataclass(frozen=True)
class _Asked:
    """What a client works on."""

    key: str | None  # of the message; None: it could not be sent
    message: Message  # without its content, of which the SuperLink has the only copy
    images: int  # of the client, which may have left when it is used
    since: float  # when it was sent, as `time.perf_counter` counts


@dataclass
class OutstandingWork:
    """The tasks of real clients that are under way, each begun with the model of its time.

    They are lost with the server's process: a run that is resumed asks all clients anew.
    """

    resumable = False

    grid: SuperLinkGrid
    federation: Federation
    members: ConnectedMembers
    started: Callable[[int, int, str], None]  # takes a round's number, its results, and a label

    def __post_init__(self) -> None:
        self.began = 0.0  # when the round began, as `time.perf_counter` counts
        self.results = 0  # that the round waits for
        self._round = Round(0, {})
        self._asked: dict[str, _Asked] = {}
        self._answered: list[str] = []  # clients, in the order in which their replies came
        self._failed: dict[str, Message] = {}  # of this round: an error in place of each reply
        self._sent = RoundReport()

    @classmethod
    def of(
        cls,
        grid: Grid,
        federation: Federation,
        members: Members,
        started: Callable[[int, int, str], None],
    ) -> Self | None:
        """For an exchange whose clients begin and end when they can, if they are real ones."""
        asynchronous = isinstance(federation.exchange, Asynchronous)
        if not (asynchronous and isinstance(members, ConnectedMembers)):
            return None
        assert isinstance(grid, SuperLinkGrid)
        return cls(grid, federation, members, started)

    def begin_round(self, round_: Round, results: int) -> None:
        """From now on clients begin with the model of this round's beginning."""
        self._round, self._sent, self.began = round_, RoundReport(), time.perf_counter()
        self.results = results
        models, exchange = self.federation.models, self.federation.exchange
        assert isinstance(exchange, Asynchronous)
        exchange.remember(round_.number - 1, models.arrays(models.first))
        self.started(round_.number, results, "training")

    @property
    def images(self) -> Mapping[str, int]:
        """That the clients at work have; some of them may have left."""
        return {client: asked.images for client, asked in self._asked.items()}

    def free(self, clients: Collection[str], *, wait: bool = True) -> list[str]:
        """Those of the clients that are still here; may wait until enough have come."""
        here = self.members.connected() if wait else self.members.present()
        # One that left and came back may run on another node.
        self._round = replace(self._round, nodes={**self._round.nodes, **here})
        return [client for client in clients if client in here]

    def begin(self, clients: Sequence[str]) -> list[float]:
        """Sends the newest model; returns when, as `time.perf_counter` counts."""
        self.grid.delete_late_replies()
        tasks = tuple(Task(client, (self.federation.models.first,)) for client in clients)
        # What is remembered is sent: it need not be encoded again for each that begins.
        round_ = replace(self._round, versions=dict.fromkeys(clients, self._round.number - 1))
        strategy = OrchestraStrategy(self.federation, round_, Stage(tasks), self._sent)
        messages = strategy.configure_train(self._round.number)
        now = time.perf_counter()
        for client, message in zip(clients, messages, strict=True):
            key = self.grid.send(message)
            message.content = RecordDict()
            self._asked[client] = _Asked(key, message, self._round.images[client], now)
        return [now] * len(clients)

    def next(self, at_work: Mapping[str, float]) -> tuple[str, bool]:
        """The first that has answered; False: with an error, or not in time."""
        met = time.monotonic()
        while True:
            self._look(at_work)
            for client in [*self._failed, *self._answered]:
                if client in at_work:
                    self.federation.on_client(client, client not in self._failed)
                    return client, client not in self._failed
            if time.monotonic() - met > MEET_SECONDS:  # who comes meanwhile is greeted
                self.members.present()
                met = time.monotonic()
            time.sleep(LOOK_SECONDS)

    def replies(self, clients: Sequence[str]) -> Iterator[Message]:
        """The replies of clients that :meth:`next` returned, fetched one by one."""
        for client in clients:
            asked = self._asked.pop(client)
            if client in self._failed:
                yield self._failed.pop(client)
            else:
                self._answered.remove(client)
                assert asked.key is not None
                yield self.grid.fetch(asked.key, asked.message)

    def since(self, clients: Sequence[str]) -> float:
        """When the first of these clients was asked, as `time.perf_counter` counts."""
        return min(self._asked[client].since for client in clients)

    @property
    def failed(self) -> list[str]:
        """The clients of this round that have no result."""
        return [*self._failed]

    @property
    def bytes_sent(self) -> int:
        """Of arrays, since the round began."""
        return self._sent.bytes_down

    def give_up(self) -> None:
        """Gives up all work that is under way."""
        for asked in self._asked.values():
            if asked.key is not None:
                self.grid.give_up(asked.key)
        self._asked, self._answered, self._failed = {}, [], {}

    def _look(self, at_work: Collection[str]) -> None:
        """Notes who has answered, failed, or not answered in time."""
        over = {*self._answered, *self._failed}
        waiting = {c: self._asked[c] for c in at_work if c not in over}
        limit = self.federation.config.federation.round_timeout
        keys = {asked.key: client for client, asked in waiting.items() if asked.key is not None}
        came = {keys[key]: good for key, good in self.grid.look(keys).items()}
        for client, asked in waiting.items():
            if asked.key is None:
                self._failed[client] = failure(NODE_GONE, asked.message)
            elif came.get(client):
                self._answered.append(client)
            elif client in came:
                self._failed[client] = self.grid.fetch(asked.key, asked.message)
            elif time.perf_counter() - asked.since > limit:
                self._failed[client] = failure(self.grid.why_silent(asked.key), asked.message)
                self.grid.give_up(asked.key)
