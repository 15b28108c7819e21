"""Who released private centroids how often, and what that has cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from orchestra_flwr.privacy.accounting import ClusteringMechanism, check_budget, spent


@dataclass(frozen=True)
class Ledger:
    """How often each named client released private centroids, all by one mechanism.

    Immutable: `released` gives a new ledger. Integers and the mechanism are all that it holds;
    every epsilon is worked out from them, so that it survives JSON exactly.

    Attributes:
        mechanism: the noise of one release.
        releases: releases so far by client; who is absent has none.

    Raises:
        ValueError: a number of releases is not a whole number of at least 0.
    """

    mechanism: ClusteringMechanism
    releases: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, times in self.releases.items():
            if type(times) is not int or times < 0:
                raise ValueError(f"releases of {name} must be at least 0, not {times!r}")
        # A copy that nobody else can change.
        object.__setattr__(self, "releases", MappingProxyType(dict(self.releases)))

    def released(self, *names: str) -> Ledger:
        """The ledger after one more release by each of `names`."""
        releases = dict(self.releases)
        for name in names:
            releases[name] = releases.get(name, 0) + 1
        return Ledger(self.mechanism, releases)

    def spent(self, name: str) -> float:
        """The epsilon that client `name` has spent, at the mechanism's delta for all rounds."""
        return spent(self.mechanism, self.releases.get(name, 0), self.mechanism.delta)

    def worst(self) -> float:
        """The epsilon of the client that spent most; 0 before any release."""
        most = max(self.releases.values(), default=0)
        return spent(self.mechanism, most, self.mechanism.delta)

    def may_release(self, name: str, total_epsilon: float) -> bool:
        """Whether `name` stays within `total_epsilon` if it releases once more.

        Raises:
            ValueError: the total is not positive and finite.
        """
        check_budget(total_epsilon, self.mechanism.delta)
        times = self.releases.get(name, 0) + 1
        return spent(self.mechanism, times, self.mechanism.delta) <= total_epsilon

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"mechanism": asdict(self.mechanism), "releases": dict(self.releases)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Ledger:
        """The ledger that `to_dict` described.

        Raises:
            ValueError: something is missing, superfluous or out of its range.
        """
        try:
            return cls(ClusteringMechanism(**plain["mechanism"]), dict(plain["releases"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a privacy ledger: {error}") from error
