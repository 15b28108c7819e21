import asyncio
import base64
import contextlib
import dataclasses
import http.client
import ipaddress
import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.gate import (
    Gate,
    admission,
    connection,
    fleet_methods,
    forward,
    listening,
)
from orchestra_flwr.deployment.gate.tls import server_context
from orchestra_flwr.deployment.keys.server_keys import ServerFiles
from orchestra_flwr.flower.socket_server import socket_server_command
from tests.deployment.gate.conftest import serving, wait

# A key and what `ssh-keygen -l` says of it.
KEY = b"""-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAERl2/tB3amop8x2CuGu1DCuCKPesctF+C
AexRAA1CbdwRG6h56fZwxBTL5MLgDITFywY0yUCGVPOq1/GpAzbBIGygpQfZ8qTC
isWt7F4rduAUm4WLnCgIuZtIVBDxAekv
-----END PUBLIC KEY-----
"""
FINGERPRINT = "SHA256:TsYJzOo9Z3barbat1I5YSO7FaotAQVzDMjL8lQK1dtE"
ALICE = b"alice's public key"
PULL = "/v1/fleet/pull-messages"
OBJECT = "/v1/fleet/pull-object"
PUSH_MESSAGES = "/v1/fleet/push-messages"
PUSH = "/v1/fleet/push-object"
MIB = 1024**2


def key_header(key):
    return {"flwr-public-key": base64.b64encode(key).decode()}


class SuperLink:
    """Stands for the SuperLink: an ASGI application that notes what comes.

    A request with the header `flwr-test` gets a special treatment; `answers` holds
    (status, body) by path.
    """

    def __init__(self):
        self.requests = []
        self.bodies = {}  # by flwr-test: what has arrived so far
        self.broken_off = []
        self.answers = {}
        self.go_on = threading.Event()

    async def __call__(self, scope, receive, send):
        headers = {k.decode(): v.decode() for k, v in scope["headers"]}
        test = headers.get("flwr-test", "")
        body = bytearray()
        self.bodies[test] = body
        more = True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                self.broken_off.append(test)
                return
            body += event["body"]
            more = event["more_body"]
        self.requests.append((scope["method"], scope["path"], headers, bytes(body)))
        status, answer = self.answers.get(scope["path"], (200, b"%d" % len(body)))
        given = [(b"flwr-version-incompatibility-message", b"old"), (b"x-secret", b"1")]
        if test == "two parts":
            await send({"type": "http.response.start", "status": 200, "headers": given})
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
            await asyncio.get_running_loop().run_in_executor(None, self.go_on.wait, 5)
            await send({"type": "http.response.body", "body": b"second"})
            return
        length = len(answer) + (9 if test == "break off" else 0)
        given.append((b"content-length", b"%d" % length))
        await send({"type": "http.response.start", "status": status, "headers": given})
        await send({"type": "http.response.body", "body": answer})

    def seen(self, test):
        return [r for r in self.requests if r[2].get("flwr-test") == test]


def pem(key):
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def make_certificates(folder, ca_name="CA", days=1):
    """A CA and a certificate for 127.0.0.1 that it has signed."""

    def build(name, key, issuer, issuer_key, *extensions):
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - timedelta(days=9))
            .not_valid_after(datetime.now(UTC) + timedelta(days=days))
        )
        # Python 3.13 asks for what RFC 5280 does: identifiers of keys, and a CA's usage.
        subject_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
        for extension in (subject_id, issuer_id, *extensions):
            critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    files = ServerFiles.of(folder)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    ca = x509.BasicConstraints(ca=True, path_length=None)
    signs = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    files.ca.write_bytes(build(ca_name, ca_key, ca_name, ca_key, ca, signs))
    files.certificate.write_bytes(build("server", key, ca_name, ca_key, names))
    files.key.write_bytes(pem(key))
    return files


