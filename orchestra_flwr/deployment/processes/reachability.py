"""Whether and how a client can reach its server, in words that say what to do."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from orchestra_flwr import __version__

TIMEOUT = 10.0


class UnreachableError(ConnectionError):
    """The server cannot be used, now or as this client is set up; the text says what to do."""


def check_server(server: str, ca: Path | None) -> None:
    """Asks the server's gate for its health, as the client's Flower process is going to reach it.

    Args:
        server: HOST:PORT.
        ca: the certificate that signed the server's; None for plain text.

    Raises:
        UnreachableError: no answer, a certificate that is not to be trusted, plain text against
            TLS, or another version of this software.
    """
    try:
        answer = _get(server, ca)
    except httpx.HTTPError as error:
        raise UnreachableError(_explain(error, server, ca)) from None
    except httpx.InvalidURL as error:
        raise UnreachableError(f"{server} is no address: {error}") from None
    if answer.status_code >= 500:
        raise UnreachableError(f"{server} is starting or stopping")
    try:
        version = answer.json()["version"]
    except (ValueError, KeyError, TypeError):
        raise UnreachableError(f"{server} answers, but is no server of orchestra_flwr") from None
    if version != __version__:
        raise UnreachableError(
            f"{server} runs orchestra_flwr {version}, this client {__version__}: "
            "install the same version on both"
        )


def _get(server: str, ca: Path | None) -> httpx.Response:
    # trust_env: no proxy of the environment comes between, as none does for Flower.
    if ca is None:
        return httpx.get(f"http://{server}/health", timeout=TIMEOUT, trust_env=False)
    trusted = ssl.create_default_context(cafile=str(ca))
    return httpx.get(f"https://{server}/health", timeout=TIMEOUT, verify=trusted, trust_env=False)


def _explain(error: httpx.HTTPError, server: str, ca: Path | None) -> str:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            f"{server} shows a certificate that {ca} does not vouch for "
            f"({_reason(text)}): if the server's keys were made anew, copy its ca.crt again; "
            "if not, somebody else is answering"
        )
    if "WRONG_VERSION_NUMBER" in text or "record layer" in text.lower():
        return f"{server} speaks plain text and this client TLS: one of both is set up otherwise"
    if ca is None and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return (
            f"{server} does not speak plain text: leave out insecure=true and put its ca.crt "
            "into the folder of keys"
        )
    if isinstance(error, httpx.TimeoutException):
        return f"{server} does not answer within {TIMEOUT:.0f} s"
    return f"{server} cannot be reached ({text})"


def _reason(text: str) -> str:
    return text.partition("failed: ")[2].partition(" (_ssl")[0] or text
