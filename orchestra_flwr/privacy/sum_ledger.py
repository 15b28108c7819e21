"""A client's own bound on noisy sums of updates, and the record of all that it took part in."""

from dataclasses import dataclass
from pathlib import Path

from orchestra_flwr.config import ConfigError
from orchestra_flwr.privacy.client_ledger import BudgetSpentError
from orchestra_flwr.privacy.noisy_sums import sums_epsilon
from orchestra_flwr.privacy.release_record import ReleaseRecord, RoundNumber


@dataclass(frozen=True)
class NoisyUpdate:
    """A line of the record: an update that went into a sum."""

    run: str
    round: RoundNumber
    noise_multiplier: float


class SumLedger:
    """What a client's updates have cost, over all runs and servers, for the client as a whole.

    A line is on the disk before the update is sent, so it counts even if no sum comes of it, and
    again if a round is repeated. The record is continued where it exists. `limit` is the epsilon
    that all may cost together at `delta`; None: anything, even updates without noise.

    Raises:
        ConfigError: the record cannot be read or is damaged.
    """

    def __init__(self, file: Path, limit: float | None, delta: float) -> None:
        self._limit, self._delta = limit, delta
        self._record = ReleaseRecord(file, NoisyUpdate)

    def check(self, noise_multiplier: float) -> None:
        """Refuses one more update with this noise, where it would exceed the limit.

        Raises:
            ConfigError: there is no noise; a :class:`BudgetSpentError` where there is too little,
                after those before.
        """
        if self._limit is None:
            return
        bound = f"this client's privacy.updates_epsilon={self._limit:g}"
        if noise_multiplier <= 0:
            raise ConfigError(
                f"{bound} allows only sums with noise: set privacy.secure_aggregation=true and "
                "privacy.noise_multiplier at the server"
            )
        before = [entry.noise_multiplier for entry in self._record.entries]
        if sums_epsilon([*before, noise_multiplier], self._delta) > self._limit:
            raise BudgetSpentError(
                f"privacy.noise_multiplier={noise_multiplier:g}: one more sum would exceed "
                f"{bound}, of which {sums_epsilon(before, self._delta):.3g} is spent"
            )

    def add(self, run: str, round_: int, noise_multiplier: float) -> None:
        """Records an update that is about to be sent.

        Raises:
            OSError: it cannot be written; then nothing may be sent.
        """
        self._record.append(NoisyUpdate(run, round_, noise_multiplier))
