"""How often one client made a private release, and what that has cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from orchestra_flwr.privacy.accounting import ClusteringMechanism, check_budget, spent


@dataclass(frozen=True)
class Ledger:
    """What one client released, by whichever mechanisms.

    Immutable: `released` returns a new ledger. It holds whole numbers and mechanisms; every epsilon
    is computed from them.

    Attributes:
        delta: the probability with which all releases together may cost more than `spent`.
        releases: how many there were so far, by the noise of one.

    Raises:
        ValueError: delta is out of its range, or a number of releases is not a whole number of at
            least 0.
    """

    delta: float
    releases: Mapping[ClusteringMechanism, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_budget(1.0, self.delta)
        for times in self.releases.values():
            if type(times) is not int or times < 0:
                raise ValueError(f"releases must be at least 0, not {times!r}")
        # A copy, which no caller can change.
        object.__setattr__(self, "releases", MappingProxyType(dict(self.releases)))

    def released(self, mechanism: ClusteringMechanism) -> Ledger:
        """The ledger after one more release."""
        times = self.releases.get(mechanism, 0) + 1
        return Ledger(self.delta, {**self.releases, mechanism: times})

    def spent(self) -> float:
        """The epsilon of all releases; 0 before the first."""
        return spent(self.releases, self.delta)

    def may_release(self, mechanism: ClusteringMechanism, total_epsilon: float) -> bool:
        """Whether one more release stays within `total_epsilon`.

        Raises:
            ValueError: the total is not positive and finite.
        """
        check_budget(total_epsilon, self.delta)
        return self.released(mechanism).spent() <= total_epsilon
