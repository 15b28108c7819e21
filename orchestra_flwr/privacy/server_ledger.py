"""The server's ledger: which clients were asked for a private release, and what that has cost."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra_flwr.privacy.accounting import ClusteringMechanism, spent
from orchestra_flwr.privacy.release_record import ReleaseRecord, RoundNumber


@dataclass(frozen=True)
class AskedClients:
    """A line of the record: the clients that were asked for a release in a round."""

    round: RoundNumber
    clients: tuple[str, ...]
    made_with: str = ""  # what decides the features, where clients replay; earlier versions: ""


class ServerLedger:
    """Counts what every client of a run has released, over all rounds and across crashes.

    A client counts before it is asked, so one whose reply was lost counts too.

    Args:
        file: the record; it is continued where it exists.
        mechanism: the noise of one release.
        delta: of the epsilon of all releases of a client together.
        total_epsilon: what these may cost; None: anything.
        replays: whether a round that is repeated with the same model draws the same noise, and so
            releases nothing new. Real clients draw fresh noise.

    Raises:
        ConfigError: the record cannot be read or is damaged.
    """

    def __init__(
        self,
        file: Path,
        mechanism: ClusteringMechanism,
        *,
        delta: float,
        total_epsilon: float | None = None,
        replays: bool,
    ) -> None:
        self._mechanism = mechanism
        self._delta = delta
        self._total_epsilon = total_epsilon
        self._replays = replays
        self._record = ReleaseRecord(file, AskedClients)

    @property
    def counts(self) -> dict[str, int]:
        """Releases so far by the client's name, in the order in which they were first asked."""
        entries = self._record.entries
        releases = [(e.round, e.made_with, name) for e in entries for name in e.clients]
        if self._replays:
            releases = list(dict.fromkeys(releases))
        return dict(Counter(name for *_, name in releases))

    def spent(self) -> float:
        """The epsilon of the client that spent most; 0 before any release."""
        return self._cost(max(self.counts.values(), default=0))

    def exhausted(self, names: Collection[str], round_: int, made_with: str = "") -> set[str]:
        """Those of `names` that would exceed the total epsilon by a release in `round_`."""
        counts, total = self.counts, self._total_epsilon
        if total is None:
            return set()
        entries = self._record.entries if self._replays else ()
        asked = (e.clients for e in entries if (e.round, e.made_with) == (round_, made_with))
        repeated = {name for clients in asked for name in clients}
        return {n for n in names if n not in repeated and self._cost(counts.get(n, 0) + 1) > total}

    def ask(self, round_: int, names: Collection[str], made_with: str = "") -> None:
        """Records that these clients are about to release.

        Args:
            made_with: what decides their features, of which the model is a part.

        Raises:
            OSError: the line cannot be written; then no client may be asked.
        """
        self._record.append(AskedClients(round_, tuple(names), made_with))

    def metrics(self) -> dict[str, Any]:
        """For metrics and summary: the epsilon of the client that spent most, and all counts."""
        return {
            "epsilon": self.spent(),
            "delta": self._delta,
            "epsilon_each": self._mechanism.epsilon,
            "releases": self.counts,
        }

    def _cost(self, releases: int) -> float:
        """The epsilon of so many releases of one client."""
        return spent({self._mechanism: releases}, self._delta)