class Client:
    """A client with an address of its own, 127.0.0.x, so that its lines are its own."""

    def __init__(self, gate, lines, ca=None):
        self.gate = gate
        self.address = f"127.0.0.{next(ADDRESSES)}"
        self._lines = lines
        self._tls = ssl.create_default_context(cafile=ca) if ca else None

    def socket(self):
        plain = socket.create_connection(
            ("127.0.0.1", self.gate.port), timeout=5, source_address=(self.address, 0)
        )
        return self._tls.wrap_socket(plain, server_hostname="127.0.0.1") if self._tls else plain

    def connection(self):
        made = http.client.HTTPConnection("127.0.0.1", self.gate.port)
        made.sock = self.socket()
        return made

    def request(self, method, path, body=b"", headers=None):
        with contextlib.closing(self.connection()) as made:
            made.request(method, path, body, headers or {})
            response = made.getresponse()
            return response.status, response.read()

    def post(self, path, body=b"", **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("POST", path, body, {"content-type": "application/protobuf", **named})

    def raw(self, data):
        """What comes back for these bytes until the gate closes or nothing more comes."""
        with contextlib.closing(self.socket()) as made:
            made.sendall(data)
            answer = b""
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while chunk := made.recv(65536):
                    answer += chunk
                    made.settimeout(0.1)
        return answer

    def line(self, part=""):
        """The first line about this client that holds `part`, without its address."""
        start = f"refused: {self.address}: "
        matches = wait(lambda: [x for x in self._lines if x.startswith(start) and part in x])
        return matches[0].removeprefix(start)

    def lines(self):
        return [line for line in self._lines if self.address + ": " in line]


ADDRESSES = itertools.count(2)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def superlink():
    return SuperLink()


@pytest.fixture(scope="module")
def plain_link(superlink):
    with serving(superlink) as link:
        yield link


@pytest.fixture(scope="module")
def lines():
    return []


@pytest.fixture(scope="module")
def open_gate(plain_link, lines):
    """Makes gates, in front of the upstream without TLS unless told otherwise."""

    def make(link=plain_link, **options):
        usual = {"tls": None, "names": dict, "report": lines.append}
        return Gate("127.0.0.1", 0, link, **(usual | options))

    return make


@pytest.fixture(scope="module")
def plain_gate(open_gate):
    with open_gate() as gate:
        gate.limit_replies(3 * MIB)
        yield gate


@pytest.fixture(scope="module")
def tls_gate(superlink, certificates, open_gate):
    tls = {"ssl_certfile": certificates.certificate, "ssl_keyfile": certificates.key}
    with (
        serving(superlink, **tls) as link,
        open_gate(link, tls=certificates, names=lambda: {ALICE: "alice"}) as gate,
    ):
        yield gate


@pytest.fixture
def client(plain_gate, lines):
    return Client(plain_gate, lines)


@pytest.fixture
def tls_client(tls_gate, lines, certificates):
    return Client(tls_gate, lines, certificates.ca)


@pytest.fixture
def test(request, superlink):
    """Marks the requests of a test, and forgets the answers that it has set."""
    yield request.node.name
    superlink.answers.clear()


# What passes


@pytest.mark.parametrize("kind", ["client", "tls_client"])
def test_passes_a_request_and_its_response(kind, request, superlink, test):
    body = os.urandom(100_000)
    sent = {"content-type": "application/protobuf", "flwr-public-key": "YWxpY2Ui", "accept": "a/b"}
    sent |= key_header(ALICE) | {"flwr-timestamp": "now", "flwr-test": test}
    dropped = {"cookie": "1", "x-forwarded-for": "10.0.0.1", "te": "trailers", "keep-alive": "9"}
    with contextlib.closing(request.getfixturevalue(kind).connection()) as made:
        made.request("POST", PUSH, body, sent | dropped | {"connection": "keep-alive"})
        response = made.getresponse()
        assert (response.status, response.read()) == (200, b"100000")
        assert response.headers["flwr-version-incompatibility-message"] == "old"
        assert {"x-secret", "server", "date"}.isdisjoint(k.lower() for k in response.headers)
        ((method, path, headers, received),) = superlink.seen(test)
        assert (method, path, received) == ("POST", PUSH, body)
        assert sent.items() <= headers.items()
        assert headers.keys() - sent.keys() == {"host", "content-length"}


def test_keeps_connections_on_both_sides(client, superlink, test):
    with contextlib.closing(client.connection()) as made:
        for _ in range(3):
            made.request("POST", PULL, b"x", {"flwr-test": test})
            assert made.getresponse().read() == b"1"
    assert len(superlink.seen(test)) == 3


def test_a_body_passes_before_it_is_complete(client, superlink, test):
    head = f"POST {PUSH} HTTP/1.1\r\nhost: x\r\ncontent-length: 12\r\nflwr-test: {test}\r\n\r\n"
    with contextlib.closing(client.socket()) as made:
        made.sendall(head.encode() + b"first ")
        wait(lambda: superlink.bodies.get(test) == b"first ")
        made.sendall(b"second")
        assert made.recv(1000).startswith(b"HTTP/1.1 200")
    assert superlink.bodies[test] == b"first second"


def test_a_response_passes_before_it_is_complete(client, superlink):
    with contextlib.closing(client.connection()) as made:
        made.request("POST", OBJECT, headers={"flwr-test": "two parts"})
        response = made.getresponse()
        assert response.read(5) == b"first"
        superlink.go_on.set()
        assert response.read() == b"second"


def test_health(client, tls_client):
    version = json.loads(client.request("GET", "/health")[1])["version"]
    assert version[0].isdigit()
    for made in (client, tls_client):
        status, body = made.request("GET", "/health")
        health = json.loads(body)
        assert abs(health.pop("time") - time.time()) < 60
        assert (status, health) == (200, {"version": version, "superlink": True})


@pytest.mark.parametrize("kind", ["dead", "mute"])
def test_without_a_superlink_the_server_is_not_well(kind, open_gate, monkeypatch, tmp_path):
    """A health check goes by the status; a person reads the line."""
    monkeypatch.setattr(forward, "HEALTH_SECONDS", 0.3)
    with (
        socket.socket(socket.AF_UNIX) as mute,  # takes connections, and says nothing
        open_gate(tmp_path / kind) as gate,
    ):
        mute.bind(str(tmp_path / "mute"))
        mute.listen()
        status, body = Client(gate, []).request("GET", "/health")
    content = json.loads(body)
    assert (status, content["superlink"]) == (503, False)
    assert content["detail"] == "The SuperLink behind the gate does not answer."


# What does not


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/openapi.json",
        "/v1/fleet",
        "/v1/fleet/",
        "/v1/fleet/start-run",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "//v1/fleet/pull-messages",
        "/v1//fleet/pull-messages",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/pull-messages?x=1",
        "/v1/fleet/pull-messages;x",
        "/v1/fleet/pull%2dmessages",
        "/V1/fleet/pull-messages",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet\\..\\control\\start-run",
    ],
)
def test_only_the_fleet_api_is_served(path, client, superlink):
    before = len(superlink.requests)
    assert client.post(path)[0] == 404
    assert len(superlink.requests) == before
    local = path.startswith(("/v1/control", "/v1/runtime"))
    assert client.line() == (
        f"asked for {path}, which is only served to this machine"
        if local
        else f"asked for POST {path}, which is not served"
    )


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_only_post_is_served(method, client, superlink):
    before = len(superlink.requests)
    assert client.request(method, PULL)[0] == 404
    assert client.request("POST", "/health")[0] == 404
    assert len(superlink.requests) == before


