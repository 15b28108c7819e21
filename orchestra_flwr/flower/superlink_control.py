"""What a server asks of its SuperLink: to begin and end runs, and to take clients' keys.

Checked against Flower 1.41 and 1.42: the Control API, as the `flwr` command uses it.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from orchestra_flwr.flower.socket_client import LONG_TIMEOUT, TIMEOUT, connected


class SuperLinkError(RuntimeError):
    """A SuperLink refuses a request, or does not answer it; one line."""


class SuperLinkControl:
    """The Control API of the SuperLink at a socket.

    `ca` is the certificate that signed the SuperLink's; None: plain text.
    """

    def __init__(self, socket: Path, ca: Path | None) -> None:
        self._socket = socket
        self._ca = ca

    def start_run(self, app: Mapping[str, bytes]) -> int:
        """Submits an app, given as files by path; returns the number of the run.

        Raises:
            SuperLinkError: the SuperLink did not take it.
        """
        content, _ = build_fab_from_files(app)
        fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
        with self._client(LONG_TIMEOUT) as client:
            response = client.StartRun(StartRunRequest(fab=fab))
        if not response.run_id:
            raise SuperLinkError("Flower's SuperLink does not start the run (its log says why)")
        return response.run_id

    def stop_run(self, run: int) -> None:
        """Ends a run: its messages are not delivered any more.

        Raises:
            SuperLinkError: it was not ended.
        """
        with self._client() as client:
            client.StopRun(StopRunRequest(run_id=run))

    def forget_messages(self, run: int) -> None:
        """Makes the SuperLink drop what it still has of the messages of a run that is over.

        It keeps a reply that came too late to be asked for; only to list the run makes it tidy up.

        Raises:
            SuperLinkError: it does not answer.
        """
        with self._client() as client:
            client.ListRuns(ListRunsRequest(run_id=run))

    def register(self, keys: Mapping[str, bytes]) -> dict[str, str | None]:
        """Registers clients' public keys (PEM) by name; returns the objection to each, None: none.

        A key that the SuperLink has already counts as taken: an earlier answer may have been lost.
        Flower never takes a key a second time, not even one that was unregistered.

        Raises:
            SuperLinkError: the SuperLink does not answer.
        """
        with self._client() as client:
            return {name: _objection(client, key) for name, key in keys.items()}

    @contextmanager
    def _client(self, timeout: float = TIMEOUT) -> Iterator[ControlHttpClient]:
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        try:
            client = connected(
                ControlHttpClient, self._socket, self._ca, [version], timeout=timeout
            )
        except OSError as error:  # it may be replaced just now
            raise SuperLinkError(f"{self._ca} cannot be used: {error.strerror}") from error
        try:
            yield client
        except httpx.HTTPStatusError as error:
            raise SuperLinkError(f"Flower's SuperLink refuses: {_answer(error)[1]}") from error
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise SuperLinkError(f"Flower's SuperLink does not answer: {why}") from error
        finally:
            client.close()


def _objection(client: ControlHttpClient, key: bytes) -> str | None:
    try:
        client.RegisterNode(RegisterNodeRequest(public_key=key))
    except httpx.HTTPStatusError as error:
        code, text = _answer(error)
        return None if code == ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE else text
    return None


def _answer(error: httpx.HTTPStatusError) -> tuple[int, str]:
    """Flower's code of an error, 0 where there is none, and its text, in one line."""
    said = FlowerError.from_json(error.response.text)
    code, text = (said.code, said.message) if said else (0, str(error))
    return code, " ".join(text.split())
