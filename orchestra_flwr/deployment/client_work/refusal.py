"""Why a client does not take part: one word for its server, a text for its own terminal."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.frozen_weights import WeightsMissingError
from orchestra_flwr.plugins import PluginError
from orchestra_flwr.privacy.client_ledger import BudgetSpentError
from orchestra_flwr.privacy.secure_sums import SumRefusedError
from orchestra_flwr.training.needed_memory import TooLargeError

# The first that fits counts: some of these classes are based on others.
WORDS = {
    (SumRefusedError,): Failure.PRIVACY_REFUSED,
    (torch.OutOfMemoryError, MemoryError, TooLargeError): Failure.OUT_OF_MEMORY,
    (PluginError,): Failure.OTHER_VERSION,
    (ConfigError,): Failure.SETTINGS_REFUSED,
    (WeightsMissingError,): Failure.WEIGHTS_MISSING,
}


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
        if line := about_full_disk(error):
            raise RefusalError(line, Failure.DISK_FULL) from error
        raise RefusalError(str(error), failure) from error


def about_full_disk(error: Exception) -> str:
    """What to do where a disk, or a user's quota of it, is full; "" for any other error."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    line = f"the disk is full ({os.strerror(error.errno)}): make room"
    if not isinstance(error.filename, str):
        return line
    # Of a folder that was made for this file alone nothing is left.
    folder = next((place for place in Path(error.filename).parents if place.is_dir()), "")
    return f"{line} in {folder}"


def failure_of(error: Exception) -> Failure:
    """The word for an exception that came out of this client's work."""
    if isinstance(error, RefusalError):
        return error.failure
    if about_full_disk(error):
        return Failure.DISK_FULL
    words = (failure for kinds, failure in WORDS.items() if isinstance(error, kinds))
    return next(words, Failure.FAILED)
