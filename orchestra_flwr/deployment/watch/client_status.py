"""How a client is doing."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from orchestra_flwr import __version__
from orchestra_flwr.deployment.keys.certificates import Dated
from orchestra_flwr.deployment.watch.figures import Figure, certificate_figures, days_left
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import CONFIG, METRICS
from orchestra_flwr.flower.client_tasks import Request

DOING = {"query": "joining", "train": "training", "evaluate": "scoring"}
STATES = ("connecting", "connected", *DOING.values())


class ClientStatus:
    """Follows a client's messages and answers.

    Args:
        name: the client's name.
        server: HOST:PORT.
        images: how many are in its folder.
        connected: whether it is connected now.
        problem: what keeps it from taking part; None: nothing does.
        certificates: those in use.
    """

    def __init__(
        self,
        name: str,
        server: str,
        images: int,
        *,
        connected: Callable[[], bool],
        problem: Callable[[], str | None],
        certificates: Iterable[Dated],
    ) -> None:
        self._about = {"name": name, "server": server, "images": images}
        self._connected = connected
        self._problem = problem
        self._certificates = tuple(certificates)
        self._started = self._since = time.time()
        self._doing = ""
        self._round = self._rounds = 0
        self._last: dict[str, Any] = {}
        self._answers: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter(up=0, down=0)
        self._curve: list[tuple[int, float]] = []

    def asked(self, request: Request) -> None:
        """A message has come."""
        self._doing, self._since = DOING[request.kind], time.time()
        self._bytes["down"] += _size(request.content)
        task = request.content.config_records.get(CONFIG, ConfigRecord())
        with suppress(KeyError, TypeError, ValueError, RecursionError):  # a server's, not ours
            self._rounds = int(json.loads(str(task["config"]))["federation"]["rounds"])
            self._round = int(task["round"])  # type: ignore[arg-type]

    def answered(self, kind: str, answer: RecordDict | Failure) -> None:
        """The answer goes to the server."""
        self._doing, self._since = "", time.time()
        if isinstance(answer, Failure):
            self._answers[DOING[kind], answer.word] += 1
            return
        self._answers[DOING[kind], "ok"] += 1
        self._bytes["up"] += _size(answer)
        metrics = answer.metric_records.get(METRICS)
        if kind == "train" and metrics:
            self._last = {key: value for key, value in metrics.items() if _is_number(value)}
            loss = [v for k, v in self._last.items() if k.startswith("loss/")]
            if loss:
                self._curve = [*self._curve[-299:], (self._round, sum(loss))]

    @property
    def state(self) -> str:
        """One of STATES."""
        return self._doing or ("connected" if self._connected() else "connecting")

    def to_dict(self) -> dict[str, Any]:
        """The content of `/status`."""
        return {
            "role": "client",
            "version": __version__,
            **self._about,
            "time": time.time(),
            "started": self._started,
            "state": self.state,
            "problem": self._problem(),
            "since": self._since,
            "round": self._round,
            "rounds": self._rounds,
            "last_round": self._last,
            "answers": {f"{kind} {result}": n for (kind, result), n in self._answers.items()},
            "totals": {f"bytes_{direction}": n for direction, n in self._bytes.items()},
            "certificates": days_left(self._certificates),
            "curves": {"loss": self._curve},
        }

    def figures(self) -> Iterator[Figure]:
        """The content of `/metrics`."""
        state = self.state
        yield Figure("info", "1", 1, {"role": "client", "version": __version__})
        for each in STATES:
            yield Figure("state", "1 for what the client does now", each == state, {"state": each})
        yield Figure("connected", "1 while it is connected to its server", self._connected())
        yield Figure("well", "0 while something keeps it from taking part", not self._problem())
        yield Figure("round", "Number of the round that it was asked for last", self._round)
        yield Figure("rounds", "Number of the last round of the run", self._rounds)
        yield Figure("since_seconds", "Unix time of its last message or answer", self._since)
        yield Figure("images", "Images in its folder", self._about["images"])  # type: ignore[arg-type]
        for (kind, result), count in self._answers.items():
            labels = {"kind": kind, "result": result}
            yield Figure("answers_total", "Answers, by what the client did", count, labels)
        for direction, count in self._bytes.items():
            meaning = "Bytes of arrays, up to the server and down from it"
            yield Figure("bytes_total", meaning, count, {"direction": direction})
        for name, value in self._last.items():
            part = name.removeprefix("loss/")
            if part != name:
                yield Figure("loss", "Mean loss of its last round", value, {"part": part})
        yield Figure("round_seconds", "Seconds of its last round", self._last.get("seconds"))
        yield from certificate_figures(self._certificates)


def _size(content: RecordDict) -> int:
    """Bytes of all arrays in a message."""
    return sum(len(a.data) for record in content.array_records.values() for a in record.values())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
