"""What `metrics.jsonl` says of the rounds so far, for those who only look."""

import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from orchestra_flwr.console.text import ACCURACIES
from orchestra_flwr.federation.messages.failures import Failure

POINTS = 300  # of a curve, at most
# Why a reply was not used: whatever a client sent, there are no others.
REASONS = ("no_answer", *(failure.word for failure in Failure), "unusable")
TOTALS = ("bytes_up", "bytes_down", "seconds")


class FinishedRounds:
    """The records of a run's rounds: read on from where the last reading ended, and condensed.

    The run writes the file, `metrics.jsonl`, and does not know that it is read; it need not be
    there yet. Memory: a few numbers a round.

    Attributes:
        last: the record of the last round; {} before the first.
        totals: bytes and seconds of all rounds.
        dropped: replies that were not used, by one of REASONS.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # of the readers
        self._forget(0)

    def update(self) -> None:
        """Reads what has been added, or everything if the run went back to an earlier round."""
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    about = os.fstat(file.fileno())
                    if about.st_ino != self._inode or about.st_size < self._read:
                        self._forget(about.st_ino)
                    file.seek(self._read)
                    whole = file.read().rpartition(b"\n")[0]
            except FileNotFoundError:
                return
            if whole:
                self._read += len(whole) + 1
                for line in whole.split(b"\n"):
                    self._add(json.loads(line))

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Loss and scores by round, each of at most 300 points, the last one among them."""
        with self._lock:
            return {
                name: points[(len(points) - 1) % step :: step]
                for name, points in self._curves.items()
                for step in [-(-len(points) // POINTS)]
            }

    def _forget(self, inode: int) -> None:
        self._inode, self._read = inode, 0
        self.last: dict[str, Any] = {}
        self.totals: Counter[str] = Counter(dict.fromkeys(TOTALS, 0))
        self.dropped: Counter[str] = Counter()
        self._curves: dict[str, list[tuple[int, float]]] = {}

    def _add(self, record: dict[str, Any]) -> None:
        self.last = record
        for name in TOTALS:
            self.totals[name] += record.get(name) or 0
        for entry in record["clients"]["dropped"]:
            self.dropped[_reason(entry)] += 1
        by_backbone = record.get("scores") or {}
        shown = dict(next(iter(by_backbone.values()), {}))  # the first is the one that is saved
        shown["loss"] = record["loss"].get("total")
        shown["label_free"] = (record.get("unsupervised") or {}).get("score")
        for name in ("loss", *ACCURACIES, "label_free"):
            if (value := shown.get(name)) is not None:
                self._curves.setdefault(name, []).append((record["round"], value))


def _reason(dropped: dict[str, Any]) -> str:
    word = "no_answer" if dropped.get("silent") else dropped["reason"].partition(" ")[0]
    return word if word in REASONS else "unusable"
