"""A request at the gate, and the ways to answer it."""

from collections.abc import AsyncIterator, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from orchestra_flwr.deployment.gate.admission import peer_name
from orchestra_flwr.deployment.gate.client_identity import public_key
from orchestra_flwr.deployment.gate.connection import STATE, Connection
from orchestra_flwr.deployment.gate.upstream import UpstreamResponse

FORWARDED_HEADERS = {b"content-type", b"content-length", b"accept"}


class Call:
    """A request, and the way to answer it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._asgi = (scope, receive, send)
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.peer = peer_name(scope["client"])
        self.method: str = scope["method"]
        # Not decoded, so that no way of writing a path is taken for another.
        self.path: str = scope["raw_path"].decode("ascii")
        if scope["query_string"]:
            self.path += "?" + scope["query_string"].decode("latin-1")
        odd = b"transfer-encoding" in self.headers or b"upgrade" in self.headers
        length = self.headers.get(b"content-length")
        self.length = None if odd or length is None else int(length)
        self.key = public_key(self.headers)
        self._connection: Connection = scope["state"][STATE]

    def body(self) -> AsyncIterator[bytes]:
        """The request's body, chunk by chunk; raises ClientDisconnect where it breaks off."""
        scope, receive, _ = self._asgi
        return Request(scope, receive).stream()

    async def whole_body(self) -> bytes:
        """The request's body; raises as :meth:`body`."""
        return b"".join([chunk async for chunk in self.body()])

    async def after_body(self) -> Message:
        """Returns when the client is gone."""
        return await self._asgi[1]()

    async def answer(
        self, status: int, content: Mapping[str, object], *, stranger: bool = False
    ) -> None:
        """Answers with a small JSON object.

        A stranger has only seconds for the rest of its request, or for another one.
        """
        if stranger:
            self._connection.hurry()
        await JSONResponse(content, status)(*self._asgi)

    async def relay(self, response: UpstreamResponse) -> None:
        """Answers with the upstream's response, chunk by chunk."""
        _, _, send = self._asgi
        headers = forwarded_headers(response.headers)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        # The last byte ends the response: a client may send its next request as soon as it has it,
        # which must not look like a second one beside the first.
        missing = int(response.headers.get(b"content-length", -1))
        if missing == 0:
            await send({"type": "http.response.body"})
        async for chunk in response.body:
            missing -= len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": missing != 0})
        if missing < 0:  # a length that was not announced
            await send({"type": "http.response.body"})


def forwarded_headers(headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """The headers that Flower reads; none of them belongs to a single connection."""
    return [
        (name, value.strip())  # httptools leaves the blanks behind a value, httpx refuses them
        for name, value in headers.items()
        if name in FORWARDED_HEADERS or name.startswith(b"flwr-")
    ]
