"""What happened in a round."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low

from orchestra_flwr.console.text import listed
from orchestra_flwr.evaluation import Drift, LabelFreeScores
from orchestra_flwr.federation.messages.fields import CONTRIBUTED, SMALLEST_GROUP, TRAINED

FAR = 100  # times the clients' median, or times 1 if that is more: a metric beyond is in no mean
LastUsed = dict[str, dict[str, int]]  # the latest round by client and by what it was used for


@dataclass(frozen=True)
class Dropped:
    """A client whose reply was not used, and why."""

    client: str
    reason: str
    silent: bool = False  # no answer of its own: it came too late, or its node is gone


def reasons(dropped: Iterable[Dropped]) -> list[str]:
    """Why clients dropped out, each reason once, since all may have to be mended."""
    clients: dict[str, list[str]] = {}
    for failure in dropped:
        clients.setdefault(failure.reason, []).append(failure.client)
    return [
        f"client{'s' * (len(names) > 1)} {listed(names)}: {reason}"
        for reason, names in clients.items()
    ]


@dataclass(frozen=True)
class Moved:
    """The median and the largest norm of what a stage's good replies changed."""

    median: float
    largest: float


@dataclass(frozen=True)
class LeftOut:
    """A metric of a client that is not in the mean of all."""

    client: str
    metric: str
    value: float

    def __str__(self) -> str:
        return f"{self.metric}={self.value:g} of client {self.client} is in no mean"


@dataclass
class RoundReport:
    """What happened in a round, for the metrics."""

    seconds: float = 0.0  # that it took, without its evaluation
    # Tasks of all stages so far; in a stage that does not wait for all, so many as end it
    asked: int = 0
    answered: int = 0  # those of them that were answered well
    dropped: list[Dropped] = field(default_factory=list)  # those whose replies were not used
    late: list[str] = field(default_factory=list)  # not waited for any more: their work is not used
    slowest: float | None = None  # seconds until the last good reply; None where nobody looked
    examples: int = 0  # images of the clients whose replies were used
    # Client, weight and metrics of each good reply
    results: list[tuple[str, float, dict[str, float]]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)  # means, weighted as the average is
    notes: list[str] = field(default_factory=list)  # lines for a person
    # How far good replies moved the models, by kind of value, stage by stage
    moved: list[Mapping[str, Moved]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    # Images behind the row with the fewest of them, of each client that reported it; 0 for one that
    # sent no rows. The server sees no images to check it by.
    smallest_groups: dict[str, int] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)  # clients whose trained state was used
    contributors: set[str] = field(default_factory=set)  # clients whose rows were used
    # Models that stay as they are, since too few clients' results entered them
    below_minimum: set[str] = field(default_factory=set)
    contributed: bool = False  # whether any client contributed something to the server's state
    server_measures: dict[str, float] = field(default_factory=dict)  # of the first model's state
    server_state_kept: bool = False  # no client contributed anything, so it is the old one
    # Means of the clients' label-free scores of the average, weighted by images; None where they
    # were not asked or none answered
    label_free: LabelFreeScores | None = None
    # What each client's own model scores on the classes that the client holds
    own_classes: list[dict[str, float]] = field(default_factory=list)
    # Of the models that several clients' results entered, stage by stage
    drifts: list[Drift] = field(default_factory=list)
    unscored: list[Dropped] = field(default_factory=list)  # clients whose scores were not used
    bytes_down: int = 0  # of arrays sent to clients
    bytes_up: int = 0  # of arrays received
    server_seconds: float = 0.0  # spent on the server's state
    client_seconds: float = 0.0  # of all clients together, as they report them

    @property
    def smallest_group(self) -> int | None:
        """Images behind the row with the fewest of them that any client sent; None without any."""
        return min((size for size in self.smallest_groups.values() if size), default=None)

    def last_used(
        self, before: Mapping[str, Mapping[str, int]], number: int, versions: Mapping[str, int]
    ) -> LastUsed:
        """What each client was last used for, so that one that has lost its records notices.

        Args:
            before: the same before this round.
            versions: for each client that did not begin with the last round's model, the round of
                the model that it began with; it knows its work by the number of the next round.
        """
        last_used = {name: dict(rounds) for name, rounds in before.items()}
        for word, names in ((TRAINED, self.trained), (CONTRIBUTED, self.contributors)):
            for name in sorted(names):
                last_used.setdefault(name, {})[word] = versions.get(name, number - 1) + 1
        return last_used

    def summarise(self) -> None:
        """Sets `metrics` and `left_out` from the results so far.

        A metric counts if more than half of the clients report it.
        """
        reported = Counter(name for *_, metrics in self.results for name in metrics)
        names = {name for name, count in reported.items() if 2 * count > len(self.results)}
        self.left_out = []
        self.metrics = {name: self._mean(name) for name in sorted(names - {SMALLEST_GROUP})}

    def _mean(self, name: str) -> float:
        """The mean of one metric, without values that are out of all proportion."""
        reported = [(c, w, metrics[name]) for c, w, metrics in self.results if name in metrics]
        if "/" in name:  # losses and the like; images and seconds are bounded
            most = FAR * max(1.0, median_low(abs(value) for *_, value in reported))
            self.left_out += [
                LeftOut(c, name, value) for c, _, value in reported if abs(value) > most
            ]
            reported = [row for row in reported if abs(row[2]) <= most]
        return sum(w * value for _, w, value in reported) / sum(w for _, w, _ in reported)