POST = f"POST {PULL} HTTP/1.1\r\nhost: x\r\n"
FETCH = f"POST {OBJECT} HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (POST + "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 400),
        (POST + "transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n1\r\nx\r\n0\r\n\r\n", 400),
        (POST + "content-length: 1\r\ncontent-length: 2\r\n\r\nxy", 400),
        (POST + "content-length: -1\r\n\r\n", 400),
        (POST + "content-length: 1\r\nflwr-x : y\r\n\r\nx", 400),
        (POST + "content-length: 1\r\nflwr-x: y\n z: 1\r\n\r\nx", 400),
        (POST + "content-length: 0\r\nflwr-x: y\x00\r\n\r\n", 400),
        (f"POST http://other{PULL} HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 400),
        ("CONNECT 10.0.0.1:80 HTTP/1.1\r\n\r\n", 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        ("hello\r\n\r\n", 400),
        (POST + "transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 411),
        (POST + "connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 0\r\n\r\n", 411),
        (POST + "\r\n", 411),
    ],
)
def test_requests_with_two_readings_are_refused(data, status, client, superlink):
    before = len(superlink.requests)
    assert client.raw(data.encode("latin-1")).startswith(b"HTTP/1.1 %d " % status)
    assert len(superlink.requests) == before
    bad = "something that is no HTTP request" if status == 400 else "a request without its length"
    assert client.line() == f"sent {bad}"


def test_pipelined_requests_are_refused(client, test, superlink):
    one = f"{POST}content-length: 0\r\nflwr-test: {test}\r\n\r\n"
    assert client.raw((one + one).encode()).count(b"HTTP/1.1 200") <= 1
    assert len(superlink.seen(test)) <= 1


def test_a_request_beside_another_is_refused(client, superlink):
    superlink.go_on.clear()
    try:
        with contextlib.closing(client.socket()) as made:
            made.sendall(f"{FETCH}content-length: 0\r\nflwr-test: two parts\r\n\r\n".encode())
            answer = b""
            while b"first" not in answer:
                answer += made.recv(1000)
            made.sendall(FETCH.encode())
            assert closed(made)
    finally:
        superlink.go_on.set()
    assert "no HTTP request" in client.line()


def test_a_client_may_go_on_as_soon_as_it_has_the_response(client, superlink, test):
    request = f"{POST}content-length: 0\r\nflwr-test: {test}\r\n\r\n".encode()
    with contextlib.closing(client.socket()) as made:
        for _ in range(50):
            made.sendall(request)
            answer = b""
            while not answer.endswith(b"\r\n\r\n0"):  # the body: so many bytes came
                chunk = made.recv(1000)
                assert chunk, answer
                answer += chunk
    assert len(superlink.seen(test)) == 50
    assert not client.lines()


def test_a_stranger_cannot_write_the_log(client):
    client.raw(b"GET /%0a\x1b[31m" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n")
    line = client.line()
    assert line.isprintable()
    assert len(line) < 400


@pytest.mark.parametrize(
    ("path", "limit"), [(PUSH, 16 * MIB), (PUSH_MESSAGES, 4 * MIB), (PULL, 64 * 1024)]
)
def test_a_request_has_a_limit_and_the_connection_goes_on(path, limit, client, superlink, test):
    with contextlib.closing(client.connection()) as made:
        for size, status in ((limit + 1, 413), (limit, 200)):
            body = bytes(size)
            if path == PUSH_MESSAGES:
                body = push_messages("x" * (2 * size - len(push_messages("x" * size))))
            made.request("POST", path, body, key_header(b"new") | {"flwr-test": test})
            response = made.getresponse()
            assert (response.status, bool(response.read())) == (status, True)
    assert [len(r[3]) for r in superlink.seen(test)] == [limit]
    assert f"to {path}, which takes {limit / 1e6:.1f} MB" in client.line()


# The budget of a reply


def push_messages(reply, to="a message", node=3, count=1):
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata
    from flwr.proto.node_pb2 import Node

    metadata = Metadata(run_id=7, message_id=reply, src_node_id=node, reply_to_message_id=to)
    return PushMessagesRequest(
        node=Node(node_id=3), messages_list=[Message(metadata=metadata)] * count
    ).SerializeToString()


@pytest.mark.parametrize(
    "body",
    [
        push_messages("to itself or another client, as the server", to="", node=1),
        push_messages("to anybody", to=""),
        push_messages("for another client", node=4),
        push_messages("one by one", count=2),
        push_messages("", count=0),
        b"no message at all",
    ],
)
def test_a_client_sends_nothing_but_its_own_replies(client, superlink, test, body):
    """A SuperLink passes on what looks like the server's: to another client, or to the sender,
    which so had a new budget whenever it liked."""
    key = key_header(b"sender " + KEY) | {"flwr-test": test}
    assert client.request("POST", PUSH_MESSAGES, body, key)[0] == 400
    assert not superlink.seen(test)
    assert "sent a message that is no reply of its own" in client.line()
    assert client.request("POST", PUSH_MESSAGES, push_messages("its reply"), key)[0] == 200


def test_a_reply_has_a_budget(client, superlink, test):
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

    key = key_header(b"greedy " + KEY) | {"flwr-test": test}

    def send(path, body=b""):
        return client.request("POST", path, body, key)[0]

    assert send(PUSH, bytes(5 * MIB)) == 200  # it was given nothing yet: the SuperLink says no
    assert send(PULL) == 200
    assert send(PUSH_MESSAGES, push_messages("its reply")) == 200
    assert [send(PUSH, bytes(MIB)) for _ in range(4)] == [200, 200, 200, 413]
    assert send(PUSH, bytes(MIB)) == 413
    assert "pushed 4.2 MB for one reply, which may have 3.1 MB" in client.line()
    assert len(client.lines()) == 1
    # The reply is taken back, so that the server need not wait for what is missing of it.
    withdrawn = superlink.seen(test)[-1]
    assert withdrawn[1] == "/v1/fleet/confirm-message-received"
    assert withdrawn[2]["flwr-public-key"] == key["flwr-public-key"]
    message = ConfirmMessageReceivedRequest.FromString(withdrawn[3])
    assert (message.node.node_id, message.run_id, message.message_object_id) == (3, 7, "its reply")
    # Another client is not concerned, and only a new message gives a new budget.
    assert client.request("POST", PUSH, bytes(MIB), key_header(b"other"))[0] == 200
    assert send(PUSH_MESSAGES, push_messages("the same again")) == 200
    assert send(PUSH, bytes(MIB)) == 413
    superlink.answers[PULL] = (200, b"")
    assert send(PULL) == 200
    assert send(PUSH, bytes(MIB)) == 413
    superlink.answers[PULL] = (200, b"a message")
    assert send(PULL) == 200
    assert send(PUSH, bytes(MIB)) == 200


def test_messages_of_clients_with_ever_new_keys_are_forgotten(client, superlink, monkeypatch, test):
    """A client without keys makes a new one whenever it connects."""
    monkeypatch.setattr(forward, "MAX_ANSWERS", 2)

    def pull(name):
        return client.request("POST", PULL, b"x", key_header(name.encode() + KEY))[1]

    superlink.answers[PULL] = (200, b"a message")
    assert [pull(name) for name in ("one", "two", "one", "three")] == [b"a message"] * 4
    superlink.answers[PULL] = (200, b"")
    assert [pull(name) for name in ("one", "two", "three")] == [b"a message", b"", b"a message"]


def test_refusals_of_clients_with_ever_new_keys_are_forgotten(client, superlink, monkeypatch, test):
    monkeypatch.setattr(forward, "MAX_ANSWERS", 1)
    monkeypatch.setattr(forward, "ANEW_SECONDS", 0.05)
    superlink.answers[PULL] = (401, b"{}")
    for name in (b"one", b"two", b"one"):  # the last time as if it had never come
        signed = {"flwr-timestamp": datetime.now(UTC).isoformat()}
        assert client.request("POST", PULL, b"x", key_header(name + KEY) | signed)[0] == 401
        time.sleep(0.06)
    (line,) = client.lines()
    assert "was connected before this server started" in line


def test_what_is_not_stored_costs_nothing(client, superlink, test):
    key = key_header(b"unlucky " + KEY)
    assert client.request("POST", PULL, b"x", key)[0] == 200
    superlink.answers[PUSH] = (401, b"{}")
    assert {client.request("POST", PUSH, bytes(MIB), key)[0] for _ in range(5)} == {401}
    with contextlib.closing(client.socket()) as made:
        made.sendall(
            f"POST {PUSH} HTTP/1.1\r\ncontent-length: {3 * MIB}\r\nflwr-test: {test}\r\n"
            f"flwr-public-key: {key['flwr-public-key']}\r\n\r\nonly a part".encode()
        )
        wait(lambda: superlink.bodies.get(test))
    wait(lambda: test in superlink.broken_off)
    superlink.answers.clear()
    assert [client.request("POST", PUSH, bytes(MIB), key)[0] for _ in range(4)] == [
        200,
        200,
        200,
        413,
    ]


# Who is turned away, in words


@pytest.mark.parametrize(
    ("path", "status", "key", "ahead", "words"),
    [
        ("activate-node", 412, ALICE, 0, "client alice is connected already"),
        (PULL[10:], 401, ALICE, 0, "client alice: its signature does not fit"),
        (PULL[10:], 401, ALICE, -250, "client alice: its signature does not fit"),
        (PULL[10:], 401, ALICE, 60, "its clock is 60 s ahead, at most 5 are allowed"),
        (PULL[10:], 401, ALICE, -4000, "its clock is 4000 s behind, at most 305 are allowed"),
    ],
)
def test_a_refusal_of_the_superlink_is_told(
    path, status, key, ahead, words, tls_client, superlink, test
):
    assert tls_client.post("/v1/fleet/activate-node", **key_header(key))[0] == 200
    superlink.answers["/v1/fleet/" + path] = (status, b'{"code": 1}')
    signed = (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat()
    answer = tls_client.post("/v1/fleet/" + path, b"x", **key_header(key), flwr_timestamp=signed)
    assert answer == (status, b'{"code": 1}')
    assert words in tls_client.line()


def test_a_client_of_an_earlier_start_is_no_alarm(
    open_gate, superlink, certificates, test, monkeypatch
):
    """Its first request after a restart is refused, and then it comes back by itself."""
    lines = []
    tls = {"ssl_certfile": certificates.certificate, "ssl_keyfile": certificates.key}
    with (
        serving(superlink, **tls) as link,
        open_gate(
            link, tls=certificates, names=lambda: {KEY: "a", ALICE: "b"}, report=lines.append
        ) as gate,
    ):
        client = Client(gate, lines, certificates.ca)
        superlink.answers[PULL] = (401, b"{}")
        for _ in range(2):
            assert client.post(PULL, b"x", **key_header(KEY))[0] == 401
        assert wait(lambda: lines) == [
            f"{client.address}: client a was connected before this server started, and "
            "connects again"
        ]
        client.post("/v1/fleet/activate-node", b"x", **key_header(KEY))
        client.post(PULL, b"x", **key_header(KEY))  # connected, and refused all the same
        assert "client a: its signature does not fit" in client.line()
        monkeypatch.setattr(forward, "ANEW_SECONDS", 0.0)  # one that never comes back
        other = Client(gate, lines, certificates.ca)
        other.post(PULL, b"x", **key_header(ALICE))
        assert "client b: its signature does not fit" in other.line()


@pytest.mark.parametrize("path", fleet_methods.METHODS)
def test_an_unlisted_key_reaches_nothing_of_the_superlink(path, tls_client, superlink, test):
    """The SuperLink still knows a key that was revoked."""
    status, body = tls_client.post(path, b"x", **key_header(KEY), flwr_test=test)
    arriving = path.endswith(("/activate-node", "/register-node"))
    code = {"code": 2004} if arriving else {}  # a SuperNode prints it
    assert json.loads(body) == {**code, "detail": "This key is not registered."}
    assert (status, superlink.seen(test)) == (412 if arriving else 401, [])
    assert tls_client.line() == f"key {FINGERPRINT} is not registered here"


def test_a_client_that_was_let_in_may_sign_off_when_its_key_is_revoked(
    open_gate, superlink, certificates, test
):
    names = {KEY: "revoked"}
    tls = {"ssl_certfile": certificates.certificate, "ssl_keyfile": certificates.key}
    with (
        serving(superlink, **tls) as link,
        open_gate(link, tls=certificates, names=lambda: names) as gate,
    ):
        client = Client(gate, [], certificates.ca)
        assert client.post("/v1/fleet/activate-node", **key_header(KEY))[0] == 200
        names.clear()
        assert client.post(PULL, **key_header(KEY), flwr_test=test)[0] == 401
        assert client.post(fleet_methods.DEACTIVATE, **key_header(KEY), flwr_test=test)[0] == 200
    assert len(superlink.seen(test)) == 1


def test_no_key_and_what_is_none(tls_client, superlink, test):
    assert tls_client.post("/v1/fleet/register-node", flwr_test=test)[0] == 412
    assert tls_client.line("came without a key")
    assert tls_client.post(PULL, **key_header(b"no key"), flwr_test=test)[0] == 401
    assert not superlink.seen(test)


def test_a_listed_key_that_the_superlink_does_not_have_yet_is_to_try_again(
    open_gate, superlink, certificates, test
):
    names, lines = {KEY: None}, []
    tls = {"ssl_certfile": certificates.certificate, "ssl_keyfile": certificates.key}
    with (
        serving(superlink, **tls) as link,
        open_gate(link, tls=certificates, names=lambda: names, report=lines.append) as gate,
    ):
        early = Client(gate, lines, certificates.ca)
        assert early.post("/v1/fleet/activate-node", **key_header(KEY), flwr_test=test)[0] == 503
        assert not superlink.seen(test)
        names[KEY] = "late"
        assert early.post("/v1/fleet/activate-node", **key_header(KEY), flwr_test=test)[0] == 200
    assert lines == []


def test_a_key_that_is_revoked_while_its_client_waits_gets_no_message(
    open_gate, superlink, certificates, test
):
    names, lines = {KEY: "a"}, []
    superlink.answers[PULL] = (200, b"")
    tls = {"ssl_certfile": certificates.certificate, "ssl_keyfile": certificates.key}
    with (
        serving(superlink, **tls) as link,
        open_gate(link, tls=certificates, names=lambda: names, report=lines.append) as gate,
        ThreadPoolExecutor(1) as thread,
    ):
        client = Client(gate, lines, certificates.ca)
        body = PullMessagesRequest(node=Node(node_id=1)).SerializeToString()
        answer = thread.submit(client.post, PULL, body, **key_header(KEY), flwr_test=test)
        wait(lambda: len(superlink.seen(test)) == 2)  # at once, and when it has its place
        superlink.answers[PULL] = (200, b"a message")
        names.clear()
        gate.wake(1)
        assert answer.result(5)[0] == 401
        assert len(superlink.seen(test)) == 2


# TLS


def test_versions_of_tls_before_1_2_are_not_spoken(certificates):
    assert server_context(certificates).minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("name", ["CA", "another CA"])  # the same name: made anew
def test_a_client_that_does_not_trust_us(name, tls_gate, lines, tmp_path):
    client = Client(tls_gate, lines, make_certificates(tmp_path, name).ca)
    with pytest.raises(ssl.SSLCertVerificationError):
        client.socket()
    assert client.line().startswith("does not trust our certificate")


def test_one_reason_hides_no_other_of_the_same_address(tls_gate, lines, tmp_path):
    """As of a second client behind the same router."""
    client = Client(tls_gate, lines, make_certificates(tmp_path, "another CA").ca)
    address = ("127.0.0.1", tls_gate.port)
    with socket.create_connection(address, source_address=(client.address, 0)) as made:
        made.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        client.line("spoke plain text")
    with pytest.raises(ssl.SSLCertVerificationError):
        client.socket()
    client.line("does not trust our certificate")


def test_a_certificate_that_has_expired(open_gate, lines, tmp_path):
    tls = make_certificates(tmp_path, days=-1)
    with open_gate(tls=tls) as gate:
        client = Client(gate, lines, tls.ca)
        with pytest.raises(ssl.SSLCertVerificationError):
            client.socket()
        assert "it has expired" in client.line()


def test_a_client_that_knows_us_by_another_name(tls_client, certificates):
    context = ssl.create_default_context(cafile=certificates.ca)
    address = ("127.0.0.1", tls_client.gate.port)
    with (
        socket.create_connection(address, source_address=(tls_client.address, 0)) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(plain, server_hostname="server.example.org")
    assert "does not hold the name or address" in tls_client.line()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (f"POST {PULL} HTTP/1.1\r\n\r\n".encode(), "spoke plain text to the TLS port"),
        (b"\x00\x01\x02 garbage" * 9, "sent something that is no TLS"),
        (b"", "closed the connection before a TLS handshake"),
        (b"\x16\x03\x01\x02\x00\x01", "closed the connection before a TLS handshake"),
    ],
)
def test_what_is_no_tls(data, words, tls_gate, lines):
    client = Client(tls_gate, lines)
    with contextlib.closing(client.socket()) as made:
        made.sendall(data)
        if data[:1] != b"\x16":
            made.shutdown(socket.SHUT_WR)
            made.recv(100)
    assert words in client.line()


def test_tls_spoken_to_a_plain_port(plain_gate, lines, certificates):
    client = Client(plain_gate, lines, certificates.ca)
    with pytest.raises(OSError):
        client.socket()
    assert client.line().startswith(
        "spoke TLS, but this server speaks plain text: start it with its keys (security=FOLDER)"
    )


def test_a_superlink_that_is_not_ours(superlink, certificates, tmp_path, lines, open_gate):
    other = make_certificates(tmp_path)
    tls = {"ssl_certfile": other.certificate, "ssl_keyfile": other.key}
    with (
        serving(superlink, **tls) as link,
        open_gate(link, tls=certificates, names=lambda: {KEY: "a"}) as gate,
    ):
        assert Client(gate, lines, certificates.ca).post(PULL, **key_header(KEY))[0] == 503


# A SuperLink that fails


def test_a_dead_superlink(open_gate, lines, tmp_path):
    with open_gate(tmp_path / "dead") as gate:
        client = Client(gate, lines)
        begun = time.monotonic()
        assert client.post(PULL, b"x")[0] == 503
        assert client.post(PUSH, bytes(MIB))[0] == 503
        assert time.monotonic() - begun < 2
    assert any("SuperLink behind the gate does not answer" in line for line in lines)


def test_a_superlink_that_comes_back(open_gate, superlink):
    with tempfile.TemporaryDirectory(prefix="orch") as folder, contextlib.ExitStack() as stack:
        link = Path(folder) / "link"
        with serving(superlink, link):
            client = Client(stack.enter_context(open_gate(link)), [])
            assert client.post(PULL)[0] == 200
        assert client.post(PULL)[0] == 503
        stack.enter_context(serving(superlink, link))
        assert client.post(PULL)[0] == 200


def test_a_response_that_breaks_off(client, superlink):
    with contextlib.closing(client.connection()) as made:
        made.request("POST", OBJECT, headers={"flwr-test": "break off"})
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            made.getresponse().read()
    assert client.post(OBJECT)[0] == 200


# Clients that fail


def test_a_client_that_vanishes(client, superlink, test):
    with contextlib.closing(client.socket()) as made:
        head = f"POST {PUSH} HTTP/1.1\r\ncontent-length: 1000000\r\nflwr-test: {test}\r\n\r\n"
        made.sendall(head.encode() + bytes(1000))
        wait(lambda: superlink.bodies.get(test))
    wait(lambda: test in superlink.broken_off)
    assert client.post(PULL)[0] == 200


def closed(made):
    made.settimeout(5)
    with contextlib.suppress(ConnectionResetError):
        while made.recv(65536):
            pass
    return True


@pytest.mark.parametrize("begun", [b"", b"\r\n", b"POST /v1/fleet/pull"])
def test_waiting_is_bounded(begun, open_gate, monkeypatch):
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.3)
    lines = []
    with open_gate(report=lines.append) as gate:
        client = Client(gate, lines)
        with contextlib.closing(client.socket()) as made:
            made.sendall(begun)
            assert closed(made)
        with contextlib.closing(client.connection()) as made:
            made.request("POST", PULL, b"x")
            assert made.getresponse().read() == b"1"
            made.sock.sendall(begun)
            assert closed(made.sock)
    assert bool(lines) == begun.startswith(b"POST")
    assert all("did not end the head of a request within 0.3 s" in line for line in lines)


@pytest.mark.parametrize("length", [100, 64 * 1024 + 1])
def test_a_slow_body_is_bounded(length, open_gate, monkeypatch):
    monkeypatch.setattr(connection, "EXCHANGE_SECONDS", 0.5)
    lines = []
    with open_gate(report=lines.append) as gate:
        client = Client(gate, lines)
        with contextlib.closing(client.socket()) as made:
            made.sendall(f"POST {PULL} HTTP/1.1\r\ncontent-length: {length}\r\n\r\n".encode())
            begun = time.monotonic()
            with contextlib.suppress(OSError):
                while time.monotonic() - begun < 5:
                    made.sendall(b"x")
                    time.sleep(0.05)
            assert time.monotonic() - begun < 3
        assert client.line("did not end a request")


@pytest.mark.parametrize(
    ("request_line", "key"),
    [(f"POST {PUSH}", KEY), ("POST /v1/control/start-run", ALICE), ("GET /health", b"")],
)
def test_the_rest_of_a_strangers_request_has_seconds(
    request_line, key, tls_client, monkeypatch, superlink
):
    monkeypatch.setattr(connection, "STRANGER_SECONDS", 0.3)
    named = f"flwr-public-key: {key_header(key)['flwr-public-key']}\r\n"
    with contextlib.closing(tls_client.socket()) as made:
        made.sendall(f"{request_line} HTTP/1.1\r\n{named}content-length: 100\r\n\r\n".encode())
        begun = time.monotonic()
        assert made.recv(100).startswith(b"HTTP/1.1 ")  # the answer does not wait for it
        with contextlib.suppress(OSError):
            while time.monotonic() - begun < 5:
                made.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - begun < 3
    assert tls_client.line("did not end a request that was answered within 0.3 s")


def test_a_client_has_time_for_the_rest_of_what_was_too_large(client, monkeypatch):
    """A connection that is closed in the middle would make its SuperNode try again for ever."""
    monkeypatch.setattr(connection, "STRANGER_SECONDS", 0.1)
    size = 64 * 1024 + 1
    with contextlib.closing(client.socket()) as made:
        made.sendall(f"POST {PULL} HTTP/1.1\r\ncontent-length: {size}\r\n\r\n".encode())
        answer = b""
        while b"}" not in answer:
            answer += made.recv(1000)
        assert answer.startswith(b"HTTP/1.1 413")
        for _ in range(8):
            made.sendall(bytes(size // 8))
            time.sleep(0.05)
        made.sendall(bytes(size % 8) + f"{POST}content-length: 0\r\n\r\n".encode())
        assert b"HTTP/1.1 200" in made.recv(1000)


def test_a_response_that_nobody_takes(open_gate, superlink, monkeypatch, test):
    monkeypatch.setattr(connection, "EXCHANGE_SECONDS", 0.5)
    superlink.answers[OBJECT] = (200, bytes(30 * MIB))
    lines = []
    with open_gate(report=lines.append) as gate:
        client = Client(gate, lines)
        with contextlib.closing(client.socket()) as made:
            made.sendall(f"{FETCH}content-length: 0\r\n\r\n".encode())
            assert "take its response within 0.5 s" in client.line()
            assert closed(made)
        superlink.answers.clear()
        assert client.post(PULL)[0] == 200


def test_a_head_is_bounded(client, superlink):
    before = len(superlink.requests)
    with contextlib.closing(client.socket()) as made, pytest.raises(OSError):
        made.sendall(POST.encode())
        for _ in range(1000):
            made.sendall(b"flwr-x: " + bytes([120]) * 1000 + b"\r\n")
            time.sleep(0.001)
    assert "sent a head of more than 65536 bytes" in client.line()
    assert len(superlink.requests) == before


@pytest.mark.parametrize("trailer", [b"x: ", b"x: y\r\n"])
def test_what_comes_behind_the_chunks_of_a_request_is_bounded(trailer, client):
    """A request in chunks may have headers at its end, of whatever length."""
    with contextlib.closing(client.socket()) as made, pytest.raises(OSError):
        made.sendall(b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
        for _ in range(1000):
            made.sendall(trailer * 3000)
            time.sleep(0.001)


def test_connections_are_bounded_and_forgotten(open_gate, certificates, monkeypatch):
    monkeypatch.setattr(admission, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(admission, "MAX_OF_A_PEER", 2)
    lines = []
    with open_gate(1, tls=certificates, report=lines.append) as gate:
        for _ in range(5):  # handshakes that fail leave nothing behind
            Client(gate, lines).raw(b"garbage")
            with contextlib.closing(Client(gate, lines, certificates.ca).socket()):
                pass
        one, other = (Client(gate, lines, certificates.ca) for _ in range(2))
        with contextlib.ExitStack() as stack:

            def connect(client):
                stack.enter_context(contextlib.closing(client.socket()))

            wait(lambda: one.post(PULL)[0] == 401)
            connect(one)
            connect(one)
            with pytest.raises(OSError):
                connect(one)
            assert one.line("connections") == (
                "has 2 of 2 connections, and gets no more (a peer may have 2, all together 3)"
            )
            connect(other)
            with pytest.raises(OSError):
                connect(other)
            assert other.line().startswith("has 1 of 3 connections")
        wait(lambda: reachable(other))


def test_a_report_that_waits_for_a_disk_holds_up_nobody_and_is_not_lost(open_gate):
    lines, disk = [], threading.Event()

    def report(line):
        assert disk.wait(10)
        lines.append(line)

    with open_gate(report=report) as gate:
        client = Client(gate, lines)
        assert client.post("/one")[0] == 404
        client.raw(b"GET /two\r\n\r\n")
        assert client.post(PULL)[0] == 200 and not lines
        disk.set()
    assert ["/one" in line for line in lines] == [True, False]  # in their order


def test_a_network_of_ipv6_counts_as_one_peer():
    of = admission.network_of
    assert of("2001:db8::1") == of("2001:db8::ffff:1") != of("2001:db8:0:1::1")
    assert of("fe80::1%eth0") == of("fe80::2%eth0")
    assert of("10.0.0.1") != of("10.0.0.2") and of("a peer already gone") == "a peer already gone"


def reachable(client):
    with contextlib.suppress(OSError):
        return client.post(PULL)[0] == 401
    return False


# Start and stop


def test_an_address_that_is_taken(plain_gate):
    taken = Gate("127.0.0.1", plain_gate.port, "127.0.0.1:1", tls=None, names=dict, report=print)
    with pytest.raises(
        ConfigError, match=f"port={plain_gate.port}: another program listens there: stop it"
    ) as error:
        taken.start()
    assert "\n" not in str(error.value)
    taken.stop()


@pytest.mark.parametrize("missing", ["certificate", "key", "ca"])
def test_files_that_are_no_certificates(missing, certificates, tmp_path, open_gate):
    broken = tmp_path / "broken"
    broken.write_text("no PEM")
    for file in (broken, tmp_path / "none"):
        files = dataclasses.replace(certificates, **{missing: file})
        with pytest.raises(ConfigError, match=str(file)):
            open_gate(tls=files).start()


def test_stop_ends_what_is_under_way(open_gate, monkeypatch):
    monkeypatch.setattr(listening, "STOP_SECONDS", 0.2)
    threads = threading.active_count()
    gate = open_gate()
    gate.start()
    client = Client(gate, [])
    with contextlib.closing(client.socket()) as made:
        made.sendall(f"POST {PUSH} HTTP/1.1\r\ncontent-length: 9\r\n\r\n".encode())
        begun = time.monotonic()
        gate.stop()
        assert time.monotonic() - begun < 5
        assert closed(made)
    assert threading.active_count() == threads
    with pytest.raises(ConnectionRefusedError):
        client.socket()


# Flower itself


def test_the_methods_are_those_of_flower():
    from flwr.superlink.routers.fleet.router import router

    assert set(fleet_methods.METHODS) == {route.path for route in router.routes}


@pytest.mark.slow
def test_a_supernode_connects_and_nobody_controls(open_gate, lines, tmp_path):
    environment = os.environ | {
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }

    def start(stack, name, *arguments):
        started = subprocess.Popen(
            [*socket_server_command(tmp_path / name, name), "--insecure", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        stack.callback(end, started)
        return started

    isolated = ("--isolation", "process")
    link = tmp_path / "flower-superlink"
    with contextlib.ExitStack() as stack:
        start(stack, link.name, *isolated, "--disable-runtime-dependency-installation")
        gate = stack.enter_context(open_gate(link))
        supernode = start(
            stack, "flower-supernode", *isolated, "--superlink", f"127.0.0.1:{gate.port}"
        )
        log = itertools.takewhile(lambda line: "SuperNode ID" not in line, supernode.stdout)
        print(*log, sep="")
        assert supernode.poll() is None
        client = Client(gate, lines)
        assert json.loads(client.request("GET", "/health")[1])["superlink"] is True
        for call in ("control/list-runs", "control/start-run", "runtime/acquire-task"):
            assert client.post("/v1/" + call)[0] == 404
        direct = httpx.Client(transport=httpx.HTTPTransport(uds=str(link)))
        head = {"content-type": "application/protobuf"}
        answer = direct.post("http://127.0.0.1/v1/control/list-runs", content=b"", headers=head)
        assert answer.status_code == 200


def end(process):
    """Ends a process and what it has started."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
