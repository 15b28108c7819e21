"""A client that asks for messages waits at the gate, for as long as it should and no longer."""

import asyncio
import contextlib
import http.client
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node

from orchestra_flwr.deployment.gate import Gate, forward, waiting
from orchestra_flwr.deployment.gate.turns import Turns
from orchestra_flwr.flower.fleet import node_of
from tests.deployment.gate.conftest import serving, wait

PULL = "/v1/fleet/pull-messages"


class SuperLink:
    """Stands for the SuperLink: gives each node its messages, one at a time."""

    def __init__(self):
        self.asked = []  # nodes
        self.connections = set()
        self.messages = {}  # by node
        self.status = 200  # of what asks for no message

    async def __call__(self, scope, receive, send):
        self.connections.add(scope["client"])
        body = (await receive())["body"]
        if scope["path"] != PULL:
            head = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": self.status, "headers": head})
            await send({"type": "http.response.body"})
            return
        node = PullMessagesRequest.FromString(body).node.node_id
        self.asked.append(node)
        answer = self.messages.pop(node, b"")
        head = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": answer})


@pytest.fixture
def superlink():
    return SuperLink()


@pytest.fixture
def gate(superlink, caplog):
    usual = {"tls": None, "names": dict, "report": print}
    with serving(superlink) as link, Gate("127.0.0.1", 0, link, **usual) as made:
        yield made
    assert not caplog.get_records("call"), "the gate failed"


def waits(gate, *nodes):
    """Returns when requests of these nodes wait, and of no other."""
    wait(lambda: gate._forwarder.waiting._waiters.keys() == set(nodes))


class Request:
    """A node's request for messages, which a thread makes."""

    def __init__(self, gate, node, **headers):
        self.connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=10)
        self.connection.connect()
        self.answer = None
        self.seconds = 0.0
        self._headers = headers
        self._body = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
        self._thread = threading.Thread(target=self._make)
        self._thread.start()

    def _make(self):
        started = time.monotonic()
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.connection.request("POST", PULL, self._body, self._headers)
            response = self.connection.getresponse()
            self.answer = (response.status, response.read())
        self.seconds = time.monotonic() - started

    def answered(self):
        self._thread.join()
        self.connection.close()
        return self.answer

    def break_off(self):
        self.connection.sock.shutdown(2)
        self.connection.close()
        self._thread.join()


@pytest.fixture
def _seldom(monkeypatch):
    """Without a report nobody would look within the time of a test."""
    monkeypatch.setattr(waiting, "POLL_SECONDS", 60.0)


@pytest.fixture
def _often(monkeypatch):
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.05)


@pytest.mark.usefixtures("_seldom")
def test_a_message_that_is_reported_passes_at_once(superlink, gate):
    one, other = Request(gate, 1), Request(gate, 2**63 + 2)
    waits(gate, 1, 2**63 + 2)
    superlink.messages |= {1: b"for one", 2**63 + 2: b"for other"}
    gate.wake(2**63 + 2)
    assert other.answered() == (200, b"for other")
    assert one.answer is None and superlink.asked.count(1) == 1
    gate.wake(3)  # of which nobody asks
    gate.wake(1)
    assert one.answered() == (200, b"for one")
    assert max(one.seconds, other.seconds) < 3


@pytest.mark.usefixtures("_seldom")
def test_a_message_that_is_there_passes_without_waiting(superlink, gate):
    superlink.messages[1] = b"it"
    assert Request(gate, 1).answered() == (200, b"it")
    assert superlink.asked == [1]


@pytest.mark.usefixtures("_often")
def test_a_message_that_nobody_reported_is_found(superlink, gate):
    request = Request(gate, 1)
    wait(lambda: len(superlink.asked) > 4)
    superlink.messages[1] = b"it"
    assert request.answered() == (200, b"it")
    assert len(superlink.connections) == 1  # each would be a handshake of TLS


@pytest.mark.usefixtures("_seldom")
def test_a_message_that_comes_while_the_superlink_is_asked_is_found(superlink, gate):
    """Between that answer and its place among those who wait."""

    class Asked(list):
        def append(self, node):
            super().append(node)
            if len(self) == 1:
                gate.wake(node)

    superlink.asked = Asked()
    request = Request(gate, 1)
    wait(lambda: len(superlink.asked) == 2)
    superlink.messages[1] = b"it"
    gate.wake(1)
    assert request.answered() == (200, b"it")


@pytest.mark.parametrize("busy", [(Turns, "all_taken", True), (waiting, "MANY", 0)])
@pytest.mark.usefixtures("_seldom")
def test_a_busy_superlink_is_not_asked_again_by_a_client_that_stays(
    superlink, gate, monkeypatch, busy
):
    """A thousand that wait would ask 43 times a second; what is reported passes as ever."""
    monkeypatch.setattr(waiting, "WAIT_SECONDS", 0.3)
    assert Request(gate, 1).answered() == (200, b"")
    monkeypatch.setattr(*busy)
    assert Request(gate, 1).answered() == (200, b"")
    assert superlink.asked == [1]
    assert Request(gate, 2).answered() == (200, b"")  # one that was not asked for yet
    assert superlink.asked == [1, 2]
    for waits_now in (True, False):
        request = Request(gate, 1) if waits_now else None
        if waits_now:
            waits(gate, 1)
        superlink.messages[1] = b"it"
        gate.wake(1)
        time.sleep(0.1)
        assert (request or Request(gate, 1)).answered() == (200, b"it")
        post(gate, "/v1/fleet/pull-object")  # it has it
        assert Request(gate, 1).answered() == (200, b"")
    monkeypatch.setattr(forward, "NOTHING_SECONDS", 0.0)
    asked = len(superlink.asked)
    assert Request(gate, 1).answered() == (200, b"")
    assert len(superlink.asked) == asked + 1


