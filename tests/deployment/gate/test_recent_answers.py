"""Answers that the gate gives a client in place of a busy SuperLink."""

import asyncio
import base64
import contextlib
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import sign_message

from orchestra_flwr.deployment.gate.client_identity import is_signed
from orchestra_flwr.deployment.gate.connection import STATE
from orchestra_flwr.deployment.gate.forward import Forwarder
from orchestra_flwr.deployment.gate.recent_answers import MAX_ANSWERS, MAX_BYTES, RecentAnswers
from orchestra_flwr.deployment.gate.refusals import Refusals
from orchestra_flwr.deployment.gate.turns import Turns
from orchestra_flwr.deployment.gate.upstream import UpstreamResponse

HEARTBEAT = "/v1/fleet/send-node-heartbeat"
OWNER, STRANGER = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))


def pem(private):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return private.public_key().public_bytes(serialization.Encoding.PEM, form)


def signed(by, *, claimed=OWNER, age=0.0):
    """A request's headers."""
    when = (datetime.now(UTC) - timedelta(seconds=age)).isoformat().encode()
    return {
        b"flwr-public-key": base64.b64encode(pem(claimed)),
        b"flwr-timestamp": when,
        b"flwr-signature": base64.b64encode(sign_message(by, when)),
    }


@pytest.mark.parametrize("age", [0, 300, -4])
def test_who_has_the_key_has_signed(age):
    assert is_signed(signed(OWNER, age=age))


@pytest.mark.parametrize(
    ("by", "age", "instead"),
    [
        (STRANGER, 0, {}),
        (OWNER, 306, {}),
        (OWNER, -600, {}),
        (OWNER, 0, {b"flwr-signature": b"?"}),
        (OWNER, 0, {b"flwr-signature": b""}),
        (OWNER, 0, {b"flwr-timestamp": b"today"}),
        (OWNER, 0, {b"flwr-public-key": base64.b64encode(b"no key")}),
    ],
)
def test_others_have_not(by, age, instead):
    assert not is_signed({**signed(by, age=age), **instead})


def test_nobody_has_signed_nothing():
    assert not is_signed({})


class SuperLink:
    """Stands for it: counts what it is asked."""

    def __init__(self):
        self.asked = 0

    @contextlib.asynccontextmanager
    async def request(self, method, path, headers, body):
        self.asked += 1

        async def chunks():
            yield b"ok"

        yield UpstreamResponse(200, {b"content-length": b"2"}, chunks())


def post(forwarder, headers):
    """The status of the gate's answer."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"beat", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "raw_path": HEARTBEAT.encode(), "query_string": b"",
        "headers": [*headers.items(), (b"content-length", b"4")], "client": ("127.0.0.1", 1),
        "state": {STATE: SimpleNamespace(hurry=lambda: None)},
    }  # fmt: skip
    asyncio.run(forwarder(scope, receive, send))
    return sent[0]["status"]


def test_only_who_has_the_key_is_answered_in_place_of_a_busy_superlink(monkeypatch):
    """What the SuperLink does not see it cannot check; keys are no secret."""
    superlink, names = SuperLink(), {pem(OWNER): "ann"}
    forwarder = Forwarder(superlink, names=lambda: names, refusals=Refusals(lambda line: None))
    assert post(forwarder, signed(OWNER)) == 200
    monkeypatch.setattr(Turns, "all_taken", True)
    assert post(forwarder, signed(OWNER)) == 200
    assert superlink.asked == 1
    post(forwarder, signed(STRANGER))
    post(forwarder, signed(OWNER, age=400))
    assert superlink.asked == 3


def test_heartbeats_that_nobody_signed_keep_nobody_from_coming(monkeypatch):
    """A stranger who names a client's key waits in line with everything else."""
    paths, turn = [], Turns.turn

    def noted(self, path, client):
        paths.append(path)
        return turn(self, path, client)

    monkeypatch.setattr(Turns, "turn", noted)
    names = {pem(OWNER): "ann"}
    forwarder = Forwarder(SuperLink(), names=lambda: names, refusals=Refusals(lambda line: None))
    post(forwarder, signed(OWNER))
    post(forwarder, signed(STRANGER))
    assert paths == [HEARTBEAT, ""]


def test_their_memory_has_an_end():
    answers = RecentAnswers()
    call = SimpleNamespace(path=HEARTBEAT, key=b"k")
    response = UpstreamResponse(200, {}, None)
    answers.keep(call, b"first", (response, b"ok"))
    answers.keep(call, b"long", (response, b"x" * (MAX_BYTES + 1)))
    assert answers.of(call, b"first", 9) == (response, b"ok")
    assert answers.of(call, b"first", 0) is None
    assert answers.of(call, b"long", 9) is None
    for number in range(MAX_ANSWERS):
        answers.keep(call, b"%d" % number, (response, b"ok"))
    assert answers.of(call, b"first", 9) is None and answers.of(call, b"0", 9)
