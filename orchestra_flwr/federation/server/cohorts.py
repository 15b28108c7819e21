"""Which clients a round asks: drawn from those that are there, each with a number in the run."""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestra_flwr.config import Config
from orchestra_flwr.console.text import listed
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges import client_order
from orchestra_flwr.federation.exchanges.asynchronous import Asynchronous
from orchestra_flwr.federation.messages.fields import CLIENTS, RUN, SPLIT
from orchestra_flwr.federation.server.checkpoint import Position, run_id
from orchestra_flwr.federation.server.members import Members
from orchestra_flwr.federation.server.outstanding_work import OutstandingWork
from orchestra_flwr.federation.server.round import Federation, Round
from orchestra_flwr.federation.server.run_privacy import RunPrivacy
from orchestra_flwr.federation.server.timeline import Timeline
from orchestra_flwr.merging import keeps_state
from orchestra_flwr.privacy.secure_sums import MAX_CLIENTS
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.seeding import numpy_generator


@dataclass
class Cohorts:
    """Draws the clients of every round of a run."""

    federation: Federation
    members: Members  # asked for before every round
    privacy: RunPrivacy  # who may still contribute, and the secret that cohorts are drawn from
    folder: RunFolder
    timeline: Timeline | None  # the virtual time of a simulation with a clock
    work: OutstandingWork | None  # of real clients that begin and end when they can
    message: Callable[[str], None]  # shows a line to a person

    def __post_init__(self) -> None:
        self._config, exchange = self.federation.config, self.federation.exchange
        self._asynchronous = exchange if isinstance(exchange, Asynchronous) else None
        learner = self.federation.models.learner
        self._capacity = learner.capacity  # clients of a run at most; None: any number
        self._capacity_key = learner.capacity_key
        self._keep_state = keeps_state(self._config, learner) or exchange.remembers
        self._sum_is_full = False  # whether it was shown that more clients are here
        self._over_capacity: set[str] = set()  # clients for whom there was no number left
        self._capped: set[str] = set()  # clients for whom it was shown that not all images count

    def draw(self, number: int, position: Position, *, evaluated: bool) -> tuple[Round, Position]:
        """Waits for the clients and draws the round's cohort; new clients get their numbers.

        Raises:
            FederationError: the clients that the run needs do not come, or none has a number.
        """
        nodes = self.members.connected()
        busy = len(self.members.images) - len(nodes)
        clients = assign_numbers(position.clients, nodes, self._capacity)
        nodes = self._with_numbers(nodes, clients)
        if self.timeline is not None and not (self._asynchronous and number):
            nodes = {client: nodes[client] for client in self.timeline.free(nodes)}
            busy = self.timeline.busy()
        images = {name: self.members.images[name] for name in nodes}
        everybody = self.members.images.values()  # also those that are at work or away
        most = max_counted_images(everybody, self._config.federation.max_weight)
        self._show_capped(images, most)
        round_ = Round(
            number,
            nodes,
            (),
            {client: index for index, client in enumerate(clients)},
            self.privacy.exhausted(nodes, number),
            self._state_location(),
            position.last_used,
            evaluated,
            images,
            most,
            position.usual,
            position.limit(self._config.federation),
            busy,
        )
        return self._with_cohort(round_), replace(position, clients=clients)

    def _with_cohort(self, round_: Round) -> Round:
        """The round with the clients that are asked, or whose results come next."""
        number, nodes, exchange = round_.number, round_.nodes, self._asynchronous
        if exchange is None or number == 0:  # in round 0 all begin together
            return replace(round_, cohort=self._draw_cohort(number, nodes, round_.busy))
        size = self._config.federation.cohort_size(len(nodes))
        clients = sorted(nodes, key=client_order)
        images = round_.images
        if self.work is not None:
            self.work.begin_round(round_, exchange.results(size))
            images = {**self.work.images, **images}  # one that has left may still answer
        work = self.timeline if self.work is None else self.work
        arrivals = exchange.arrivals(number, clients, size, work, self._config.seed)
        versions = dict(arrivals)
        if self.work is not None:
            versions |= dict.fromkeys(self.work.failed, number - 1)
        return replace(round_, cohort=tuple(versions), versions=versions, images=images)

    def _draw_cohort(self, number: int, nodes: Mapping[str, int], busy: int) -> tuple[str, ...]:
        if self._asynchronous and (recorded := self._asynchronous.recorded(number)):
            return tuple(recorded)
        size = min(len(nodes), self._config.federation.asked(len(nodes) + busy))
        if self._config.privacy.secure_aggregation and size > MAX_CLIENTS:
            if not self._sum_is_full:
                self._sum_is_full = True
                self.message(f"a round asks {MAX_CLIENTS:,} clients: no more fit into a sum")
            size = MAX_CLIENTS
        return draw_cohort(nodes, size, cohort_seed(self._config, self.privacy.key), number)

    def _with_numbers(self, nodes: Mapping[str, int], clients: list[str]) -> Mapping[str, int]:
        """The nodes of clients that have numbers; others came when all had been given out."""
        late = sorted(nodes.keys() - set(clients), key=client_order)
        if not late:
            return nodes
        why = (
            f"all {self._capacity} places of this run have been given to other clients "
            f"({self._capacity_key})"
        )
        if len(late) == len(nodes):
            raise FederationError(f"client {late[0]} cannot take part: {why}, none of whom is here")
        for name in late:
            if name not in self._over_capacity:
                self.message(f"client {name} does not take part: {why}")
        self._over_capacity.update(late)
        return {name: node for name, node in nodes.items() if name not in late}

    def _show_capped(self, images: Mapping[str, int], most: int | None) -> None:
        if most is None or self._config.federation.weighting == "uniform":
            return
        new = {name for name, count in images.items() if count > most} - self._capped
        self._capped |= new
        if new:
            self.message(
                f"client {listed(sorted(new, key=client_order))}: {most} images count in means, "
                f"federation.max_weight={self._config.federation.max_weight:g} times the median"
            )

    def _state_location(self) -> dict[str, str]:
        """For tasks: which run this is, and where clients on this machine have what is theirs."""
        location = {SPLIT: self.members.split} if self.members.split else {}
        if not self._keep_state:
            return location
        location[RUN] = run_id(self.folder.checkpoint)
        if self.members.is_simulated:
            location[CLIENTS] = str(self.folder.clients.resolve())
        return location


