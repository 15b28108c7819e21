"""The application behind the gate's connections: what may pass, and how much of it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from orchestra_flwr import __version__
from orchestra_flwr.deployment.gate import fixed_answers as answers
from orchestra_flwr.deployment.gate.call import Call, forwarded_headers
from orchestra_flwr.deployment.gate.client_identity import (
    clock_error,
    fingerprint,
    has_good_clock,
    is_signed,
    why_refused,
)
from orchestra_flwr.deployment.gate.fleet_methods import (
    DEACTIVATE,
    HEARTBEAT,
    METHODS,
    OBJECT_PATHS,
    POLLING_PATHS,
    REGISTRATION_PATHS,
)
from orchestra_flwr.deployment.gate.recent_answers import MAX_ANSWERS, Delivery, RecentAnswers
from orchestra_flwr.deployment.gate.refusals import Refusals
from orchestra_flwr.deployment.gate.turns import BusyError, Turns
from orchestra_flwr.deployment.gate.upstream import Upstream, UpstreamError, UpstreamResponse
from orchestra_flwr.deployment.gate.waiting import Waiting
from orchestra_flwr.flower.fleet import MAX_AGE, is_own_reply, node_of, withdrawal

_log = logging.getLogger(__name__)
ANEW_SECONDS = 60.0  # in which a client from before the server's restart connects again
# A busy SuperLink need not see a request so soon after the same one. It takes a node for gone 60 s
# after a heartbeat, and one comes every 20. That there is no message is true until one is reported.
HEARTBEAT_SECONDS, NOTHING_SECONDS = 20.0, 60.0
EARLIER = 5.0  # seconds by which a wait ends before the client's signature is too old
HEALTH_SECONDS = 3.0  # for the SuperLink to answer, below the patience of those who ask
FRESH_SECONDS = 1.0  # a SuperLink that has answered anything since is healthy


class Forwarder:
    """An ASGI application that passes the Fleet API on to the SuperLink, and nothing else.

    A refused client gets an answer; the rest of its request is read and dropped. Without `names`,
    which are those of the gate, anyone may come.
    """

    def __init__(
        self,
        upstream: Upstream,
        names: Callable[[], Mapping[bytes, str | None]] | None,
        refusals: Refusals,
    ) -> None:
        self._upstream = upstream
        self.reply_limit: int | None = None  # bytes that a client may push for one message
        self._names = names
        self._turns = Turns()
        self._answers = RecentAnswers()
        self._refusals = refusals
        # By key. Without a list of keys, clients come with a new one each time: the latest then.
        self._deliveries: dict[bytes, Delivery] = {}
        self._arrived: set[bytes] = set()  # keys of the clients that the SuperLink has met
        self._first_refusal: dict[bytes, float] = {}  # of those that it has not
        self.waiting = Waiting()  # the clients that wait for a message

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        call = Call(scope, receive, send)
        try:
            await self._handle(call)
        except ClientDisconnect:
            return  # there is nobody left to answer
        except Exception:
            _log.exception("the gate failed in a call of %s", call.path)
            raise

    async def _handle(self, call: Call) -> None:
        if call.method == "GET" and call.path == "/health":
            await self._health(call)
        elif call.method != "POST" or call.path not in METHODS:
            await self._refuse(call, 404, "path", answers.forbidden(call.method, call.path))
        elif self._is_unknown_key(call):
            registers = call.path in REGISTRATION_PATHS
            status = answers.UNKNOWN_KEY_REGISTERS if registers else answers.UNKNOWN_KEY
            await self._refuse(call, status, "key", self._unknown_key(call))
        elif self._is_too_early(call):
            await call.answer(503, answers.NOT_READY)
        elif call.length is None:
            await self._refuse(call, 411, "length", "sent a request without its length")
        elif call.length > (limit := METHODS[call.path]):
            text = f"sent {_mb(call.length)} to {call.path}, which takes {_mb(limit)}"
            await self._refuse(call, answers.TOO_LARGE, "size", text)
        elif call.path.endswith("/push-object"):
            await self._push_object(call, call.length)
        elif call.path.endswith("/push-messages"):
            await self._push_messages(call)
        elif call.path.endswith("/pull-messages"):
            await self._pull_messages(call)
        elif call.path in OBJECT_PATHS:
            await self._stream(call)
        elif call.path == HEARTBEAT:
            await self._forward(call, await call.whole_body(), HEARTBEAT_SECONDS)
        else:
            await self._forward(call, await call.whole_body())

    async def _health(self, call: Call) -> None:
        """Answers for the SuperLink as well, since without it nobody can take part."""
        healthy = self._upstream.seconds_silent() < FRESH_SECONDS
        with contextlib.suppress(UpstreamError, TimeoutError):
            if not healthy:
                async with (
                    asyncio.timeout(HEALTH_SECONDS),
                    self._upstream.request("GET", "/health", [], _chunks()) as response,
                ):
                    healthy = response.status == 200
        # A client compares the time with its own: Flower refuses signatures of another time.
        content = {"version": __version__, "superlink": healthy, "time": time.time()}
        status, more = (200, {}) if healthy else (503, answers.NO_SUPERLINK)
        await call.answer(status, {**content, **more}, stranger=True)

    async def _pull_messages(self, call: Call) -> None:
        """Waits for a message."""
        body = await call.whole_body()
        node = node_of(body)
        # Before it may wait, the SuperLink has checked that the key is that node's.
        recent = self._recent(call, body, NOTHING_SECONDS)
        if recent is None or recent[1] or node is None or self.waiting.missed(node):
            response = await self._message(call, body)
        else:
            response = recent[0]
        if node is not None and _is_empty(response):
            response = await self._wait_for_message(call, body, node, response)
        if response is not None:
            await call.relay(response)

    async def _wait_for_message(
        self, call: Call, body: bytes, node: int, nothing: UpstreamResponse
    ) -> UpstreamResponse | None:
        """Asks the SuperLink until it has a message, the wait is over or the client is gone."""
        # Later the SuperLink would refuse what the client signed, and a refused SuperNode ends.
        valid = MAX_AGE - EARLIER + min(0.0, clock_error(call.headers))
        with self.waiting.waiter(node, call.after_body, valid, call.key) as waiter:
            while await waiter.poll():
                if self._is_unknown_key(call):  # its key was revoked meanwhile
                    await self._refuse(call, answers.UNKNOWN_KEY, "key", self._unknown_key(call))
                    return None
                response = await self._message(call, body)
                if not _is_empty(response):
                    return response
        return nothing

    async def _message(self, call: Call, body: bytes) -> UpstreamResponse | None:
        """The SuperLink's response, or once more the message that may not have reached the client.

        The SuperLink gives a message once. If the network fails while it is on its way, the client
        asks again, and without it the round would wait until its timeout. A client that is sent a
        message has a budget for one reply; nothing else renews it. None as of :meth:`_ask`.
        """
        answered = await self._ask(call, body)
        if answered is None:
            return None
        response, content = answered
        last = self._deliveries.get(call.key)
        if _accepted(response) and content:
            self._deliveries.pop(call.key, None)
            self._deliveries[call.key] = Delivery(body, response, content)
            self._forget_oldest(self._deliveries)
        elif _is_empty(response) and last and not last.received and last.request == body:
            response, content = last.response, last.content
        return replace(response, body=_chunks(content))

    async def _push_messages(self, call: Call) -> None:
        """Stores the request: it names the reply, which may have to be withdrawn.

        No other message is passed on: one that a client sends to itself would renew its budget.
        """
        body = await call.whole_body()
        if not is_own_reply(body):
            text = f"{self._who(call)} sent a message that is no reply of its own"
            await self._refuse(call, answers.NO_REPLY, "reply", text)
            return
        response = await self._forward(call, body)
        delivery = self._deliveries.get(call.key)
        if delivery is not None and _accepted(response):
            delivery.reply = body

    async def _push_object(self, call: Call, length: int) -> None:
        delivery = self._deliveries.get(call.key)
        if delivery is None or self.reply_limit is None:
            await self._stream(call)
            return
        if (total := delivery.reply_bytes + length) > self.reply_limit:
            text = (
                f"{self._who(call)} pushed {_mb(total)} for one reply, which may "
                f"have {_mb(self.reply_limit)}: its reply is dropped"
            )
            await self._withdraw(call, delivery)
            await self._refuse(call, answers.TOO_LARGE, "reply", text)
            return
        delivery.reply_bytes += length  # at once: a SuperNode pushes two objects at a time
        stored = False
        try:
            response = await self._stream(call)
            stored = _accepted(response)
        finally:
            if not stored:
                delivery.reply_bytes -= length

    async def _withdraw(self, call: Call, delivery: Delivery) -> None:
        """Takes the reply back, or the server would wait minutes for what is missing of it."""
        if delivery.reply:
            body, delivery.reply = withdrawal(delivery.reply), b""
            # With the client's headers: Flower signs the time of a request, not its body.
            headers = forwarded_headers({**call.headers, b"content-length": b"%d" % len(body)})
            path = "/v1/fleet/confirm-message-received"
            with contextlib.suppress(UpstreamError):
                async with self._upstream.request("POST", path, headers, _chunks(body)):
                    pass

    async def _ask(self, call: Call, body: bytes) -> tuple[UpstreamResponse, bytes] | None:
        """The SuperLink's response to a short request, and all of its body.

        Both are read at once, so that no client's slow line makes others wait for their turn. None
        where the SuperLink is busy or not there; then the client has been answered.
        """
        # Unsigned heartbeats take no turns of signed ones: while these wait, no client registers.
        own = call.path != HEARTBEAT or self._names is None or is_signed(call.headers)
        try:
            async with (
                self._turns.turn(call.path if own else "", call.key),
                self._upstream.request(
                    "POST", call.path, forwarded_headers(call.headers), _chunks(body)
                ) as response,
            ):
                content = b"".join([chunk async for chunk in response.body])
        except UpstreamError as error:
            await self._no_superlink(call, error)
            return None
        except BusyError:
            self._refusals.note("", "busy", answers.BUSY)
            await call.answer(503, answers.NOT_READY)
            return None
        self._report_refusal(call, response)
        if call.path in POLLING_PATHS and _accepted(response):
            self._answers.keep(call, body, (response, content))
        return response, content

    def _recent(
        self, call: Call, body: bytes, seconds: float
    ) -> tuple[UpstreamResponse, bytes] | None:
        """The answer to the same request at most `seconds` ago, if the SuperLink is busy now."""
        if not (self._turns.all_taken or self.waiting.are_many):
            return None
        answered = self._answers.of(call, body, seconds)
        # The SuperLink cannot check what it does not see.
        return answered if self._names is None or is_signed(call.headers) else None

    async def _forward(
        self, call: Call, body: bytes, seconds: float = 0.0
    ) -> UpstreamResponse | None:
        """Passes a short request on, and the response back; None as of :meth:`_ask`.

        A response to the same request that is at most `seconds` old will do where it is busy.
        """
        answered = self._recent(call, body, seconds) or await self._ask(call, body)
        if answered is None:
            return None
        response, content = answered
        self._note_received(call, response)
        await call.relay(replace(response, body=_chunks(content)))
        return response

    async def _stream(self, call: Call) -> UpstreamResponse | None:
        """Passes a request on while it comes, and the response back; None: no SuperLink."""
        started = False
        headers = forwarded_headers(call.headers)
        try:
            async with self._upstream.request("POST", call.path, headers, call.body()) as response:
                self._note_received(call, response)
                started = True
                await call.relay(response)
        except UpstreamError as error:
            await self._no_superlink(call, error, started=started)
            return None
        self._report_refusal(call, response)
        return response

    def _note_received(self, call: Call, response: UpstreamResponse) -> None:
        delivery = self._deliveries.get(call.key)
        if delivery and _accepted(response) and call.path not in POLLING_PATHS:
            delivery.received = True

    async def _no_superlink(
        self, call: Call, error: UpstreamError, *, started: bool = False
    ) -> None:
        text = f"the SuperLink behind the gate does not answer: {error}"
        self._refusals.report("", "superlink", text)
        if not started:
            await call.answer(503, answers.NOT_READY)

    def _report_refusal(self, call: Call, response: UpstreamResponse) -> None:
        """Reports what the SuperLink refused."""
        if self._names and call.path in REGISTRATION_PATHS and _accepted(response):
            self._arrived.add(call.key)
        if response.status == 401 and self._may_be_of_before(call):
            text = f"{self._who(call)} was connected before this server started, and connects again"
            self._refusals.note(call.peer, "anew", text)
        elif response.status == 401 or (response.status == 412 and call.path in REGISTRATION_PATHS):
            why = why_refused(self._who(call), call.headers, response.status)
            self._refusals.report(call.peer, "key", why)

    def _may_be_of_before(self, call: Call) -> bool:
        """Whether a client that the SuperLink refuses may have been connected before its start.

        Such a client gives up its connection, and comes back by itself. Refusals that go on for a
        minute have another cause.
        """
        if call.key in self._arrived or not has_good_clock(call.headers):
            return False
        now = time.monotonic()
        first = self._first_refusal.setdefault(call.key, now)
        self._forget_oldest(self._first_refusal)
        return now - first < ANEW_SECONDS

    def _forget_oldest(self, by_key: dict[bytes, Any]) -> None:
        if self._names is None and len(by_key) > MAX_ANSWERS:
            del by_key[next(iter(by_key))]

    async def _refuse(self, call: Call, status: int, reason: str, text: str) -> None:
        self._refusals.report(call.peer, reason, text)
        code = {"code": answers.NOT_ACTIVATED} if status == answers.UNKNOWN_KEY_REGISTERS else {}
        content = {**code, "detail": answers.REFUSED[status]}
        await call.answer(status, content, stranger=status != answers.TOO_LARGE)

    def _is_unknown_key(self, call: Call) -> bool:
        """Whether the key is not on the list.

        The SuperLink reads all of a request before it looks at its key, and it still accepts one
        that was revoked. A client that it has met, and whose key was revoked, may sign off, so that
        nobody waits for it.
        """
        if self._names is None or (call.path == DEACTIVATE and call.key in self._arrived):
            return False
        return call.key not in self._names()

    def _is_too_early(self, call: Call) -> bool:
        """Whether the key is listed, but the SuperLink does not have it yet."""
        if self._names is None or call.path == DEACTIVATE:
            return False
        return self._names().get(call.key) is None

    def _unknown_key(self, call: Call) -> str:
        if not call.key:
            return "came without a key: this server takes only clients with a registered key"
        return f"{self._who(call)} is not registered here"

    def _who(self, call: Call) -> str:
        name = self._names().get(call.key) if self._names is not None else None
        return f"key {fingerprint(call.key)}" if name is None else f"client {name}"


async def _chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in filter(None, chunks):
        yield chunk


def _is_empty(response: UpstreamResponse | None) -> TypeGuard[UpstreamResponse]:
    """Whether there is no message."""
    return _accepted(response) and response.headers.get(b"content-length") == b"0"


def _accepted(response: UpstreamResponse | None) -> TypeGuard[UpstreamResponse]:
    return response is not None and response.status == 200


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
