"""What a client says of a server that it cannot use: the cause, and what to do."""

import http.server
import itertools
import json
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from orchestra_flwr import __version__
from orchestra_flwr.config import load
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.keys.certificates import (
    certificate_pem,
    new_authority,
    new_server_certificate,
    parse_host,
    private_pem,
)
from orchestra_flwr.deployment.processes import reachability
from orchestra_flwr.deployment.processes.reachability import UnreachableError, check_server


class Quiet(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """A handshake that the client breaks off."""


@pytest.fixture
def answering(tmp_path):
    """Starts a server; returns its address and, with TLS, the CA's file."""
    started = []

    def start(*, host="127.0.0.1", begins=timedelta(0), ahead=0.0, body=None, plain=False):
        now = datetime.now(UTC)
        authority = new_authority(now - timedelta(days=99))
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = new_server_certificate(authority, key, [parse_host(host)], now + begins, 9)
        (tmp_path / "server.crt").write_bytes(certificate_pem(certificate))
        (tmp_path / "server.key").write_bytes(private_pem(key))
        (tmp_path / "ca.crt").write_bytes(certificate_pem(authority.certificate))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                about = json.dumps({"version": __version__, "time": time.time() + ahead}).encode()
                self.send_response(200)
                self.end_headers()
                for part in [about] if body is None else body():
                    self.wfile.write(part)

            def log_message(self, *_):
                """Nothing."""

        server = Quiet(("127.0.0.1", 0), Answer)
        if not plain:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        started.append(server)
        return f"127.0.0.1:{server.server_port}", None if plain else tmp_path / "ca.crt"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        ({"begins": timedelta(days=-20)}, "has expired .*keys server at the server .* set the cl"),
        ({"begins": timedelta(days=20)}, "is not yet valid on .*: set the clock"),
        ({"host": "example.org"}, "is not for 127.0.0.1: .*keys server host=... with every name"),
    ],
)
def test_a_certificate_that_does_not_fit_is_told_apart_from_a_stranger(
    answering, certificate, says
):
    with pytest.raises(UnreachableError, match=says):
        check_server(*answering(**certificate), "")


@pytest.mark.parametrize(
    ("insecure", "cure"),
    [("true", "leave out insecure=true, "), ("false", "there are no keys in /.*/security: put ")],
)
def test_a_server_with_keys_is_said_with_what_this_client_lacks(
    answering, insecure, cure, monkeypatch, tmp_path
):
    """Who had not given insecure=true was told to leave it out."""
    monkeypatch.chdir(tmp_path)
    config = load(ClientConfig, ["server=127.0.0.1:1", "data.root=x", f"insecure={insecure}"])
    server, _ = answering()
    with pytest.raises(UnreachableError, match=f"{server} does not speak plain text: {cure}"):
        check_server(server, None, config.way_to_tls)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("ahead", "says"), [(4000, "\\d+ s behind"), (-4000, "\\d+ s ahead of")])
def test_a_clock_that_is_hours_off_is_said_where_it_can_be_set(answering, ahead, says, plain):
    server, ca = answering(ahead=ahead, plain=plain)
    with pytest.raises(
        UnreachableError, match=f"this machine's clock is .*{says} that of {server}: set the one"
    ):
        check_server(server, ca, "")


@pytest.mark.parametrize("ahead", [300, -60, -3000])
def test_a_difference_of_minutes_is_measured(answering, ahead):
    """The client signs by the server's time then."""
    assert check_server(*answering(ahead=ahead), "") == pytest.approx(-ahead, abs=5)


def endless():
    return itertools.repeat(b" " * 1000)


def slow():
    return (time.sleep(0.2) or b" " for _ in range(1000))


def nested():
    return [b'{"version": ' + b"[" * 4000]


@pytest.mark.parametrize("body", [endless, slow, nested])
def test_an_answer_that_does_not_end_is_read_no_further(answering, body, monkeypatch):
    """A hostile server shall not fill the memory, nor end or hold up who asks again and again."""
    monkeypatch.setattr(reachability, "TIMEOUT", 1.0)
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="answers, but is no server of orchestra_flwr"):
        check_server(*answering(body=body), "")
    assert time.monotonic() - began < 10
