"""What a client allows of its images, whatever its server asks for, and what it ever released."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra_flwr.config import ConfigError
from orchestra_flwr.privacy.accounting import ClusteringMechanism, spent
from orchestra_flwr.privacy.ledger import Ledger
from orchestra_flwr.privacy.release_record import ReleaseRecord, parse_name, parse_round


class BudgetSpentError(ConfigError):
    """A run that asks for more than is left of `privacy.total_epsilon`."""


@dataclass(frozen=True)
class ClientBounds:
    """What a client allows.

    Attributes:
        delta: the probability with which its releases may cost more than epsilon.
        k_min: images that a released row must stand for, at least.
        epsilon: what one release may cost; None: anything.
        total_epsilon: what all releases, of all runs and to all servers, may cost; None: anything.
    """

    delta: float
    k_min: int = 1
    epsilon: float | None = None
    total_epsilon: float | None = None


@dataclass(frozen=True)
class RunRelease:
    """A line of the record: one release."""

    run: str
    round: int
    noise: ClusteringMechanism

    @classmethod
    def parse(cls, line: Any) -> RunRelease:
        """As :class:`ReleaseRecord` asks for."""
        noise = ClusteringMechanism(**line["noise"])
        return cls(parse_name(line["run"]), parse_round(line["round"]), noise)


class ClientLedger:
    """A client's bounds and the record of what it ever released, over all runs and servers.

    A line is on the disk before the client begins to work on what it is about to send. A round
    that a resumed server repeats is a release like any other: the noise of a real client is fresh.

    Args:
        file: the record; it is continued where it exists.
        bounds: what the client allows.

    Raises:
        ConfigError: the record cannot be read or is damaged.
    """

    def __init__(self, file: Path, bounds: ClientBounds) -> None:
        self._bounds = bounds
        self._record = ReleaseRecord(file, RunRelease.parse)
        self._ledger = Ledger(bounds.delta)
        for release in self._record.entries:
            self._ledger = self._ledger.released(release.noise)

    @property
    def ledger(self) -> Ledger:
        """All releases so far."""
        return self._ledger

    def check(
        self, run: str, mechanism: ClusteringMechanism | None, *, k_min: int | None, label: str
    ) -> None:
        """Refuses a run that asks for more than this client allows.

        Args:
            run: what tells this run from others.
            mechanism: the noise of one release; None: there is none.
            k_min: images that a released row stands for, at least; None: rows do not stand for
                images.
            label: what is released, in the plural, for messages.

        Raises:
            ConfigError: names the key, and what this client allows; a
                :class:`BudgetSpentError` where all releases together would exceed it.
        """
        bounds = self._bounds
        if k_min is not None and k_min < bounds.k_min:
            raise ConfigError(
                f"privacy.k_min={k_min}: this client asks for at least {bounds.k_min}"
            )
        limits = {"epsilon": bounds.epsilon, "total_epsilon": bounds.total_epsilon}
        texts = [f"privacy.{name}={most:g}" for name, most in limits.items() if most is not None]
        if not texts:
            return
        if mechanism is None:
            raise ConfigError(
                f"privacy.epsilon: the run's {label} must be differentially private with this "
                f"client, which allows {texts[0]}"
            )
        self._check_one_release(mechanism)
        self._check_total(run, mechanism)

    def lacks(self, round_: int, mechanism: ClusteringMechanism) -> bool:
        """Whether no run has a release with this noise in this round, though a server used one.

        Then the record was removed, or an older copy was put in its place. A run is not looked
        for by its name, which may change when it is resumed.
        """
        entries = self._record.entries
        return not any(each.round == round_ and each.noise == mechanism for each in entries)

    @property
    def is_bounded(self) -> bool:
        """Whether it matters for what may be released how much was released before."""
        return self._bounds.total_epsilon is not None

    def release(self, run: str, round_: int, mechanism: ClusteringMechanism) -> bool:
        """Writes down a release that is about to be made; False: it must not be, all is spent.

        Raises:
            OSError: it cannot be written down; then nothing may be sent.
        """
        if not self._may_release(mechanism):
            return False
        self._record.append(RunRelease(run, round_, mechanism))
        self._ledger = self._ledger.released(mechanism)
        return True

    def _check_one_release(self, mechanism: ClusteringMechanism) -> None:
        most, delta = self._bounds.epsilon, self._bounds.delta
        cost = spent({mechanism: 1}, delta)
        if most is not None and cost > most:
            raise ConfigError(
                f"privacy.epsilon={mechanism.epsilon:g} at privacy.delta={mechanism.delta:g}: "
                f"one release costs epsilon {cost:.3g} at this client's privacy.delta={delta:g}, "
                f"it allows at most {most:g}"
            )

    def _check_total(self, run: str, mechanism: ClusteringMechanism) -> None:
        # A client that spends all in the middle of a run stays in it, and releases nothing more.
        if self._may_release(mechanism) or any(e.run == run for e in self._record.entries):
            return
        raise BudgetSpentError(
            f"privacy.epsilon={mechanism.epsilon:g}: one more release would exceed this "
            f"client's privacy.total_epsilon={self._bounds.total_epsilon:g}, "
            f"of which {self._ledger.spent():.3g} is spent"
        )

    def _may_release(self, mechanism: ClusteringMechanism) -> bool:
        total = self._bounds.total_epsilon
        return total is None or self._ledger.may_release(mechanism, total)