def test_very_many_clients_are_asked_about_less_often():
    """A thousand polls every three seconds were what kept a SuperLink from all else."""
    waits = waiting.Waiting()

    async def main():
        with contextlib.ExitStack() as stack:
            for node in range(1, 101):
                stack.enter_context(waits.waiter(node, asyncio.Event().wait, 20.0))
                if node in (10, 100):
                    seconds.append(waits._pause())

    seconds = []
    asyncio.run(main())
    assert seconds == [3.0, 20.0]


@pytest.mark.usefixtures("_often")
def test_the_wait_ends_before_the_client_gives_up(superlink, gate, monkeypatch):
    monkeypatch.setattr(waiting, "WAIT_SECONDS", 0.3)
    request = Request(gate, 1)
    assert request.answered() == (200, b"")
    assert 0.3 < request.seconds < 3


@pytest.mark.usefixtures("_often")
def test_nobody_waits_until_what_it_signed_is_too_old(superlink, gate):
    """The SuperLink would refuse it, and the SuperNode of a slow clock would end."""
    signed = datetime.now(UTC) - timedelta(seconds=299.5)
    request = Request(gate, 1, **{"flwr-timestamp": signed.isoformat()})
    assert request.answered() == (200, b"")
    assert request.seconds < 5


@pytest.mark.usefixtures("_often")
def test_no_message_is_fetched_for_a_client_that_is_gone(superlink, gate):
    request = Request(gate, 1)
    wait(lambda: len(superlink.asked) > 2)
    request.break_off()
    time.sleep(0.2)
    asked = len(superlink.asked)
    superlink.messages[1] = b"it"
    gate.wake(1)
    time.sleep(0.3)
    assert len(superlink.asked) == asked and superlink.messages
    assert Request(gate, 1).answered() == (200, b"it")


@pytest.mark.usefixtures("_seldom")
def test_a_new_request_takes_the_place_of_the_old_one(superlink, gate):
    """A client without power is gone, but its connection stays open."""
    old = Request(gate, 1)
    waits(gate, 1)
    new = Request(gate, 1)
    assert old.answered() == (200, b"")
    wait(lambda: len(superlink.asked) == 3)  # what the old one was woken for may not have come
    superlink.messages[1] = b"it"
    gate.wake(1)
    assert new.answered() == (200, b"it")


def test_a_new_request_may_be_answered_before_the_old_one():
    async def both():
        waits = waiting.Waiting()
        old = waits.waiter(1, asyncio.Event().wait, 60)
        new = waits.waiter(1, asyncio.Event().wait, 60)
        with old, new:
            pass  # left in the opposite order

    asyncio.run(both())


def test_a_client_counts_as_connected_between_two_requests(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])

    async def connected():
        waits = waiting.Waiting()
        with waits.waiter(1, asyncio.Event().wait, 60, b"a"):
            yield waits.keys()
        yield waits.keys()
        now[0] += waiting.GAP_SECONDS + 1
        yield waits.keys()

    async def seen():
        return [keys async for keys in connected()]

    assert asyncio.run(seen()) == [[b"a"], [b"a"], []]


def post(gate, path):
    connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=10)
    connection.request("POST", path, b"any")
    connection.getresponse().read()
    connection.close()


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("status", [200, 401])
def test_a_message_is_given_until_its_client_has_it(superlink, gate, monkeypatch, status):
    """The network may fail while it is on its way; the SuperLink gives it only once."""
    monkeypatch.setattr(waiting, "WAIT_SECONDS", 0.3)
    superlink.messages[1] = b"it"
    assert Request(gate, 1).answered() == (200, b"it")
    post(gate, "/v1/fleet/send-node-heartbeat")  # goes on whatever was received
    assert Request(gate, 2).answered() == (200, b"")  # another node's
    assert Request(gate, 1).answered() == (200, b"it")
    superlink.status = status  # 401: somebody else sent that
    post(gate, "/v1/fleet/pull-object")
    assert Request(gate, 1).answered() == (200, b"" if status == 200 else b"it")


@pytest.mark.usefixtures("_seldom")
def test_a_message_on_a_dead_connection_is_given_again(superlink, gate):
    old = Request(gate, 1)
    waits(gate, 1)
    superlink.messages[1] = b"it"
    gate.wake(1)
    assert old.answered() == (200, b"it")  # as far as the gate knows
    assert Request(gate, 1).answered() == (200, b"it")
    superlink.messages[1] = b"the next"  # the round went on without it
    assert Request(gate, 1).answered() == (200, b"the next")


@pytest.mark.usefixtures("_seldom")
def test_the_gate_ends_without_those_who_wait(superlink, gate):
    request = Request(gate, 1)
    waits(gate, 1)
    started = time.monotonic()
    gate.stop()
    assert time.monotonic() - started < 1.5  # of the 2 s that uvicorn would wait
    assert request.answered() == (200, b"")
    gate.wake(1)  # the server's app may still send


def test_a_request_without_a_node_does_not_wait(superlink, gate):
    started = time.monotonic()
    assert Request(gate, 0).answered() == (200, b"")
    assert time.monotonic() - started < 3 and superlink.asked == [0]
    assert node_of(b"no protobuf") is None


def test_nodes_that_never_come_back_fill_no_memory(monkeypatch):
    monkeypatch.setattr(waiting, "MAX_MISSED", 3)
    gone = waiting.Waiting()
    for node in (1, 2, 3, 4):
        gone.wake(node)
    assert [gone.missed(node) for node in (1, 2, 3, 4)] == [False, True, True, True]
