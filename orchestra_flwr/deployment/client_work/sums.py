"""A real client's part in secure aggregation, and what it promises the client."""

from collections.abc import Callable
from pathlib import Path

from flwr.app import RecordDict

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.client_work.refusal import RefusalError, as_refusal
from orchestra_flwr.deployment.keys.peers import FILE, Signatures
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.client.secure_answers import SecureAnswers
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import CONFIG, SECURE_STAGE
from orchestra_flwr.privacy.secure_sums import Confirmations
from orchestra_flwr.privacy.sum_ledger import SumLedger


class Sums:
    """The sums that a client takes part in; their secrets are in its memory alone.

    `folder` holds the records of its updates, and of the lists of clients that it confirmed.

    Raises:
        ConfigError: a record cannot be read.
    """

    def __init__(
        self, config: ClientConfig, name: str, folder: Path, signatures: Signatures
    ) -> None:
        self._least = config.privacy.min_cohort
        self._peers = signatures.peers
        bounds = config.privacy
        self._ledger = SumLedger(folder / "noisy_sums.jsonl", bounds.updates_epsilon, bounds.delta)
        try:
            confirmations = Confirmations(folder / "sums.jsonl")
        except ValueError as error:
            raise ConfigError(f"{error}; put it back as it was") from None
        self._answers = SecureAnswers(
            name, self._least, signatures.sign, signatures.verify, confirmations
        )

    @property
    def promise(self) -> str:
        """A line about whom a sum hides this client's update from."""
        sums = f"the server sees sums of {self._least} and more clients' updates"
        if self._peers:
            few = (self._least - 1) // 3
            return (
                f"{sums}, whatever it does, while at most {few} of those clients are on its side "
                f"({FILE}: {self._peers} clients)"
            )
        return f"{sums}, if it follows the protocol: without {FILE} it could invent the others"

    def check(self, received: Config) -> None:
        """Refuses a run whose next round would reveal more of this client's updates than it allows.

        Raises:
            RefusalError: names the key, and what this client allows.
        """
        privacy = received.privacy
        with as_refusal(Failure.PRIVACY_REFUSED):
            self._ledger.check(privacy.noise_multiplier * privacy.secure_aggregation)

    def answer(
        self,
        received: Config,
        content: RecordDict,
        client: Callable[[], OrchestraClient],
        report: Callable[[str], None],
    ) -> RecordDict:
        """The reply to a task of a stage.

        Raises:
            RefusalError: the run has no secure aggregation, or as :meth:`check`.
            OSError: the update cannot be recorded.
            SumRefusedError: as :meth:`SecureAnswers.answer`, like other errors.
        """
        if not received.privacy.secure_aggregation:
            raise RefusalError(
                "the server asks for a sum in a run with privacy.secure_aggregation=false",
                Failure.PRIVACY_REFUSED,
            )
        task = content.config_records[CONFIG]
        round_, stage = int(str(task["round"])), str(task[SECURE_STAGE])
        if stage == "input":
            self.check(received)
            report(f"round {round_}: training")
        reply = self._answers.answer(content, client)
        if stage == "input" and self._answers.current is not None:
            current, noise = self._answers.current, received.privacy.noise_multiplier
            if noise > 0:
                self._ledger.add(current.occasion.run, round_, noise)
            noisy = f", with noise (privacy.noise_multiplier={noise:g})" * (noise > 0)
            report(f"round {round_}: sent its update masked{noisy}, for a sum of {current.count} "
                   "clients")  # fmt: skip
        if stage == "unmask":
            report(f"round {round_}: the sum was opened")
        return reply
