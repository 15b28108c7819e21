import pytest
from flwr.app import Error
from flwr.common.constant import ErrorCode

from orchestra_flwr.federation.messages.failures import (
    MAX_ERROR_TEXT,
    Failure,
    describe_error,
    to_error,
)


@pytest.mark.parametrize("failure", Failure)
def test_a_failure_travels_as_a_word_and_is_shown_with_its_meaning(failure):
    error = to_error(failure)
    assert error.reason == failure.word
    assert Failure.of(error.code) is failure
    assert describe_error(error) == failure.line


def test_no_failure_has_a_code_of_flowers():
    flowers = {code for name, code in vars(ErrorCode).items() if name.isupper()}
    assert not flowers & {failure.code for failure in Failure}


def test_a_word_of_a_newer_client_is_shown_as_it_is_and_counts_as_a_failure():
    """Its code and its meaning are not known here."""
    newer = max(failure.code for failure in Failure) + 1
    assert describe_error(Error(newer, "too_hot")) == "too_hot"
    assert Failure.of(newer) is None and Failure.named("too_hot") is Failure.FAILED


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (ErrorCode.MESSAGE_UNAVAILABLE, "no longer kept"),
        (ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "too late"),
        (ErrorCode.NODE_UNAVAILABLE, "was ended"),
        (ErrorCode.CLIENT_APP_CRASHED, "process for the work ended"),
    ],
)
def test_flowers_errors_are_shown_in_words_of_a_user(code, shown):
    words = describe_error(Error(code, "Error: failed to report a heartbeat within 2 x"))
    assert shown in words
    assert "heartbeat" not in words


def test_the_text_of_a_simulated_clients_error_is_shown():
    """With control characters replaced, and not all of a very long one."""
    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "a loss is\x1b[2J nan")
    assert describe_error(error) == "a loss is?[2J nan"
    long = describe_error(Error(Failure.FAILED.code, "x" * 10 * MAX_ERROR_TEXT))
    assert len(long) == MAX_ERROR_TEXT
