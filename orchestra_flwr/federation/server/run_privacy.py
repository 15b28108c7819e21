"""What a run promises about privacy: its secret, its ledger of releases, and what is reported."""

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from orchestra_flwr.config import Config
from orchestra_flwr.federation.server.checkpoint import noise_key
from orchestra_flwr.federation.server.round import Round
from orchestra_flwr.privacy.release import Release
from orchestra_flwr.privacy.server_ledger import ServerLedger
from orchestra_flwr.privacy.updates import add_noisy_round, composed_epsilon


@dataclass
class RunPrivacy:
    """Keeps account of noisy averages and of private releases, over all sessions of a run.

    Raises:
        FederationError: the secret cannot be written or read.
        ConfigError: the ledger cannot be read.
    """

    config: Config
    release: Release | None  # what clients contribute beside their state; None: nothing
    folder: Path  # of the checkpoint, where the secret and the ledger are
    _: KW_ONLY
    # Says what decides simulated clients' features; None: real ones, with fresh noise in a round
    # that they repeat
    made_with: Callable[[], str] | None
    signed: bool  # whether clients have registered keys, and sign with them
    message: Callable[[str], None]  # shows a line to a person

    def __post_init__(self) -> None:
        privacy = self.config.privacy
        self._noisy = privacy.noise_multiplier > 0
        self._sums = privacy.secure_aggregation
        # The run's secret, from which noise and cohorts are drawn; None: the server adds no noise
        self.key = noise_key(self.folder) if self._noisy and not self._sums else None
        if self._sums:
            mode = "; ".join(f"{name}: {value}" for name, value in self._mode.items())
            self.message(f"secure aggregation: the server sees sums of updates alone ({mode})")
        self._ledger: ServerLedger | None = None
        if self.release and self.release.mechanism is not None:
            self._ledger = ServerLedger(
                self.folder / "releases.jsonl",
                self.release.mechanism,
                delta=privacy.delta,
                total_epsilon=privacy.total_epsilon,
                replays=self.made_with is not None,
            )

    def exhausted(self, clients: Collection[str], round_: int) -> frozenset[str]:
        """Those of the clients that have spent `privacy.total_epsilon`."""
        if self._ledger is None:
            return frozenset()
        return frozenset(self._ledger.exhausted(clients, round_, self._made_with))

    def before(self, round_: Round) -> None:
        """Records what a round may release before anybody is asked, and warns where it must.

        So the ledger never lacks what may have left a client.
        """
        self._check_delta(round_)
        if self._ledger is None or self.release is None:
            return
        if round_.number < self.release.first_round:
            return
        spent = [client for client in round_.cohort if client in round_.exhausted]
        asked = [client for client in round_.cohort if client not in round_.exhausted]
        self._ledger.ask(round_.number, asked, self._made_with)
        if spent:
            self.message(
                f"round {round_.number}: {len(spent)} of {len(round_.cohort)} clients have spent "
                f"privacy.total_epsilon and send no {self.release.label}"
            )

    def drawn(self, before: list[list[int]], round_: Round) -> list[list[int]]:
        """[clients, cohort, rounds] of all rounds that ended with noise, this one as well."""
        if not (self._noisy and round_.trains and round_.cohort):
            return before
        # Noise in a sum protects against the server, from which drawing a cohort hides nobody.
        cohort = round_.nodes if self._sums else round_.cohort
        return add_noisy_round(before, len(round_.nodes), len(cohort))

    def metrics(self, drawn: list[list[int]]) -> dict[str, Any]:
        """What is known about privacy after a round."""
        privacy: dict[str, Any] = {"updates": update_privacy(self.config, drawn)}
        if self._ledger and self.release:
            privacy[self.release.label] = self._ledger.metrics()
        return privacy

    def summary(self, drawn: list[list[int]]) -> dict[str, Any]:
        """The entries of `summary.json`."""
        entries: dict[str, Any] = {"privacy": self.metrics(drawn)}
        if self._sums:
            entries["secure_aggregation"] = self._mode
        if self.release:
            entries["released"] = self.release.label
        if self.release and self.release.exposes:
            entries["not_private"] = f"{self.release.exposes} left the clients"
        if self._ledger:
            entries["epsilon_spent"] = self._ledger.spent()
        return entries

    @property
    def _made_with(self) -> str:
        return self.made_with() if self.made_with else ""

    @property
    def _mode(self) -> dict[str, str]:
        """How sums are made secure. Only a client itself knows whether it checks others' keys."""
        noise = "a share of each client" if self._noisy else "none"
        return {"noise": noise, "keys": "signed" if self.signed else "not signed"}

    @property
    def is_accounted(self) -> bool:
        """Whether clients make private releases."""
        return self._ledger is not None

    def _check_delta(self, round_: Round) -> None:
        """Warns if delta is too large for the clients here, whose number may have grown."""
        delta, clients = self.config.privacy.delta, len(round_.nodes)
        if self._noisy and delta >= 1 / clients:
            self.message(
                f"round {round_.number}: privacy.delta={delta:g} protects none of {clients} "
                f"clients, it must be below {1 / clients:.3g}: this run is not covered by "
                "differential privacy any more"
            )


def update_privacy(config: Config, drawn: list[list[int]]) -> dict[str, float | str] | str:
    """What differential privacy the encoders of the rounds so far have.

    It protects a client with all its images; where clients also make private releases it protects
    only a single image, since releases protect no more and later updates depend on them. Its
    epsilon and that of the releases then add up.
    """
    privacy = config.privacy
    if privacy.clip is None or not drawn:
        return "not covered by differential privacy"
    most = max(clients for clients, _, _ in drawn)
    if privacy.noise_multiplier > 0 and privacy.delta >= 1 / most:
        # Only real clients can become more than the configuration says.
        return (
            f"not covered by differential privacy: privacy.delta={privacy.delta:g} must be below "
            f"1 / {most}, since {most} clients were there"
        )
    return {
        "epsilon": composed_epsilon(privacy.noise_multiplier, drawn, privacy.delta),
        "delta": privacy.delta,
        "clip": privacy.clip,
        "noise_multiplier": privacy.noise_multiplier,
        "protects": "a whole client" if privacy.epsilon is None else "an image",
    }
