"""Who takes part: the clients that can be asked, and the nodes on which they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import cycle
from typing import Protocol

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from orchestra_flwr.federation.messages.arrays import CONFIG
from orchestra_flwr.federation.server.round_report import FederationError

NODE_WAIT_SECONDS = 600.0  # Ray starts its workers meanwhile
NODE_POLL_SECONDS = 0.1
POLL_SECONDS = 0.5
GREETING_SECONDS = 15.0  # a round waits so long for the answer of a client that has just come


class Members(Protocol):
    """Knows the clients of a federation.

    Attributes:
        replays: whether a client that is asked for a round once more does the same to the bit.
        share_disk: whether clients can write into the run folder, to keep their state there.
        names: of all clients, in their order; () where they come and go.
    """

    replays: bool
    share_disk: bool
    names: tuple[str, ...]

    def connected(self) -> Mapping[str, int]:
        """Node id of each client that can be asked now, by the client's name.

        Raises:
            FederationError: the clients that the run needs do not come.
        """

    def mark_lost(self, names: Collection[str]) -> None:
        """These clients did not answer: they are asked again when they have shown up again."""


class SimulatedMembers:
    """The clients of a simulation: all there, always the same, on however many nodes.

    Any node can be any client: a message says which one it shall be. So a simulation needs as many
    nodes as clients are at work, and no node has to be asked who it is.

    Args:
        grid: the simulation's grid.
        names: the clients.
    """

    replays = True
    share_disk = True

    def __init__(self, grid: Grid, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._nodes = dict(zip(names, cycle(_working_nodes(grid)), strict=False))

    def connected(self) -> Mapping[str, int]:
        """As :meth:`Members.connected`."""
        return self._nodes

    def mark_lost(self, names: Collection[str]) -> None:
        """Nothing: a simulated client that failed is asked again."""


class ConnectedMembers:
    """The clients that are connected to a SuperLink; they come and go.

    Every new node is greeted: it learns the run's configuration and answers with its name and
    images, or with what keeps it from taking part. A client whose node was registered under a name
    (`flwr supernode register --name`) has that name; others say their own.

    Args:
        grid: the SuperLink's grid.
        greeting: what a new node is sent: `version`, `config` (JSON) and `schema`.
        least: :meth:`connected` waits until so many clients can be asked.
        tell: shows a line: who came, left or was refused, and why.
        pause: waits for a number of seconds; may raise to end the waiting.
    """

    replays = False
    share_disk = False
    names: tuple[str, ...] = ()

    def __init__(
        self,
        grid: Grid,
        greeting: ConfigRecord,
        least: int,
        tell: Callable[[str], None],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid = grid
        self._greeting = greeting
        self._least = least
        self._tell = tell
        self._pause = pause
        self._nodes: dict[str, int] = {}
        self._greeted: dict[int, tuple[str, float]] = {}  # node -> message id, when it was sent
        self._settled: set[int] = set()  # nodes that have answered, with a yes or a no
        self._lost: set[int] = set()  # nodes that did not answer in a round: nobody waits for them

    def connected(self) -> Mapping[str, int]:
        """As :meth:`Members.connected`; waits for as long as it takes."""
        announced = False
        while True:
            registered = {node.node_id: node.name for node in self._grid.get_nodes()}
            self._forget_absent(registered)
            self._greet_new(registered)
            self._take_answers(registered)
            fresh = any(
                time.monotonic() - sent < GREETING_SECONDS
                for node, (_, sent) in self._greeted.items()
                if node not in self._lost
            )
            if len(self._nodes) >= self._least and not fresh:
                return dict(self._nodes)
            if not announced and not fresh:
                announced = True
                self._tell(f"waiting for clients: {len(self._nodes)} of {self._least} are here")
            self._pause(POLL_SECONDS)

    def mark_lost(self, names: Collection[str]) -> None:
        """As :meth:`Members.mark_lost`: their nodes are greeted anew."""
        for name in names:
            node = self._nodes.pop(name, None)
            if node is not None:
                self._settled.discard(node)
                self._lost.add(node)

    def _forget_absent(self, present: Collection[int]) -> None:
        for name, node in list(self._nodes.items()):
            if node not in present:
                del self._nodes[name]
                self._tell(f"client {name} has left")
        self._settled &= set(present)
        self._greeted = {n: sent for n, sent in self._greeted.items() if n in present}

    def _greet_new(self, present: Collection[int]) -> None:
        for node in sorted(set(present) - self._settled - self._greeted.keys()):
            message = Message(RecordDict({CONFIG: self._greeting}), node, MessageType.QUERY)
            for message_id in self._grid.push_messages([message]):
                self._greeted[node] = (message_id, time.monotonic())

    def _take_answers(self, registered: Mapping[int, str]) -> None:
        asked = {message_id: node for node, (message_id, _) in self._greeted.items()}
        if not asked:
            return
        for reply in self._grid.pull_messages(list(asked)):
            node = asked[reply.metadata.reply_to_message_id]
            del self._greeted[node]
            self._settled.add(node)
            self._lost.discard(node)
            self._admit(node, registered[node], reply)

    def _admit(self, node: int, registered_name: str, reply: Message) -> None:
        if reply.has_error():
            who = registered_name or f"at node {node}"
            self._tell(f"client {who} cannot take part: {reply.error.reason or reply.error.code}")
            return
        answer = reply.content.config_records.get(CONFIG, ConfigRecord())
        name, refusal = str(answer.get("client", "")), str(answer.get("refusal", ""))
        if registered_name and registered_name != name:
            refusal = f"its key is registered as {registered_name}: start it with that name"
        if not name or refusal:
            self._tell(f"client {name or node} is refused: {refusal or 'it gives no name'}")
            return
        self._nodes[name] = node  # a client that was started anew has a new node
        self._tell(f"client {name} joined with {int(answer['images'])} images")  # type: ignore[arg-type]


def _working_nodes(grid: Grid) -> list[int]:
    """Waits until nodes are there, no more come, and the first of them answers."""
    deadline = time.monotonic() + NODE_WAIT_SECONDS
    before: list[int] = []
    ids = sorted(grid.get_node_ids())
    while not ids or ids != before:  # Flower registers them one after another
        if time.monotonic() > deadline:
            raise FederationError("no node has come that could be a client")
        time.sleep(NODE_POLL_SECONDS)
        before, ids = ids, sorted(grid.get_node_ids())
    question = Message(RecordDict(), ids[0], MessageType.QUERY)
    for reply in grid.send_and_receive([question], timeout=NODE_WAIT_SECONDS):
        if reply.has_error():
            raise FederationError(f"no client can be asked: {reply.error.reason}")
    return ids
