"""Many clients at once: few requests reach the SuperLink, and joined clients do not wait."""

import asyncio
import base64
import contextlib
import http.client
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from orchestra_flwr.deployment.gate import Gate, admission, forward, turns
from tests.deployment.gate.conftest import serving, wait

ACTIVATE = "/v1/fleet/activate-node"
HEARTBEAT = "/v1/fleet/send-node-heartbeat"
GET_RUN = "/v1/fleet/get-run"
PUSH = "/v1/fleet/push-object"


class SuperLink:
    """Stands for the SuperLink: answers when it may."""

    def __init__(self):
        self.under_way = Counter()  # by path
        self.asked = Counter()
        self.most = 0
        self.answers = {}  # an event by path; without one: at once

    async def __call__(self, scope, receive, send):
        path = scope["path"]
        self.under_way[path] += 1
        self.asked[path] += 1
        self.most = max(self.most, self.under_way.total())
        while (await receive())["more_body"]:
            pass
        if path in self.answers:
            await asyncio.get_running_loop().run_in_executor(None, self.answers[path].wait, 10)
        self.under_way[path] -= 1
        head = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def superlink():
    return SuperLink()


@pytest.fixture
def lines():
    return []


@pytest.fixture
def gate(superlink, lines):
    usual = {"tls": None, "names": dict, "report": lines.append}
    with serving(superlink) as link, Gate("127.0.0.1", 0, link, **usual) as opened:
        yield opened


@pytest.fixture
def clients(superlink):
    with ThreadPoolExecutor(60) as pool:
        yield pool
        for answer in superlink.answers.values():
            answer.set()


def post(gate, path, body=b"x", **headers):
    made = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=10)
    with contextlib.closing(made):
        made.request("POST", path, body, {n.replace("_", "-"): v for n, v in headers.items()})
        response = made.getresponse()
        return response.status, response.read()


def test_few_requests_are_under_way_and_all_are_answered(superlink, gate, clients):
    superlink.answers[GET_RUN] = threading.Event()
    asked = [clients.submit(post, gate, GET_RUN) for _ in range(50)]
    wait(lambda: superlink.under_way.total() == turns.UNDER_WAY)
    time.sleep(0.2)
    superlink.answers[GET_RUN].set()
    assert [future.result() for future in asked] == [(200, b"ok")] * 50
    assert superlink.most == turns.UNDER_WAY


def test_heartbeats_wait_for_nothing_else(superlink, gate, clients):
    """The SuperLink takes a client for gone of which it hears nothing for a minute."""
    superlink.answers[GET_RUN] = threading.Event()
    others = [clients.submit(post, gate, GET_RUN) for _ in range(50)]
    wait(lambda: superlink.under_way[GET_RUN] == turns.UNDER_WAY)
    assert post(gate, HEARTBEAT) == (200, b"ok")
    assert not any(future.done() for future in others)
    superlink.answers[HEARTBEAT] = threading.Event()
    beats = [clients.submit(post, gate, HEARTBEAT, b"%d" % n) for n in range(9)]
    wait(lambda: superlink.under_way[HEARTBEAT] == turns.HEARTBEATS)
    time.sleep(0.2)
    for answer in superlink.answers.values():
        answer.set()
    assert {future.result() for future in (*others, *beats)} == {(200, b"ok")}
    assert superlink.most == turns.UNDER_WAY + turns.HEARTBEATS


def test_nobody_comes_while_heartbeats_wait(superlink, gate, clients):
    """So it is as many as it can hold that are connected, and they stay."""
    superlink.answers[HEARTBEAT] = threading.Event()
    beats = [clients.submit(post, gate, HEARTBEAT, b"%d" % n) for n in range(turns.HEARTBEATS)]
    wait(lambda: superlink.under_way[HEARTBEAT] == turns.HEARTBEATS)
    coming = clients.submit(post, gate, ACTIVATE)
    assert post(gate, GET_RUN) == (200, b"ok")
    time.sleep(0.2)
    assert not superlink.asked[ACTIVATE]
    superlink.answers[HEARTBEAT].set()
    assert {future.result() for future in (coming, *beats)} == {(200, b"ok")}


def test_a_client_that_sends_heartbeats_without_end_keeps_nobody_out(superlink, gate, clients):
    """One of its heartbeats has a turn at a time; the others wait at the gate."""
    superlink.answers[HEARTBEAT] = threading.Event()
    keys = [base64.b64encode(name).decode() for name in (b"ann", b"bob")]
    beats = [
        clients.submit(post, gate, HEARTBEAT, b"%d" % number, flwr_public_key=keys[0])
        for number in range(3 * turns.HEARTBEATS)
    ]
    wait(lambda: superlink.under_way[HEARTBEAT])
    time.sleep(0.2)
    assert post(gate, ACTIVATE) == (200, b"ok")
    assert superlink.under_way[HEARTBEAT] == 1
    beats.append(clients.submit(post, gate, HEARTBEAT, b"his", flwr_public_key=keys[1]))
    wait(lambda: superlink.under_way[HEARTBEAT] == 2)
    superlink.answers[HEARTBEAT].set()
    assert {beat.result() for beat in beats} == {(200, b"ok")}


