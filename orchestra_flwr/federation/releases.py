"""Which clients were asked for private centroids, round by round: the ledger's lasting record."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from orchestra_flwr.config import PrivacyConfig
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
    """

    def __init__(self, file: Path, privacy: PrivacyConfig, *, replays: bool) -> None:
        assert privacy.epsilon is not None
        self._file = file
        self._privacy = privacy
        self._replays = replays
        self._mechanism = calibrate(privacy.epsilon, privacy.delta)
        self._asked = _read(file)

    @property
    def ledger(self) -> Ledger:
        """Releases so far."""
        rounds = self._asked
        if self._replays:
            rounds = list({line["round"]: line for line in rounds}.values())
        return Ledger(self._mechanism, Counter(name for line in rounds for name in line["clients"]))

    def exhausted(self, names: Collection[str], round_: int) -> set[str]:
        """Those of `names` that would exceed `privacy.total_epsilon` by a release in `round_`."""
        total = self._privacy.total_epsilon
        if total is None:
            return set()
        again = {n for line in self._asked if line["round"] == round_ for n in line["clients"]}
        counted = again if self._replays else set()
        ledger = self.ledger
        return {n for n in names if n not in counted and not ledger.may_release(n, total)}

    def ask(self, round_: int, names: Collection[str]) -> None:
        """Writes down that these clients are about to release.

        Raises:
            OSError: the line cannot be written; then nobody may be asked.
        """
        line = {"round": round_, "clients": list(names)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._asked.append(line)

    def told(self) -> dict[str, Any]:
        """For metrics and summary: the epsilon of the client that spent most, and all counts."""
        ledger = self.ledger
        return {
            "epsilon": ledger.worst(),
            "delta": self._privacy.delta,
            "epsilon_each": self._privacy.epsilon,
            "releases": dict(ledger.releases),
        }


def _read(file: Path) -> list[dict[str, Any]]:
    """The lines of the record; a last one that a crash cut off was never acted on, and goes."""
    if not file.is_file():
        return []
    whole, _, torn = file.read_text().rpartition("\n")
    if torn:
        os.truncate(file, file.stat().st_size - len(torn.encode()))
    return [json.loads(line) for line in whole.splitlines()]
