"""Buffered asynchronous rounds: clients train whenever they are free (FedBuff).

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022
(arXiv 2106.06639), Algorithm 1: the server updates its model after every K results; one that began
with a model of s updates ago counts 1 / sqrt(1 + s).
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from orchestra_flwr.config import Config, ConfigError, OptionalPathText, Section
from orchestra_flwr.federation.exchanges import Exchange, Stage
from orchestra_flwr.federation.exchanges.asynchronous import Arrivals, Asynchronous, Work
from orchestra_flwr.federation.messages.fields import with_prefix
from orchestra_flwr.seeding import numpy_generator

FIRST = -1  # the version of round 0, which trains nothing


class Buffered(Asynchronous, Exchange):
    """A round is an update of the model by the next results, however old their models are.

    As many clients as a cohort has work at any time. When one has answered, another free one begins
    with the newest model. A client with a result in the buffer waits until it is used, so that no
    client trains a model twice. The server remembers each model on which a client still works, as
    it was sent; that is enough, since simulated work is done only when its result is due.
    """

    class Settings(Section):
        buffer: int = Field(3, ge=1)  # results in each update of the model
        # A run whose order of arrivals is repeated; None: the clock's
        replay: OptionalPathText = None

    one_average: ClassVar[bool] = True
    synchronous: ClassVar[bool] = False

    settings: Settings

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._at_work: dict[str, list[float]] = {}  # version and end, by client
        self._sent: dict[str, np.ndarray] = {}  # arrays of models: <version>/<array>
        self._arrived: Arrivals = []  # of this round
        self._resumable = True  # whether who is at work stays so when the run is resumed
        self._recorded: dict[int, Arrivals] | None = None

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses rules that compare results of one model, and runs without known arrivals."""
        super().check(config)
        settings = config.exchange.settings
        cohort = config.federation.cohort_size(config.federation.clients)
        if config.aggregation.plugin.holds_results:
            raise ValueError(
                f"aggregation={config.aggregation.name}: must be mean with exchange=buffered, "
                "whose results began with different models"
            )
        simulated = config.federation.min_clients is None
        if settings.replay is None and not config.clock.plugin.keeps_time and simulated:
            raise ValueError(
                "exchange=buffered: simulated clients need clock=virtual or "
                "exchange.replay=<run folder>"
            )
        if settings.replay is not None and not simulated:
            raise ValueError(
                f"exchange.replay={settings.replay}: must be null, only simulated clients can "
                "repeat what came when"
            )
        if simulated and settings.replay is None and settings.buffer > cohort:
            raise ValueError(
                f"exchange.buffer={settings.buffer}: must be at most {cohort}, the clients that "
                "work at the same time (federation.participation)"
            )

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """Nobody is late, and a replay needs no time."""
        keys = ("enough", "oversample", "deadline")
        unread = {f"federation.{key}": "with exchange=buffered" for key in keys}
        if config.exchange.settings.replay is not None:
            unread |= dict.fromkeys(("clock", "exchange.buffer"), "with exchange.replay")
        return unread

    def check_clients(self, clients: Collection[str], rounds: int) -> None:
        """Refuses a record of arrivals that is not of these clients and rounds."""
        if self.settings.replay is None:
            return
        key = f"exchange.replay={self.settings.replay}"
        recorded = self._record()
        if missing := [number for number in range(1, rounds + 1) if not recorded.get(number)]:
            raise ConfigError(f"{key}: records no arrivals of round {missing[0]}")
        for number, arrivals in recorded.items():
            if len(dict(arrivals)) < len(arrivals):
                twice, _ = Counter(client for client, _ in arrivals).most_common(1)[0]
                raise ConfigError(f"{key}: round {number}: client {twice} twice")
            least = 0 if number else FIRST
            for client, version in arrivals:
                if client not in clients or not least <= version < number:
                    raise ConfigError(
                        f"{key}: round {number}: client {client} with the model of round {version} "
                        "fits no run of these clients"
                    )

    def arrivals(
        self, round_: int, clients: Sequence[str], size: int, work: Work | None, seed: int
    ) -> Arrivals:
        """Lets free clients begin until the buffer is full; in a replay as it is recorded.

        A client that fails is not asked again in this round. If all fail, the buffer stays short.
        """
        if self.settings.replay is not None:
            self._arrived = self._record()[round_]
            return self._arrived
        assert work is not None
        self._resumable, self._arrived = work.resumable, []
        failed: set[str] = set()
        while len(self._arrived) < self.results(size):
            busy = self._at_work.keys() | dict(self._arrived).keys() | failed
            others = [client for client in clients if client not in busy]
            free = work.free(others, wait=not self._at_work) if others else []
            drawn = len(self._arrived) + len(failed)
            generator = numpy_generator(seed, "buffered cohort", round_, drawn)
            count = max(0, min(len(free), size - len(self._at_work)))
            places = sorted(generator.choice(len(free), count, replace=False))
            begin = [free[place] for place in places]
            for client, end in zip(begin, work.begin(begin), strict=True):
                self._at_work[client] = [round_ - 1, end]
            if not self._at_work:
                break
            names = [*clients, *self._at_work]  # one that has left may still answer
            ends = {name: self._at_work[name][1] for name in names if name in self._at_work}
            client, answered = work.next(ends)
            version, _ = self._at_work.pop(client)
            if answered:
                self._arrived.append((client, int(version)))
            else:
                failed.add(client)
        return self._arrived

    def results(self, size: int) -> int:
        return min(self.settings.buffer, size)

    def recorded(self, round_: int) -> list[str] | None:
        if self.settings.replay is None:
            return None
        return [client for client, _ in self._record().get(round_, ())]

    def stages(self, round_: int, cohort: Sequence[str]) -> Iterator[Stage]:
        """One stage; in round 0, which trains nothing, the cohort is the usual one."""
        if round_ == 0:
            self._arrived = [(client, FIRST) for client in cohort]
        return super().stages(round_, cohort)

    def remember(self, version: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Copies the arrays."""
        needed = self._needed(version) | {began for _, began in self._arrived}
        self._sent = {n: a for n, a in self._sent.items() if int(n.partition("/")[0]) in needed}
        self._sent |= {f"{version}/{name}": array.copy() for name, array in arrays.items()}

    def sent(self, version: int) -> dict[str, np.ndarray]:
        """Shares memory with what is kept."""
        return with_prefix(self._sent, f"{version}/")

    def metrics(self) -> dict[str, Any]:
        """The arrivals of the round, by which `exchange.replay` repeats it."""
        return {"arrivals": [list(arrival) for arrival in self._arrived]}

    def state(self) -> dict[str, Any]:
        """Who is at work until when, and the models on which they work; {} if that is lost."""
        if not self._resumable:
            return {}
        return {"at_work": self._at_work, "sent": dict(self._sent)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._at_work = dict(state.get("at_work", {}))
        self._sent = dict(state.get("sent", {}))

    def _needed(self, version: int) -> set[int]:
        """The models on which somebody works, in a replay those that later rounds need."""
        if self.settings.replay is None:
            return {int(began) for began, _ in self._at_work.values()}
        later = (self._record()[number] for number in self._record() if number > version)
        return {began for arrivals in later for _, began in arrivals}

    def _record(self) -> dict[int, Arrivals]:
        """The arrivals of the run that is repeated, by round."""
        if self._recorded is None:
            path = Path(str(self.settings.replay))
            file = path / "metrics.jsonl" if path.is_dir() else path
            try:
                records = [json.loads(line) for line in file.read_text().splitlines()]
                self._recorded = {
                    record["round"]: [(str(client), int(v)) for client, v in exchanged["arrivals"]]
                    for record in records
                    if (exchanged := record.get("exchange"))
                }
            except (
                OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError,
            ) as error:  # fmt: skip
                raise ConfigError(
                    f"exchange.replay={path}: is no run of exchange=buffered: {error}"
                ) from None
        return self._recorded
