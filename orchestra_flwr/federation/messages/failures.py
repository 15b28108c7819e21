"""What a client may say of its own failure: one word of a fixed set.

The text of an error names files, folders and classes of the machine on which it was raised. In a
deployment that is another party's machine, so only the word travels; the text stays on the client's
terminal. A simulation runs for one user, and its errors travel with their text.
"""

from enum import Enum
from typing import Self

from flwr.app import Error

from orchestra_flwr.flower.fleet import MEANINGS as MEANINGS_OF_FLOWERS

MAX_ERROR_TEXT = 1000  # characters of a text from elsewhere


class Failure(Enum):
    """Why a client did not do what it was asked for: code of Flower's error, and what is shown."""

    FAILED = 101, "an error that it did not expect"
    OUT_OF_MEMORY = 102, "its memory was not enough"
    DATA_UNREADABLE = 103, "its images cannot be read"
    DATA_UNSUITABLE = 104, "its images do not have the labels that the method learns from"
    TOO_FEW_IMAGES = 105, "it has fewer images than federation.min_images"
    OTHER_VERSION = 106, "install the same version of orchestra_flwr and of plug-ins on both"
    PLUGINS_REFUSED = 107, "it does not allow the run's plugins"
    SETTINGS_REFUSED = 108, "the run's configuration does not fit it"
    PRIVACY_REFUSED = 109, "a release or a sum that it does not allow"
    PRIVACY_BUDGET_SPENT = 110, "its own privacy.total_epsilon or privacy.updates_epsilon is spent"
    OTHER_APP = 111, "it runs no other app than that of its own installation"
    OTHER_NAME = 112, "its key is registered under another name"
    DISK_FULL = 113, "no room is left on its disk"
    WEIGHTS_MISSING = 114, "it has lost the frozen weights, which it is sent again"

    def __init__(self, code: int, meaning: str) -> None:
        self.code, self.meaning = code, meaning

    @property
    def word(self) -> str:
        """What is sent."""
        return self.name.lower()

    @property
    def line(self) -> str:
        """What the server shows."""
        return f"{self.word} ({self.meaning}); details are on the client's terminal"

    @classmethod
    def of(cls, code: int) -> Self | None:
        """The failure with this code; None: the error is one of Flower's own."""
        return next((failure for failure in cls if failure.code == code), None)

    @classmethod
    def named(cls, word: str) -> Self:
        """The failure that a client named; any other word counts as `FAILED`."""
        return next((failure for failure in cls if failure.word == word), cls.FAILED)


def to_error(failure: Failure) -> Error:
    """The error that a client of a deployment sends: no text but the failure's word."""
    return Error(failure.code, failure.word)


def describe_error(error: Error) -> str:
    """What the server shows of an error: its meaning, or its text where it has one of its own."""
    failure = Failure.of(error.code)
    if failure is not None and (error.reason or failure.word) == failure.word:
        return failure.line
    if error.code in MEANINGS_OF_FLOWERS:
        return MEANINGS_OF_FLOWERS[error.code]
    return as_shown(error.reason or f"error code {error.code}")


def as_shown(text: str) -> str:
    """A text, perhaps a stranger's, as a line that is safe in a terminal and a record."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_ERROR_TEXT])
