"""What the server's app makes of a SuperLink that does not answer in time."""

import signal

import httpx
import pytest

from orchestra_flwr.flower import patience
from orchestra_flwr.flower.patience import explained, patient_retries
from orchestra_flwr.flower.streaming_grid import EngineStoppedError

REQUEST = httpx.Request("POST", "https://127.0.0.1/v1/runtime/push-messages")


def refused(status, request=REQUEST):
    """What Flower's client raises for such an answer."""
    response = httpx.Response(status, request=request)
    return httpx.HTTPStatusError(f"{status}", request=request, response=response)


class Answers:
    """A request that fails with each of these errors, one after the other, and then succeeds."""

    def __init__(self, *errors):
        self.errors = list(errors)

    def __call__(self):
        if self.errors:
            raise self.errors.pop(0)
        return "answered"


@pytest.fixture
def lines():
    return []


@pytest.fixture
def retries(lines):
    made = patient_retries(lines.append)
    made.wait_function = lambda seconds: None
    return made


@pytest.mark.parametrize(
    "error",
    [
        httpx.ReadTimeout("", request=REQUEST),
        httpx.ConnectTimeout("_ssl.c:989: The handshake operation timed out", request=REQUEST),
        httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred", request=REQUEST),
        refused(503),
    ],
)
def test_what_overload_does_is_tried_again(retries, lines, monkeypatch, error):
    assert retries.invoke(Answers(error, error)) == "answered"
    assert lines == []  # the first seconds are worth no line
    monkeypatch.setattr(patience, "NOTICE_SECONDS", -1)
    assert retries.invoke(Answers(error, error)) == "answered"
    assert lines == [
        "Flower's SuperLink has not answered for 0 s, it may be overloaded: "
        "trying again for 10 minutes",
        "Flower's SuperLink answers again after 0 s",
    ]


@pytest.mark.parametrize(("text", "said"), [("timed out", "timed out"), ("", "ReadTimeout")])
def test_it_is_given_up_after_some_minutes(retries, text, said):
    retries.max_time = 0
    error = httpx.ReadTimeout(text, request=REQUEST)
    with (
        pytest.raises(EngineStoppedError, match=rf"not answered for 10 minutes \({said}\)"),
        explained(),
    ):
        retries.invoke(Answers(error))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (refused(401), "Flower's SuperLink has ended this run"),
        (refused(403), "Flower's SuperLink has ended this run"),
        (refused(413), r"Flower's SuperLink refuses a request \(413\)"),
    ],
)
def test_what_is_refused_is_an_error_and_no_signal(retries, monkeypatch, error, line):
    """To a 401 Flower's own retries answer with a SIGINT, which ends the process without a word."""
    monkeypatch.setattr(signal, "raise_signal", pytest.fail)
    monkeypatch.setattr("os.kill", pytest.fail)
    with pytest.raises(EngineStoppedError, match=line), explained():
        retries.invoke(Answers(error))


def test_what_others_refuse_is_not_taken_for_the_superlinks(retries):
    """A tracker may be asked while the app is connected."""
    elsewhere = httpx.Request("GET", "https://example.org/")
    errors = [refused(401, elsewhere), httpx.ReadTimeout("late", request=elsewhere)]
    for error in errors:
        with pytest.raises(type(error)), explained():
            raise error
