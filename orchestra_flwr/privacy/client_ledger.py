"""A client's own bounds on private releases, and the record of all that it made."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from orchestra_flwr.config import ConfigError, Section
from orchestra_flwr.privacy.accounting import ClusteringMechanism, spent
from orchestra_flwr.privacy.release_record import ReleaseRecord, RoundNumber

if TYPE_CHECKING:  # it imports torch, for which --help must not wait
    from orchestra_flwr.privacy.release import Release


class BudgetSpentError(ConfigError):
    """A run that asks for more than is left of `privacy.total_epsilon`."""


class ClientBounds(Section):
    """What a client allows, whatever its server asks for."""

    k_min: int = Field(ge=1)  # images that a released row stands for, at least
    epsilon: float | None = Field(ge=1e-4)  # most for one release, at delta; None: as a run says
    total_epsilon: float | None = Field(ge=1e-4)  # most for all releases of all runs; None: any
    delta: float = Field(ge=1e-12, lt=1)


@dataclass(frozen=True)
class RunRelease:
    """A line of the record: one release."""

    run: str
    round: RoundNumber
    noise: ClusteringMechanism


class ClientLedger:
    """A client's bounds and the record of what it ever released, over all runs and servers.

    The record's file is continued where it exists.

    A line is on the disk before the client computes the release. A round that a resumed server
    repeats counts again: the noise of a real client is fresh.

    Raises:
        ConfigError: the record cannot be read or is damaged.
    """

    def __init__(self, file: Path, bounds: ClientBounds) -> None:
        self._bounds = bounds
        self._record = ReleaseRecord(file, RunRelease)

    @property
    def releases(self) -> Mapping[ClusteringMechanism, int]:
        """How many releases there were so far, by the noise of one."""
        return Counter(entry.noise for entry in self._record.entries)

    def check(self, run: str, release: "Release", images: int) -> None:
        """Refuses a run that asks for more than this client, with so many images, allows.

        Raises:
            ConfigError: names the key, and what this client allows; a
                :class:`BudgetSpentError` where all releases together would exceed it.
        """
        release.check_images(images)
        mechanism = release.mechanism  # even without bounds: the library it needs may be missing
        bounds, k_min = self._bounds, release.min_images
        if k_min is not None and k_min < bounds.k_min:
            raise ConfigError(
                f"privacy.k_min={k_min}: this client asks for at least {bounds.k_min}"
            )
        limits = {"epsilon": bounds.epsilon, "total_epsilon": bounds.total_epsilon}
        texts = [f"privacy.{name}={limit:g}" for name, limit in limits.items() if limit is not None]
        if not texts:
            return
        if mechanism is None:
            raise ConfigError(
                f"privacy.epsilon: the run's {release.label} must be differentially private with "
                f"this client, which allows {texts[0]}"
            )
        self._check_one_release(mechanism)
        self._check_total(run, mechanism)

    def lacks(self, round_: int, mechanism: ClusteringMechanism) -> bool:
        """Whether the record lacks a release with this noise in this round, which a server used.

        Then the record was removed or replaced by an older copy. The run's name is not compared: it
        may change when a run is resumed.
        """
        entries = self._record.entries
        return not any(entry.round == round_ and entry.noise == mechanism for entry in entries)

    def release(self, run: str, round_: int, mechanism: ClusteringMechanism) -> bool:
        """Records a release that is about to be made; False: it would exceed `total_epsilon`.

        Raises:
            OSError: it cannot be recorded; then nothing may be sent.
        """
        if not self._may_release(mechanism):
            return False
        self._record.append(RunRelease(run, round_, mechanism))
        return True

    def _check_one_release(self, mechanism: ClusteringMechanism) -> None:
        limit, delta = self._bounds.epsilon, self._bounds.delta
        cost = spent({mechanism: 1}, delta)
        if limit is not None and cost > limit:
            raise ConfigError(
                f"privacy.epsilon={mechanism.epsilon:g} at privacy.delta={mechanism.delta:g}: "
                f"one release costs epsilon {cost:.3g} at this client's privacy.delta={delta:g}, "
                f"it allows at most {limit:g}"
            )

    def _check_total(self, run: str, mechanism: ClusteringMechanism) -> None:
        # A client that spends all in the middle of a run stays in it, and releases nothing more.
        if self._may_release(mechanism) or any(e.run == run for e in self._record.entries):
            return
        raise BudgetSpentError(
            f"privacy.epsilon={mechanism.epsilon:g}: one more release would exceed this "
            f"client's privacy.total_epsilon={self._bounds.total_epsilon:g}, "
            f"of which {spent(self.releases, self._bounds.delta):.3g} is spent"
        )

    def _may_release(self, mechanism: ClusteringMechanism) -> bool:
        total, releases = self._bounds.total_epsilon, Counter(self.releases)
        releases[mechanism] += 1
        return total is None or spent(releases, self._bounds.delta) <= total
