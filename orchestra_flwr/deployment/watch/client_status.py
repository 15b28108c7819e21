"""How a client is doing."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from orchestra_flwr import __version__
from orchestra_flwr.deployment.keys.certificates import Dated
from orchestra_flwr.deployment.watch.figures import days_left
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import CONFIG, ENCODER_KIND, METRICS
from orchestra_flwr.flower.arrays import payload_bytes
from orchestra_flwr.flower.client_tasks import Request

DOING = {"query": "joining", "train": "training", "evaluate": "scoring", ENCODER_KIND: "storing"}
LOSS = "loss/"
MAX_ROUNDS = 10**9
STATES = ("connecting", "connected", "refused", *DOING.values())


class ClientStatus:
    """Follows a client's messages and answers.

    `images` is how many its folder has; `problem` gives what keeps it from taking part, or None.
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
        self._doing = self._refusal = ""
        self._round = self._rounds = 0
        self._last: dict[str, Any] = {}
        self._answers: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter(up=0, down=0)
        self._curve: list[tuple[int, float]] = []

    def asked(self, request: Request) -> None:
        """Notes that a message has come."""
        self._doing, self._since = DOING[request.kind], time.time()
        self._bytes["down"] += payload_bytes(request.content)
        task = request.content.config_records.get(CONFIG, ConfigRecord())
        # A server may send anything.
        with suppress(LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
            rounds = int(json.loads(str(task["config"]))["federation"]["rounds"])
            self._rounds = min(rounds, MAX_ROUNDS)
            # A greeting of the next run has none.
            self._round = max(0, min(int(task.get("round", 0)), self._rounds))  # type: ignore[arg-type]

    def answered(self, kind: str, answer: RecordDict | Failure) -> None:
        """Notes the answer that goes to the server."""
        self._doing, self._since = "", time.time()
        word = answer.word if isinstance(answer, Failure) else _refusal(answer)
        if kind == "query":  # here a client agrees to take part
            self._refusal = word
        self._answers[f"{DOING[kind]} {word or 'ok'}"] += 1
        if isinstance(answer, Failure):
            return
        self._bytes["up"] += payload_bytes(answer)
        # Not by `metric_records`: that view is a reference cycle, which keeps the model as well.
        metrics = answer.get(METRICS)
        if kind == "train" and metrics:
            self._last = {key: v for key, v in metrics.items() if isinstance(v, int | float)}
            loss = [v for k, v in self._last.items() if k.startswith(LOSS)]
            if loss:
                self._curve = [*self._curve[-299:], (self._round, sum(loss))]

    @property
    def state(self) -> str:
        """One of STATES."""
        if self._doing:
            return self._doing
        if not self._connected():
            return "connecting"
        return "refused" if self._refusal else "connected"

    def to_dict(self) -> dict[str, Any]:
        """The content of `/status`, and of `/metrics` as far as `FIGURES` names it."""
        state, problem = self.state, self._problem()
        loss = {k.removeprefix(LOSS): v for k, v in self._last.items() if k.startswith(LOSS)}
        return {
            "role": "client",
            "version": __version__,
            **self._about,
            "time": time.time(),
            "started": self._started,
            "state": state,
            "states": {name: name == state for name in STATES},
            "connected": self._connected(),
            "refused": self._refusal or None,
            "problem": problem,
            "well": problem is None,
            "since": self._since,
            "round": self._round,
            "rounds": self._rounds,
            "round_seconds": self._last.get("seconds"),
            "loss": loss,
            "last_round": {k: v for k, v in self._last.items() if not k.startswith(LOSS)},
            "answers": dict(self._answers),
            "bytes": dict(self._bytes),
            "certificates": days_left(self._certificates),
            "curves": {"loss": self._curve},
        }


def _refusal(answer: RecordDict) -> str:
    """The word with which a greeting says why this client takes no part; "" where it does."""
    return str(answer.get(CONFIG, ConfigRecord()).get("refusal", ""))
