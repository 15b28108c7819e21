"""What a client allows of its own images, whatever its server asks for, and its own ledger."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.deployment.client_config import ClientPrivacyConfig
from orchestra_flwr.files import append_durably, read_whole_lines
from orchestra_flwr.privacy import ClusteringMechanism, Ledger, calibrate, spent


class OwnPrivacy:
    """A client's own bounds and the record of what it ever released, over all runs and servers.

    The record is a line for each release of private centroids: the run, the round and the noise.
    A line is on the disk before the client begins to work on what it is about to send, so that a
    crash can only overstate. A round that a resumed server repeats is a release like any other:
    the noise of a real client is fresh.

    Args:
        bounds: what the client allows.
        file: the record; it is continued where it exists.

    Raises:
        ConfigError: the record cannot be read; without it nothing is known about the past.
    """

    def __init__(self, bounds: ClientPrivacyConfig, file: Path) -> None:
        self._bounds = bounds
        self._file = file
        self._ledger = Ledger(bounds.delta)
        self._runs: set[str] = set()
        try:
            lines = read_whole_lines(file)
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                self._count(entry["run"], ClusteringMechanism(**entry["noise"]))
            except (ValueError, TypeError, KeyError):
                raise ConfigError(f"{file}, line {number}: no record of a release") from None

    @property
    def ledger(self) -> Ledger:
        """All releases so far."""
        return self._ledger

    def check(self, config: Config) -> None:
        """Refuses a run that asks for more than this client allows.

        Args:
            config: of a run whose clients share centroids.

        Raises:
            ConfigError: names the key, and what this client allows.
        """
        k_min, least = config.privacy.k_min, self._bounds.k_min
        if k_min < least:
            raise ConfigError(f"privacy.k_min={k_min}: this client asks for at least {least}")
        bounds = {"epsilon": self._bounds.epsilon, "total_epsilon": self._bounds.total_epsilon}
        given = [f"privacy.{name}={most:g}" for name, most in bounds.items() if most is not None]
        if not given:
            return
        if config.clustering.name != "private":
            raise ConfigError(
                f"clustering={config.clustering.name}: must be private with this client, "
                f"which allows {given[0]}"
            )
        self._check_epsilon(config)

    def release(self, config: Config, round_: int) -> bool:
        """Writes down a release that is about to be made; False: it must not be, all is spent.

        Raises:
            OSError: it cannot be written down; then nothing may be sent.
        """
        mechanism, run = _mechanism(config), _run(config)
        if not self._may_release(mechanism):
            return False
        line = {"run": run, "round": round_, "noise": asdict(mechanism)}
        append_durably(self._file, (json.dumps(line) + "\n").encode())
        self._count(run, mechanism)
        return True

    def _check_epsilon(self, config: Config) -> None:
        mechanism, bounds = _mechanism(config), self._bounds
        cost = spent({mechanism: 1}, bounds.delta)
        if bounds.epsilon is not None and cost > bounds.epsilon:
            raise ConfigError(
                f"privacy.epsilon={mechanism.epsilon:g} at privacy.delta={mechanism.delta:g}: "
                f"one release costs epsilon {cost:.3g} at this client's privacy.delta="
                f"{bounds.delta:g}, it allows at most {bounds.epsilon:g}"
            )
        # In a run that it has taken part in it goes on without centroids.
        if not self._may_release(mechanism) and _run(config) not in self._runs:
            raise ConfigError(
                f"privacy.epsilon={mechanism.epsilon:g}: one more release would exceed this "
                f"client's privacy.total_epsilon={bounds.total_epsilon:g}, "
                f"of which {self._ledger.spent():.3g} is spent"
            )

    def _may_release(self, mechanism: ClusteringMechanism) -> bool:
        total = self._bounds.total_epsilon
        return total is None or self._ledger.may_release(mechanism, total)

    def _count(self, run: str, mechanism: ClusteringMechanism) -> None:
        self._ledger = self._ledger.released(mechanism)
        self._runs.add(run)


def _mechanism(config: Config) -> ClusteringMechanism:
    assert config.privacy.epsilon is not None
    return calibrate(config.privacy.epsilon, config.privacy.delta)


def _run(config: Config) -> str:
    """Tells runs of different configurations apart."""
    return hashlib.sha256(config.to_json().encode()).hexdigest()[:16]
