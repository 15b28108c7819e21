"""How a server is doing, in a run and between those of its queue."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from orchestra_flwr import __version__
from orchestra_flwr.deployment.keys.certificates import Dated
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.figures import days_left, details
from orchestra_flwr.deployment.watch.finished_rounds import REASONS, FinishedRounds
from orchestra_flwr.reporting import Progress, RoundOutcome, RunFolder

STATES = ("idle", "starting", "waiting", "training", "averaging", "working", "delivering")
AT_WORK = "at_work"
MEMBERS = ("joined", "left", "silent", "refused")
MAX_NAMED = 200  # clients that the status lists; more are only counted
SHOWN_APART = ("round", "loss", "scores", "bytes_up", "bytes_down", "seconds")  # of a record


class FederationStatus(Progress):
    """Follows a run as the display on a terminal does.

    What is being done comes from these events, what was done from `metrics.jsonl`. Readers use
    plain attributes, and hold no lock that the run would wait for.

    `registry` gives the names of the registered clients, None for one that is not ready.
    """

    def __init__(
        self,
        config: ServerConfig,
        folder: RunFolder,
        registry: Callable[[], Iterable[str | None]],
        certificates: Iterable[Dated],
    ) -> None:
        super().__init__(config.federation.rounds)
        self._config = config
        self._label = folder.label
        self._registry = registry
        self._certificates = tuple(certificates)
        self._rounds = FinishedRounds(folder.metrics)
        self._members: dict[str, str] = {}  # the latest of MEMBERS of each, by name
        self._work: dict[str, str] = {}  # by name: at_work, or answered or failed in this round
        self._came: dict[str, bool] = {}  # replies that wait to be taken: whether it is no error
        self._events: Counter[str] = Counter()
        self._doing = ""
        self._encoder = {"have": 0, "missing": 0}
        self._delivering = False
        self._started = self._since = time.time()
        self._in_round = False

    def round_started(self, round: int, cohort: int, label: str) -> None:
        """Forgets the answers of the round before, but not who is still at work."""
        super().round_started(round, cohort, label)
        self._work = {name: state for name, state in self._work.items() if state == AT_WORK}
        self._came = {}
        self._in_round, self._since = True, time.time()

    def client_asked(self, client: str) -> None:
        """Notes that a client is at work."""
        self._work = {**self._work, client: AT_WORK}

    def client_came(self, client: str, good: bool) -> None:
        """Notes that a client is not at work any more, though its reply is not taken yet."""
        if self._work.get(client) == AT_WORK:
            self._came = {**self._came, client: good}
            self._work = {**self._work, client: "answered" if good else "failed"}

    def client_done(self, client: str, ok: bool) -> None:
        """Remembers how a client answered in this round."""
        super().client_done(client, ok)
        self._came = {name: good for name, good in self._came.items() if name != client}
        self._work = {**self._work, client: "answered" if ok else "failed"}

    def round_finished(self, outcome: RoundOutcome) -> None:
        """Notes that the next round is awaited."""
        super().round_finished(outcome)
        self._in_round, self._since = False, time.time()

    def phase_started(self, text: str) -> None:
        """Shows the phase in place of the state of the round."""
        self._doing = text

    def phase_ended(self) -> None:
        """Shows the state of the round again."""
        self._doing = ""

    def member(self, event: str, name: str) -> None:
        """Notes that a client has joined, left, not answered (silent) or been refused."""
        self._events[event] += 1
        others = {key: value for key, value in self._members.items() if key != name}
        self._members = others if event == "left" else {**others, name: event}

    def delivery(self, have: int, missing: int, *, over: bool) -> None:
        """Notes how many clients have the encoder that is sent, and how many do not have it yet."""
        if over or not self._delivering:
            self._since = time.time()
        self._encoder, self._delivering = {"have": have, "missing": missing}, not over

    @property
    def state(self) -> str:
        """One of STATES."""
        if self._delivering:
            return "delivering"
        if self._doing:
            return "working"
        if self._in_round:
            return "training" if self._missing else "averaging"
        if self._states()["joined"] < (self._config.federation.min_clients or 0):
            return "waiting"
        return "working" if self._finished else "starting"

    @property
    def _missing(self) -> int:
        """How many clients of the cohort have not answered."""
        return max(0, self.cohort - self.done - len(self._came))

    def _replies(self) -> dict[str, int]:
        """How many have come, with those that wait to be taken."""
        failed = [*self._came.values()].count(False)
        ok = self.done - self.failed + len(self._came) - failed
        return {"ok": ok, "failed": self.failed + failed}

    def _states(self) -> Counter[str]:
        """How many clients are in each of MEMBERS, without those whose keys were revoked."""
        members = self._members
        if self._config.tls:
            names = {*self._registry()}
            members = {name: state for name, state in members.items() if name in names}
        return Counter(members.values())

    def _waits_for(self) -> str:
        """What has to happen next, in words for a person."""
        if self._delivering:
            have, missing = self._encoder.values()
            return f"{missing} of {have + missing} clients, to have the encoder"
        if self._doing:
            return self._doing
        if self.state == "training":
            label = "" if self.label == "training" else f": {self.label}"
            return f"{self._missing} of {self.cohort} clients{label}"
        if self.state == "waiting":
            here = self._states()["joined"]
            return f"clients: {here} of {self._config.federation.min_clients} are here"
        return {"averaging": "the average of the replies"}.get(self.state, "")

    def _counts(self) -> dict[str, int]:
        """How many clients are in each state."""
        names = tuple(self._registry())
        states = self._states()
        return {
            "registered": len(names),
            "here": states["joined"],
            AT_WORK: self._missing if self._in_round else 0,
            "silent": states["silent"],
            "refused": states["refused"],
        }

    def _named(self) -> list[dict[str, str]]:
        """Registered clients by name; what strangers call themselves is not repeated."""
        names = sorted(name for name in self._registry() if name is not None)
        shown = {"joined": None, "": "away"}
        return [
            {"name": name, "state": shown.get(event, event) or self._work.get(name, "here")}
            for name in names[:MAX_NAMED]
            for event in [self._members.get(name, "")]
        ]

    def to_dict(self) -> dict[str, Any]:
        """The content of `/status`, and of `/metrics` as far as `FIGURES` names it."""
        self._rounds.update()
        last, totals, state = self._rounds.last, self._rounds.totals, self.state
        return {
            "role": "server",
            "version": __version__,
            "run": self._label,
            "method": self._config.method.name,
            "model": self._config.model.name,
            "time": time.time(),
            "started": self._started,
            "state": state,
            "states": {name: name == state for name in STATES},
            "waits_for": self._waits_for(),
            "since": self._since,
            "round": self.round,
            "rounds": self.rounds,
            "time_left": self._time_left(),
            "cohort": self.cohort,
            "replies": self._replies(),
            "clients": self._counts(),
            "names": self._named(),
            "encoder": self._encoder,
            "members": {event: self._events[event] for event in MEMBERS},
            "round_finished": last.get("round"),
            "round_seconds": last.get("seconds"),
            "loss": details(last.get("loss") or {}),
            "scores": details(last.get("scores") or {}),
            "epsilon": _epsilon(last),
            "last_round": details({k: v for k, v in last.items() if k not in SHOWN_APART}),
            "bytes": {direction: totals[f"bytes_{direction}"] for direction in ("up", "down")},
            "seconds": totals["seconds"],
            "dropped": {reason: self._rounds.dropped[reason] for reason in REASONS},
            "certificates": days_left(self._certificates),
            "curves": self._rounds.curves(),
        }


class IdleStatus(FederationStatus):
    """A server without a run: who is connected, and since when it waits.

    It has all keys of a run's status, so that whoever reads that one finds no gap. `connected`
    gives the name of each connected client, None for one without a name. The folder is that of the
    queue, or of a run that is going to begin.
    """

    def __init__(
        self,
        config: ServerConfig,
        folder: RunFolder,
        registry: Callable[[], Iterable[str | None]],
        certificates: Iterable[Dated],
        *,
        connected: Callable[[], Collection[str | None]],
    ) -> None:
        super().__init__(config, folder, registry, certificates)
        self.rounds = 0
        self._connected = connected
        self.starting = config.queue is None  # whether a run is about to begin

    def waits(self) -> None:
        """Notes that there is no run any more."""
        self.starting, self._since = False, time.time()

    @property
    def state(self) -> str:
        """Idle, or starting."""
        return "starting" if self.starting else "idle"

    def to_dict(self) -> dict[str, Any]:
        """As of a run, with what is known without one."""
        shown, connected = super().to_dict(), self._connected()
        run = "" if self.starting else f"a run: orchestra-submit queue={self._config.queue}"
        names = [
            {**client, "state": "here" if client["name"] in connected else "away"}
            for client in shown["names"]
        ]
        return {
            **shown,
            "method": None,
            "model": None,
            "waits_for": run,
            "clients": {**shown["clients"], "here": len(connected)},
            "names": names,
        }


def _epsilon(record: Mapping[str, Any]) -> dict[str, float]:
    """What was spent by the client that spent most, for each kind of release."""
    privacy = record.get("privacy") or {}
    return {
        of: account["epsilon"]
        for of, account in privacy.items()
        if isinstance(account, Mapping) and account.get("epsilon") is not None
    }
