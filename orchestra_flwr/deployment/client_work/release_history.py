"""A real client's own account of what it released, whatever its server says."""

from pathlib import Path

from flwr.app import ConfigRecord

from orchestra_flwr.config import Config
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.client_work.refusal import RefusalError, as_refusal
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import CONTRIBUTED
from orchestra_flwr.fingerprints import fingerprint_of
from orchestra_flwr.methods import release_of
from orchestra_flwr.privacy.client_ledger import ClientLedger


class ReleaseHistory:
    """A client's private releases: its bounds on them, and their record, releases.jsonl.

    Raises:
        ConfigError: the record cannot be read.
    """

    def __init__(self, config: ClientConfig, folder: Path) -> None:
        self._file = folder / "releases.jsonl"
        self._ledger = ClientLedger(self._file, config.privacy)
        self._is_bounded = config.privacy.total_epsilon is not None

    def check(self, received: Config, images: int) -> None:
        """Refuses a run whose releases exceed what this client, with so many images, allows.

        Raises:
            RefusalError: names the key, and what this client allows.
        """
        if (release := release_of(received)) is not None:
            with as_refusal(Failure.PRIVACY_REFUSED):
                self._ledger.check(_run_digest(received), release, images)

    def missing(self, received: Config, task: ConfigRecord) -> str | None:
        """Compares the record with what the server says that it used of this client.

        A server that says something wrong, or nothing, gains nothing from this client by it.

        Returns:
            A line about a release that is not in the record; None: there is none.

        Raises:
            RefusalError: there is one, so nobody knows what is left of `privacy.total_epsilon`.
        """
        release = release_of(received)
        mechanism = release.mechanism if release else None
        if release is None or mechanism is None or CONTRIBUTED not in task:
            return None
        used = int(task[CONTRIBUTED])  # type: ignore[arg-type]
        if not self._ledger.lacks(used, mechanism):
            return None
        line = (
            f"the server has this client's {release.label} of round {used}, which "
            f"{self._file} does not hold: it was removed, or is an older copy"
        )
        if self._is_bounded:
            raise RefusalError(
                f"{line}; put it back as it was: without it nobody knows what is left of "
                "privacy.total_epsilon",
                Failure.PRIVACY_REFUSED,
            )
        return line

    def record(self, received: Config, task: ConfigRecord) -> str:
        """Records the round's release before the client works on it.

        Returns:
            "", or why nothing is released though it is due: then `contribute` in the task is false.

        Raises:
            OSError: it cannot be recorded.
        """
        release = release_of(received)
        round_ = int(task["round"])  # type: ignore[arg-type]
        if release is None or round_ < release.first_round:
            return ""
        if not task["contribute"]:
            return "privacy.total_epsilon is spent"
        mechanism = release.mechanism
        if mechanism and not self._ledger.release(_run_digest(received), round_, mechanism):
            task["contribute"] = False
            return "this client's own privacy.total_epsilon is spent"
        return ""


def _run_digest(config: Config) -> str:
    """16 hexadecimal digits that differ for runs of different configurations."""
    return fingerprint_of(config.to_json())
