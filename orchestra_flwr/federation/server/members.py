"""Who takes part: the clients that can be asked, and the nodes on which they run."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sized
from dataclasses import KW_ONLY, dataclass
from itertools import cycle

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from orchestra_flwr.console.text import counted
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.failures import Failure, describe_error
from orchestra_flwr.federation.messages.fields import CONFIG, FROZEN, REGISTERED
from orchestra_flwr.federation.messages.replies import MAX_IMAGES
from orchestra_flwr.flower.fleet import time_to_live
from orchestra_flwr.flower.reply_upload import UnreadableReplyError
from orchestra_flwr.flower.superlink_grid import SuperLinkGrid
from orchestra_flwr.privacy.secure_sums.sum_client import Verify

NODE_WAIT_SECONDS = 600.0  # Ray starts its workers meanwhile
NODE_POLL_SECONDS = 0.1
POLL_SECONDS = 0.5
GREETED_AT_ONCE = 100  # fresh greetings: a SuperLink searches all messages for each node that asks
GREETING_SECONDS = 15.0  # a round waits so long for the answer of a client that has just come
NEWCOMERS_SECONDS = 300.0  # at most for all: two that come and go in turn would hold up a run
GREETED_AGAIN_SECONDS = 60.0  # after which a greeting that nobody answered may have been lost
MAX_NAME = 64  # characters of a real client's name
# Until a client that refused is asked again; doubled each time.
RETRY_SECONDS, MAX_RETRY_SECONDS = 15.0, 300.0


class Members(ABC):
    """Knows the clients of a federation; marks and announcements are for those that come and go."""

    # Whether they write their state into the run folder, and return the same bits if they repeat a
    # round
    is_simulated: bool
    names: tuple[str, ...]  # of all clients, in their order; () where they come and go
    images: dict[str, int]  # that each client has; real ones said so when they joined
    holders: set[str]  # clients that have the frozen weights; the server adds to it
    split = ""  # a fingerprint of the images of simulated clients
    # Whether the registered key of a client of this name signed something; None: they have no keys
    verify: Verify | None = None

    @abstractmethod
    def connected(self) -> Mapping[str, int]:
        """Node id of each client that can be asked now, by the client's name.

        Raises:
            FederationError: the clients that the run needs do not come.
        """

    def announce(self, frozen: str) -> None:  # noqa: B027 (simulated clients read the server's)
        """From now on clients are asked whether they have the frozen weights of this digest."""

    def mark_lost(self, names: Collection[str]) -> None:  # noqa: B027 (or they are asked anyway)
        """Notes clients that did not answer: they are asked again once they have shown up."""

    def revoked(self, name: str) -> bool:
        """Whether the key with which a client joined is no longer registered."""
        return False

    def mark_late(self, names: Collection[str]) -> None:  # noqa: B027 (or nobody is late)
        """Notes clients that may still work but are not waited for: they are asked when free."""


class SimulatedMembers(Members):
    """The clients of a simulation: all there, always the same, on however many nodes.

    Any node can act as any client: each message says as which. So a simulation needs as many nodes
    as clients are at work, and no node has to be asked who it is. A client that failed is asked
    again, and nobody is late.

    Args:
        parts: of the images, by the clients' names.
        split: their fingerprint, by which clients check that they have the same; "": they do not.
    """

    is_simulated = True

    def __init__(self, grid: Grid, parts: Mapping[str, Sized], split: str = "") -> None:
        self.split = split
        self.names = tuple(parts)
        self.images = {name: len(part) for name, part in parts.items()}
        self.holders: set[str] = set()
        self._grid = grid
        self._nodes: dict[str, int] = {}

    def connected(self) -> Mapping[str, int]:
        """As :meth:`Members.connected`; the first call waits until a worker has started."""
        if not self._nodes:
            nodes = registered_nodes(self._grid)
            _ask(self._grid, nodes[0])
            self._nodes = dict(zip(self.names, cycle(nodes), strict=False))
        return self._nodes


@dataclass(frozen=True)
class _Refusal:
    """A client that does not take part: why, and when it is asked again."""

    who: str
    line: str
    retry_after: float  # seconds between two questions
    until: float  # on the monotonic clock


@dataclass
class ConnectedMembers(Members):
    """The clients that are connected to a SuperLink; they come and go.

    Every new node is greeted: it learns the run's configuration and answers with its name and
    images, or with one word for what keeps it from taking part. That may pass, for example when a
    disk is mounted: a client that refused or failed is asked again, less and less often. A client
    whose key is registered has the name of its key, and counts as another one when that changes;
    others choose their own.
    """

    is_simulated = False
    names = ()

    grid: SuperLinkGrid
    greeting: ConfigRecord  # what a new node is sent: `version`, `config` (JSON) and `schema`
    min_clients: int  # :meth:`connected` waits until so many clients can be asked
    show: Callable[[str], None]  # shows a line: who came, left or was refused, and why
    pause: Callable[[float], None] = time.sleep  # takes seconds; may raise to end the waiting
    _: KW_ONLY
    verify: Verify | None = None  # as in :class:`Members`
    # Gives the names of the keys (PEM) that are registered now, without which no client counts as
    # connected; None: clients have no keys.
    keys: Callable[[], Mapping[bytes, str] | None] = lambda: None
    # Whether clients say how many images they have: in secure sums all say the same number.
    counts_images: bool = True
    # Takes what happened to a client (joined, left, refused, silent: it did not answer), its name,
    # and why it is refused or how many images it has.
    note: Callable[[str, str, str], None] = lambda event, name, detail: None

    def __post_init__(self) -> None:
        self.images: dict[str, int] = {}
        self.holders: set[str] = set()
        self.met: set[str] = set()  # all that ever joined
        self._registered: dict[int, str] = {}  # node -> the name of its key
        self._nodes: dict[str, int] = {}
        self._greeted: dict[int, tuple[str, float]] = {}  # node -> message id, when it was sent
        self._not_greeted = 0  # nodes that have come and wait for their greeting
        self._patience: dict[int, float] = {}  # node -> seconds until it is greeted once more
        self._answered_nodes: set[int] = set()  # nodes that have answered, with a yes or a no
        self._refused: dict[int, _Refusal] = {}
        self._lost: set[int] = set()  # nodes that did not answer in a round: nobody waits for them
        self.late: set[str] = set()  # clients that have not answered since they were late

    def connected(self) -> Mapping[str, int]:
        """As :meth:`Members.connected`; waits for as long as it takes."""
        announced, enough_since = False, math.inf
        while True:
            self.present()
            fresh = self.some_are_new
            free = {name: node for name, node in self._nodes.items() if name not in self.late}
            if len(self._nodes) >= self.min_clients and (free or not self._nodes):
                enough_since = min(enough_since, time.monotonic())
                if not fresh or time.monotonic() - enough_since > NEWCOMERS_SECONDS:
                    return free
            if not announced and not fresh:
                announced = True
                self.show(f"waiting for clients: {len(self._nodes)} of {self.min_clients} are here")
            self.pause(POLL_SECONDS)

    @property
    def some_are_new(self) -> bool:
        """Whether clients have just come, and may be about to say who they are."""
        return self._not_greeted > 0 or any(
            time.monotonic() - sent < GREETING_SECONDS
            for node, (_, sent) in self._greeted.items()
            if node not in self._lost and node not in self._refused
        )

    def present(self) -> Mapping[str, int]:
        """As :meth:`connected`, without waiting."""
        before, keys, nodes = self._registered, self.keys(), self.grid.get_nodes()
        self._registered = {
            node.node_id: "" if keys is None else keys[node.public_key]
            for node in nodes
            if keys is None or node.public_key in keys
        }
        same = {node for node, name in self._registered.items() if name == before.get(node, name)}
        self._forget_absent(same)
        self._greet_new()
        self._take_answers()
        return dict(self._nodes)

    def all_present(self) -> Mapping[str, int]:
        """As :meth:`present`, with those that refuse to take part."""
        nodes = self.present()  # looks anew who refuses
        return {**{refused.who: node for node, refused in self._refused.items()}, **nodes}

    def announce(self, frozen: str) -> None:
        """As :meth:`Members.announce`, when they are greeted."""
        self.greeting = ConfigRecord({**self.greeting, FROZEN: frozen})

    def mark_lost(self, names: Collection[str]) -> None:
        """As :meth:`Members.mark_lost`: their nodes are greeted anew."""
        for name in names:
            if (node := self._nodes.get(name)) is not None:
                self._leave_out(name)
                self._answered_nodes.discard(node)
                self._lost.add(node)
                self.note("silent", name, "")

    def revoked(self, name: str) -> bool:
        """Whether there are registered keys, and none of them is the client's."""
        keys = self.keys()
        return keys is not None and name not in keys.values()

    def mark_late(self, names: Collection[str]) -> None:
        """As :meth:`Members.mark_late`: a client answers one message after the other, so one that
        answers a new greeting is free. Those that work count as clients that are here."""
        for name in names:
            if (node := self._nodes.get(name)) is not None:
                self.late.add(name)
                self._answered_nodes.discard(node)
                self._lost.add(node)

    def _leave_out(self, name: str) -> None:
        del self._nodes[name], self.images[name]
        self.holders.discard(name)
        self.late.discard(name)

    def _forget_absent(self, present: Collection[int]) -> None:
        for name, node in list(self._nodes.items()):
            if node not in present:
                self._leave_out(name)
                self.show(f"client {name} has left")
                self.note("left", name, "")
        self._answered_nodes &= set(present)
        self._lost &= set(present)  # one that comes back counts as new
        for node in self._refused.keys() - set(present):
            self.note("left", self._refused.pop(node).who, "")
        for node in self._greeted.keys() - set(present):
            self.grid.give_up(self._greeted.pop(node)[0])
        self._patience = {n: wait for n, wait in self._patience.items() if n in present}

    def _greet_new(self) -> None:
        now = time.monotonic()
        for node, (message_id, sent) in list(self._greeted.items()):
            patience = self._patience.get(node, GREETED_AGAIN_SECONDS)
            if now - sent > patience:
                self._lost.add(node)  # nobody waits for it any more
                self._patience[node] = min(2 * patience, MAX_RETRY_SECONDS)
                self.grid.give_up(message_id)
                del self._greeted[node]
        due = {node for node, refusal in self._refused.items() if now >= refusal.until}
        new = sorted(self._registered.keys() - (self._answered_nodes - due) - self._greeted.keys())
        fresh = sum(now - sent < GREETING_SECONDS for _, sent in self._greeted.values())
        turn = new[: max(0, GREETED_AT_ONCE - fresh)]
        self._not_greeted = len(new) - len(turn)
        for node in turn:
            name = self._registered[node]
            greeting = ConfigRecord({**self.greeting, REGISTERED: name}) if name else self.greeting
            # One that is given up stays at the SuperLink until it has expired, and a client that is
            # free again is given all that are there before the latest.
            ttl = time_to_live(MAX_RETRY_SECONDS)
            message = Message(RecordDict({CONFIG: greeting}), node, MessageType.QUERY, ttl=ttl)
            if (key := self.grid.send(message)) is not None:  # else it has just gone
                self._greeted[node] = (key, time.monotonic())

    def _take_answers(self) -> None:
        asked = {message_id: node for node, (message_id, _) in self._greeted.items()}
        for message_id in self.grid.begun(asked):
            name = self._registered[node := asked[message_id]]
            try:  # one by one: what one client sent hinders no other
                replies = list(self.grid.pull_messages([message_id]))
            except UnreadableReplyError as error:
                self._answered(node)
                who = _called(name, node)
                self._postpone(node, who, f"client {who} cannot take part: {error}")
                continue
            for reply in replies:
                self._answered(node)
                self._admit(node, name, reply)

    def _answered(self, node: int) -> None:
        del self._greeted[node]
        self._patience.pop(node, None)
        self._answered_nodes.add(node)
        self._lost.discard(node)

    def _admit(self, node: int, registered_name: str, reply: Message) -> None:
        who = _called(registered_name, node)
        if reply.has_error():
            error = describe_error(reply.error)
            self._postpone(node, who, f"client {who} cannot take part: {error}")
            return
        answer = reply.content.config_records.get(CONFIG, ConfigRecord())
        name, word = str(answer.get("client", "")), str(answer.get("refusal", ""))
        said = answer.get("images")
        images = said if isinstance(said, int) else 0
        refusal = Failure.named(word).line if word else ""
        if not name.isprintable() or not 0 < len(name) <= MAX_NAME:
            name, refusal = who, "it gives no name"
        elif registered_name and registered_name != name:
            refusal = (
                f"its key is registered here as {registered_name}. Either revoke "
                f"name={registered_name} here and register the client's client.pub, or the client "
                f"ends its client.pub with {registered_name} and is started again"
            )
        elif not word and not isinstance(said, int):
            refusal = "it does not say how many images it has"
        elif not word and not 1 <= images <= MAX_IMAGES:
            refusal = f"it says that it has {images} images"
        if refusal:
            self._postpone(node, registered_name or name, f"client {name} is refused: {refusal}")
            return
        self._refused.pop(node, None)
        # A client without a key that was restarted has a new node, as has another of the same name.
        twin = self._nodes.get(name, node) != node
        self._nodes[name], self.images[name] = node, images
        self.met.add(name)
        (self.holders.add if answer.get(FROZEN) is True else self.holders.discard)(name)
        was_late = name in self.late and not twin
        self.late.discard(name)
        if was_late:
            return
        place = f", in place of another client {name}: if both run, give one another name"
        count = counted(images, "image") if self.counts_images else "an unknown number of images"
        self.show(f"client {name} joined with {count}{place * twin}")
        self.note("joined", name, f"{count}{place * twin}")

    def _postpone(self, node: int, who: str, line: str) -> None:
        """Shows why a client does not take part, and asks it again in a while."""
        for name in [name for name, its_node in self._nodes.items() if its_node == node]:
            self._leave_out(name)  # it was late, and is neither at work nor free
        previous = self._refused.get(node)
        retry_after = (
            RETRY_SECONDS if previous is None else min(2 * previous.retry_after, MAX_RETRY_SECONDS)
        )
        self._refused[node] = _Refusal(who, line, retry_after, time.monotonic() + retry_after)
        if previous is None or previous.line != line:
            self.show(f"{line}; it is asked again")
            self.note("refused", who, line)


def registered_nodes(grid: Grid) -> list[int]:
    """Waits until a simulation's nodes are there and no more come.

    Raises:
        FederationError: none has come.
    """
    deadline = time.monotonic() + NODE_WAIT_SECONDS
    before: list[int] = []
    ids = sorted(grid.get_node_ids())
    while not ids or ids != before:  # Flower registers them one after another
        if time.monotonic() > deadline:
            raise FederationError("no node has come that could be a client")
        time.sleep(NODE_POLL_SECONDS)
        before, ids = ids, sorted(grid.get_node_ids())
    return ids


def _ask(grid: Grid, node: int) -> None:
    """Waits until a node answers."""
    question = Message(RecordDict(), node, MessageType.QUERY)
    for reply in grid.send_and_receive([question], timeout=NODE_WAIT_SECONDS):
        if reply.has_error():
            raise FederationError(f"no client can be asked: {reply.error.reason}")


def _called(registered_name: str, node: int) -> str:
    return registered_name or f"at node {node}"
