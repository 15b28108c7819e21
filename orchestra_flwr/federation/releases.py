"""Which clients were asked for private centroids, round by round: the ledger's lasting record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from orchestra_flwr.config import PrivacyConfig
from orchestra_flwr.files import append_durably, read_whole_lines
from orchestra_flwr.privacy import Ledger, calibrate


class Releases:
    """Counts what every client has released, over all rounds and across crashes.

    A line is on disk before a client is asked, so nothing that may have left a client is ever
    missing; a client whose reply was lost counts as one that released.

    Args:
        file: the record; it is continued where it exists.
        privacy: epsilon and delta of a release, and what a client may spend.
        replays: whether a round that is repeated after a crash draws the same noise for the same
            features, and so releases nothing new. Real clients draw fresh noise.

    Raises:
        OSError: the record cannot be read.
    """

    def __init__(self, file: Path, privacy: PrivacyConfig, *, replays: bool) -> None:
        assert privacy.epsilon is not None
        self._file = file
        self._privacy = privacy
        self._replays = replays
        self._mechanism = calibrate(privacy.epsilon, privacy.delta)
        self._asked: list[dict[str, Any]] = [json.loads(line) for line in read_whole_lines(file)]

    @property
    def counts(self) -> dict[str, int]:
        """Releases so far by the client's name."""
        rounds = self._asked
        if self._replays:
            rounds = list({line["round"]: line for line in rounds}.values())
        return dict(Counter(name for line in rounds for name in line["clients"]))

    def spent(self) -> float:
        """The epsilon of the client that spent most; 0 before any release."""
        return self._ledger(max(self.counts.values(), default=0)).spent()

    def exhausted(self, names: Collection[str], round_: int) -> set[str]:
        """Those of `names` that would exceed `privacy.total_epsilon` by a release in `round_`."""
        total = self._privacy.total_epsilon
        if total is None:
            return set()
        again = {n for line in self._asked if line["round"] == round_ for n in line["clients"]}
        counted = again if self._replays else set()
        counts = self.counts

        def may_release(name: str) -> bool:
            return self._ledger(counts.get(name, 0)).may_release(self._mechanism, total)

        return {name for name in names if name not in counted and not may_release(name)}

    def ask(self, round_: int, names: Collection[str]) -> None:
        """Writes down that these clients are about to release.

        Raises:
            OSError: the line cannot be written; then nobody may be asked.
        """
        line = {"round": round_, "clients": list(names)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        append_durably(self._file, (json.dumps(line) + "\n").encode())
        self._asked.append(line)

    def told(self) -> dict[str, Any]:
        """For metrics and summary: the epsilon of the client that spent most, and all counts."""
        return {
            "epsilon": self.spent(),
            "delta": self._privacy.delta,
            "epsilon_each": self._privacy.epsilon,
            "releases": self.counts,
        }

    def _ledger(self, times: int) -> Ledger:
        """Of a client that has released so often."""
        return Ledger(self._privacy.delta, {self._mechanism: times})
