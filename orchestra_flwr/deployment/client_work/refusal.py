"""Why a client does not take part: one word for its server, a text for its own terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.plugins import PluginError
from orchestra_flwr.privacy.client_ledger import BudgetSpentError
from orchestra_flwr.privacy.secure_sums import SumRefusedError
from orchestra_flwr.training.needed_memory import TooLargeError


class RefusalError(ValueError):
    """This client cannot take part in a run; the text, for this machine alone, says what to do."""

    def __init__(self, text: str, failure: Failure) -> None:
        super().__init__(text)
        self.failure = failure


@contextmanager
def as_refusal(failure: Failure) -> Iterator[None]:
    """Turns what the block refuses into a :class:`RefusalError` of one kind.

    Raises:
        RefusalError: a setting, a plug-in or a file that cannot be used.
    """
    try:
        yield
    except BudgetSpentError as error:
        raise RefusalError(str(error), Failure.PRIVACY_BUDGET_SPENT) from error
    except (ConfigError, PluginError, OSError) as error:
        raise RefusalError(str(error), failure) from error


def failure_of(error: Exception) -> Failure:
    """The word for an exception that came out of this client's work."""
    if isinstance(error, RefusalError):
        return error.failure
    if isinstance(error, SumRefusedError):
        return Failure.PRIVACY_REFUSED
    if isinstance(error, torch.OutOfMemoryError | MemoryError | TooLargeError):
        return Failure.OUT_OF_MEMORY
    if isinstance(error, PluginError):
        return Failure.OTHER_VERSION
    if isinstance(error, ConfigError):
        return Failure.SETTINGS_REFUSED
    return Failure.FAILED