def max_counted_images(images: Collection[int], times: float | None) -> int | None:
    """Images of a client that count in a mean, at most; None: all do.

    Args:
        times: so many times the median is the most, the lower median of two. Clients may claim
            what they like: fewer than half of them can neither raise nor lower the median beyond
            what the others have.
    """
    if times is None or not images:
        return None
    return max(1, int(times * statistics.median_low(images)))


def cohort_seed(config: Config, key: bytes | None) -> int:
    """The seed of cohorts: the run's, which every client knows, or the run's secret.

    Where epsilon relies on nobody knowing who takes part, it comes from the secret.
    """
    return config.seed if key is None else int.from_bytes(key)


def draw_cohort(clients: Collection[str], size: int, seed: int, round_: int) -> tuple[str, ...]:
    """Draws the round's clients, so many, in the order of :func:`client_order`.

    Depends on the seed and the round alone, so that a resumed run asks the same clients.
    """
    chosen = numpy_generator(seed, "cohort", round_).choice(len(clients), size, replace=False)
    ordered = sorted(clients, key=client_order)
    return tuple(ordered[i] for i in sorted(chosen))


def assign_numbers(
    clients: Sequence[str], present: Collection[str], most: int | None = None
) -> list[str]:
    """The clients of a run in the order of their numbers: those that are new come last.

    Args:
        clients: those that have numbers already.
        most: so many clients get a number, and later ones none; None: everybody gets one.
    """
    return [*clients, *sorted(set(present) - set(clients), key=client_order)][:most]
