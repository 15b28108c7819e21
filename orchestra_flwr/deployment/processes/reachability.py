"""Whether and how a client can reach its server, in words that say what to do."""

import json
import ssl
import time
from pathlib import Path

import httpx

from orchestra_flwr import __version__
from orchestra_flwr.deployment.keys.key_files import COMMAND
from orchestra_flwr.flower.fleet import MAX_CLOCK_DIFFERENCE

TIMEOUT = 10.0
MAX_ANSWER = 4096  # bytes that are read of an answer; a server's has some hundred


class UnreachableError(ConnectionError):
    """The server cannot be used, now or as this client is set up; the text says what to do."""


def check_server(server: str, ca: Path | None, way_to_tls: str) -> float:
    """Asks the gate at HOST:PORT for its health, as the client's Flower process is to reach it.

    `ca` is None for plain text; `way_to_tls` then says what to do where the server speaks TLS.

    Returns:
        The seconds by which this machine's clock is ahead of the server's.

    Raises:
        UnreachableError: no answer, a certificate that is not to be trusted, plain text against
            TLS, another version of this software, or a clock that is wrong.
    """
    try:
        status, answer = _get(server, ca)
    except httpx.HTTPError as error:
        raise UnreachableError(_explain(error, server, ca, way_to_tls)) from None
    except httpx.InvalidURL as error:
        raise UnreachableError(f"{server} is no address: {error}") from None
    if status >= 500:
        raise UnreachableError(f"{server} is starting or stopping")
    try:
        about = json.loads(answer)
        version, server_time = about["version"], float(about["time"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise UnreachableError(f"{server} answers, but is no server of orchestra_flwr") from None
    if version != __version__:
        raise UnreachableError(
            f"{server} runs orchestra_flwr {version}, this client {__version__}: "
            "install the same version on both"
        )
    ahead = time.time() - server_time
    if not abs(ahead) <= MAX_CLOCK_DIFFERENCE:  # beyond, messages would seem to have expired
        raise UnreachableError(f"{clock_difference(ahead, server)}: set the one that is wrong")
    return ahead


def clock_difference(ahead: float, server: str) -> str:
    """By how many seconds this machine's clock is ahead of the server's, in words."""
    way = "ahead of" if ahead > 0 else "behind"
    return f"this machine's clock is {abs(ahead):.0f} s {way} that of {server}"


def _get(server: str, ca: Path | None) -> tuple[int, bytes]:
    """The status of the answer, and its first raw bytes, as far as they come in time."""
    url = f"{'http' if ca is None else 'https'}://{server}/health"
    trusted = True if ca is None else ssl.create_default_context(cafile=ca)
    until, body = time.monotonic() + TIMEOUT, b""
    # trust_env: no proxy of the environment comes between, as none does for Flower's programs.
    with httpx.stream("GET", url, timeout=TIMEOUT, verify=trusted, trust_env=False) as answer:
        for part in answer.iter_raw():
            body += part
            if len(body) > MAX_ANSWER or time.monotonic() > until:
                break
    return answer.status_code, body


def _explain(error: httpx.HTTPError, server: str, ca: Path | None, way_to_tls: str) -> str:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        reason = text.partition("failed: ")[2].partition(" (_ssl")[0] or text
        return _distrusted(reason, server, ca)
    if "WRONG_VERSION_NUMBER" in text or "record layer" in text.lower():
        return f"{server} speaks plain text and this client TLS: set up both in the same way"
    if ca is None and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return f"{server} does not speak plain text: {way_to_tls}"
    if isinstance(error, httpx.TimeoutException):
        return f"{server} does not answer within {TIMEOUT:.0f} s"
    return f"{server} cannot be reached ({text})"


def _distrusted(reason: str, server: str, ca: Path | None) -> str:
    today, host = f"{time.strftime('%Y-%m-%d')}, this machine's date", server.rpartition(":")[0]
    if "expired" in reason:
        return (
            f"{server} shows a certificate that has expired by {today}: if the date is right, run "
            f"{COMMAND} server at the server and start it again; if not, set the clock"
        )
    if "not yet valid" in reason:
        return f"{server} shows a certificate that is not yet valid on {today}: set the clock"
    if "mismatch" in reason:
        return (
            f"{server} shows a certificate that is not for {host}: use a name or address that it "
            f"is for, or run {COMMAND} server host=... with every name at the server and start it "
            "again"
        )
    return (
        f"{server} shows a certificate that {ca} does not vouch for ({reason}): if the server's "
        "keys were made anew, copy its ca.crt again; if not, somebody else is answering"
    )
