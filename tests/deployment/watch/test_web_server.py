"""What the small HTTP server answers, and what it withstands."""

import http.client
import socket
import time

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.watch import web_server
from orchestra_flwr.deployment.watch.web_server import line, serving


def broken():
    raise RuntimeError("a secret path")


PATHS = {"/": lambda: line("hello", 200), "/broken": broken}


@pytest.fixture
def port():
    with serving("127.0.0.1", 0, PATHS) as port:
        yield port


def ask(port, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers


def test_it_shows_its_paths_and_no_others(port):
    status, body, headers = ask(port, "/?x=1")
    assert (status, body) == (200, b"hello\n")
    assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["X-Content-Type-Options"] == "nosniff" and "Server" not in headers
    assert ask(port, "/", "HEAD")[:2] == (200, b"")
    for path in ("/etc/passwd", "/../..", "/status"):
        assert ask(port, path)[:2] == (404, b"not found; there are /, /broken\n")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(port, "/", method)[:2] == (405, b"nothing is taken here\n")


def test_a_connection_ends_with_its_answer(port):
    """So that none of the few that are taken waits for another request."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as made:
        made.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: made.recv(1000), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\nhello\n")


def test_what_goes_wrong_is_said_in_the_log_alone(port, caplog):
    assert ask(port, "/broken")[:2] == (500, b"cannot be shown: the log says why\n")
    assert "a secret path" in caplog.text
    assert ask(port)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_a_page_elsewhere_cannot_read_it_by_a_name_of_its_own(port, host):
    """DNS rebinding: the name of a stranger's page suddenly leads to this machine."""
    assert ask(port, "/", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:9", "[::1]:9", "[::1]"])
def test_this_machine_has_these_names(port, host):
    assert ask(port, "/", Host=host)[0] == 200


def test_on_a_network_it_has_any_name():
    with serving("0.0.0.0", 0, PATHS) as port:
        assert ask(port, "/", Host="fl.example.org:8444")[0] == 200


def test_slow_connections_are_cut_and_many_are_refused(monkeypatch):
    monkeypatch.setattr(web_server, "SECONDS", 0.3)
    monkeypatch.setattr(web_server, "MAX_CONNECTIONS", 3)
    with serving("127.0.0.1", 0, PATHS) as port:
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        for connection in slow:
            connection.sendall(b"GET / HTTP/1.1\r\n")
        time.sleep(0.1)  # all three are taken up
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(port)
        for connection in slow:
            connection.settimeout(5)
            assert connection.recv(100) == b""
            connection.close()
        assert ask(port)[0] == 200


def test_a_head_without_end_is_cut_off(port):
    with socket.create_connection(("127.0.0.1", port)) as made:
        made.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(100):
                made.sendall(b"x: " + 100_000 * b"a" + b"\r\n")
    assert ask(port)[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_is_gone_afterwards(host):
    try:
        with serving(host, 0, PATHS) as port:
            socket.create_connection((host, port)).close()
    except ConfigError:
        pytest.skip(f"nothing can listen on {host} here")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port))


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1", "no such name", "a\0b"])
def test_an_address_that_cannot_be_used_is_one_line(host):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        named = rf"watch.host={host} watch.port={port}: "
        with pytest.raises(ConfigError, match=named) as error, serving(host, port, {}):
            pass
    assert "\n" not in str(error.value)