def test_a_request_does_not_wait_for_clients_that_come(superlink, gate, clients):
    superlink.answers[ACTIVATE] = threading.Event()
    coming = [clients.submit(post, gate, ACTIVATE) for _ in range(50)]
    wait(lambda: superlink.under_way[ACTIVATE] == turns.COMING)
    began = time.monotonic()
    assert post(gate, GET_RUN) == (200, b"ok")
    assert time.monotonic() - began < 1
    assert superlink.under_way[ACTIVATE] == turns.COMING
    superlink.answers[ACTIVATE].set()
    assert [future.result() for future in coming] == [(200, b"ok")] * 50


def test_a_heartbeat_that_a_busy_superlink_does_not_need_is_answered_by_the_gate(
    superlink, gate, clients, monkeypatch
):
    """Each 20 s one of each client, of which it needs one in 60 s."""
    assert post(gate, HEARTBEAT) == post(gate, HEARTBEAT) == (200, b"ok")
    assert superlink.asked[HEARTBEAT] == 2
    superlink.answers[GET_RUN] = threading.Event()
    others = [clients.submit(post, gate, GET_RUN) for _ in range(turns.UNDER_WAY)]
    wait(lambda: superlink.under_way[GET_RUN] == turns.UNDER_WAY)
    assert post(gate, HEARTBEAT) == (200, b"ok")
    assert superlink.asked[HEARTBEAT] == 2
    monkeypatch.setattr(forward, "HEARTBEAT_SECONDS", 0.0)
    assert post(gate, HEARTBEAT) == post(gate, HEARTBEAT, b"another") == (200, b"ok")
    assert superlink.asked[HEARTBEAT] == 4
    superlink.answers[GET_RUN].set()
    assert {future.result() for future in others} == {(200, b"ok")}


def test_who_waits_too_long_is_to_come_again(superlink, gate, clients, lines, monkeypatch):
    """To a 503 a SuperNode tries again, after a time that it draws."""
    monkeypatch.setattr(turns, "LONG_WAIT_SECONDS", 0.3)
    superlink.answers[ACTIVATE] = threading.Event()
    coming = [clients.submit(post, gate, ACTIVATE) for _ in range(10)]
    wait(lambda: sum(future.done() for future in coming) == 10 - turns.COMING)
    superlink.answers[ACTIVATE].set()
    statuses = Counter(future.result()[0] for future in coming)
    assert statuses == {200: turns.COMING, 503: 10 - turns.COMING}
    assert lines == [
        "the SuperLink has more to do than it can: clients wait, and try again by themselves"
    ]
    assert post(gate, ACTIVATE) == (200, b"ok")


def test_a_slow_line_takes_no_turn(superlink, gate):
    """Neither with a short request that is half sent, nor with the parts of a model."""
    slow = [socket.create_connection(("127.0.0.1", gate.port)) for _ in range(2 * turns.UNDER_WAY)]
    try:
        for number, connection in enumerate(slow):
            path = PUSH if number % 2 else HEARTBEAT
            connection.sendall(
                f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf".encode()
            )
        wait(lambda: superlink.under_way[PUSH] == turns.UNDER_WAY)
        assert post(gate, HEARTBEAT) == (200, b"ok")
    finally:
        for connection in slow:
            connection.close()


def test_a_busy_superlink_that_answers_is_healthy(superlink, gate):
    """Whoever starts a server again that is not healthy would end one that only has much to do."""
    superlink.answers["/health"] = threading.Event()
    assert post(gate, HEARTBEAT) == (200, b"ok")
    made = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=2)
    with contextlib.closing(made):
        made.request("GET", "/health")
        assert made.getresponse().status == 200
    assert not superlink.under_way["/health"]


def test_a_crowd_is_accepted_in_one_pass_of_the_loop():
    """By one at a time, heartbeats stood behind it for a minute: each comes by a new connection."""

    async def main():
        loop = asyncio.get_running_loop()
        accepting = admission.Admission(None, None, lambda peer, release: asyncio.Protocol())
        with contextlib.ExitStack() as stack:
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
            for _ in range(50):
                stack.enter_context(socket.create_connection(listening.getsockname()))
            accepting.open(listening)
            passed = loop.create_future()
            loop.call_later(0.01, passed.set_result, None)
            loop.remove_reader(listening)
            accepting._accept()
            opened = accepting._open.total()
            await passed
            accepting.close()
            return opened

    assert asyncio.run(main()) == 50


def test_a_wait_that_is_over_when_something_comes_leaves_no_traceback(gate, tmp_path, caplog):
    """anyio sets the result of a future that is cancelled already: in the same pass of the loop."""

    async def race():
        async with await anyio.connect_unix(path) as stream:
            receiving = asyncio.ensure_future(stream.receive())
            await asyncio.sleep(0.05)
            peer.sendall(b"x")
            asyncio.get_running_loop().call_soon(receiving.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await receiving

    path = str(tmp_path / "peer")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        racing = asyncio.run_coroutine_threadsafe(race(), gate._loop)
        peer, _ = listening.accept()
        with peer:
            racing.result(5)
    assert "InvalidStateError" not in caplog.text and "Exception in callback" not in caplog.text
