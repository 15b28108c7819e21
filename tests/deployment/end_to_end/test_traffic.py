"""All bytes that real clients send, recorded in front of the gate and searched."""

import os
import secrets
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

HOST = "ward-7-of-st-mary" if os.geteuid() == 0 else socket.gethostname()
# Root can give a process a host name of its own.
WARD = ("unshare", "--uts", "sh", "-c", f'hostname {HOST}; exec "$@"', "sh") * (os.geteuid() == 0)
pytestmark = pytest.mark.timeout(900)


class Recorder:
    """A TCP relay on this machine that keeps what its clients send to the server.

    Args:
        port: where the server listens.
    """

    def __init__(self, port):
        self.sent = bytearray()
        self._target = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listening.close()

    def _accept(self):
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            for source, sink, kept in ((near, far, self.sent), (far, near, None)):
                threading.Thread(target=pump, args=(source, sink, kept), daemon=True).start()


def pump(source, sink, kept):
    try:
        while data := source.recv(65536):
            if kept is not None:
                kept += data
            sink.sendall(data)
    except OSError:
        pass
    for connection in (source, sink):
        connection.close()


class Clients:
    """Starts clients that have a recorder each in front of their server."""

    def __init__(self, machines):
        self.recorders = {}
        self._machines = machines

    def start(self, key, *overrides):
        recorder = self.recorders[key] = Recorder(self._machines.port)
        machines = self._machines
        return machines.start(
            *WARD, sys.executable, "run_client.py",
            f"server=127.0.0.1:{recorder.port}", "insecure=true",
            f"data.root={machines.photos / key}", f"state={machines.folder / 'state' / key}",
            "device=cpu", "training.threads=1", *overrides,
        )  # fmt: skip


@pytest.fixture
def clients(machines):
    clients = Clients(machines)
    yield clients
    for recorder in clients.recorders.values():
        recorder.close()


@pytest.fixture
def temporary():
    """A folder for TMPDIR: one with a path as long as tmp_path's has no room for sockets."""
    with tempfile.TemporaryDirectory(prefix="orch") as folder:
        path = Path(folder) / "jane-from-ward-7"
        path.mkdir()
        yield path


def say_too_much(folder):
    """Sorts photographs into class folders, and breaks one of them."""
    for i, file in enumerate(sorted(folder.iterdir())):
        to = folder / ("HIV_positive" if i % 2 else "HIV_negative")
        to.mkdir(exist_ok=True)
        file.rename(to / f"Jane_Doe_{i}.png")
    (folder / "HIV_positive" / "Jane_Doe_broken.jpg").write_bytes(secrets.token_bytes(500))


@pytest.mark.slow
def test_no_byte_of_a_client_names_its_machine_or_shows_an_image(
    machines, clients, leaks, monkeypatch
):
    """One goes well, one is refused, one has no images, one fails as it releases."""
    home = machines.folder / "home" / "jane-from-ward-7"
    home.mkdir(parents=True)
    for name, value in {"HOME": home, "USER": home.name, "LOGNAME": home.name}.items():
        monkeypatch.setenv(name, str(value))
    machines.make_photos(well=24, few=24, blind=24, failing=24)
    for folder in machines.photos.iterdir():
        say_too_much(folder)
    server = machines.server(
        "federation.min_clients=2", "federation.rounds=2", "federation.min_success=0.3",
        "clustering=private", "privacy.epsilon=20",
    )  # fmt: skip
    server.wait_for("listening on")

    few = clients.start("few", "data.limit=7")
    server.wait_for("is refused: too_few_images")
    few.end()
    blind = clients.start("blind")
    blind.wait_for("connected to")  # its images go before it is greeted, or while it is
    for file in (machines.photos / "blind").rglob("*.*"):
        file.write_bytes(b"no image")
    server.wait_for("is refused: data_unreadable")
    blind.end()
    failing = clients.start("failing")
    server.wait_for("joined with 24 images")
    (state,) = (machines.folder / "state/failing").glob("client-*")
    (state / "releases.jsonl").mkdir()
    well = clients.start("well")
    assert server.wait() == 0, server.text

    assert "7 different images, the server asks for at least 16" in few.text
    assert str(state / "releases.jsonl") in failing.text
    assert {reason.split()[0] for _, _, reason in machines.dropped()} == {"failed"}
    well.wait_for("round 1: 2 steps", 5)
    secret = (HOST, home.name, str(machines.folder), "site-packages")
    for key, recorder in clients.recorders.items():
        sent = bytes(recorder.sent)
        (name,) = (p.name for p in (machines.folder / "state" / key).glob("client-*"))
        assert name.encode() in sent  # what is sent is found
        assert leaks(sent, machines.photos / key, 16, *secret) == [], key
    assert len(clients.recorders["well"].sent) > 50_000  # with the trained model
    assert str(machines.photos) not in server.text + (machines.run / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_a_client_whose_images_come_back_takes_part(machines):
    """And its health says meanwhile that it is not well."""
    machines.make_photos(a=24)
    server = machines.server("federation.min_clients=1", "federation.rounds=1")
    server.wait_for("listening on")
    folder, away = machines.photos / "a", machines.photos / "away"
    state = machines.folder / "state" / "a"
    client = machines.client("a")
    client.wait_for("a: state in")
    folder.rename(away)
    server.wait_for("client a is refused: data_unreadable")
    wait_until((state / "problem").is_file)
    assert str(folder) in (state / "problem").read_text()
    assert not (state / "alive").exists()
    away.rename(folder)
    assert server.wait() == 0, server.text
    wait_until((state / "alive").is_file)
    assert not (state / "problem").exists()


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return result


@pytest.mark.slow
def test_a_client_is_revoked_and_registered_again_in_a_running_federation(machines):
    machines.make_photos(a=24)
    machines.keys("server", f"folder={machines.security}", "host=localhost", "client=a")
    public = machines.security / "bundles" / "a" / "client.pub"
    server = machines.server("federation.min_clients=2", "federation.rounds=1")
    server.wait_for("listening on")
    client = machines.client("a")
    assert "refuses this client" not in client.text
    server.wait_for("client a joined")
    machines.keys("revoke", "name=a", f"folder={machines.security}")
    server.wait_for("revoked: a")
    server.wait_for("client a has left")
    client.wait_for("its key is not registered there")
    machines.keys("register", f"key={public}", f"folder={machines.security}")
    seen = server.text.count("client a joined")
    wait_until(lambda: server.text.count("client a joined") > seen, 120)
    listed = machines.security / "clients" / "a.pub"
    listed.rename(listed.with_stem("kitchen"))  # its client has its old name as yet
    server.wait_for("registered: kitchen")
    client.wait_for("its key is registered there as kitchen")
    client.end()
    public.write_text(public.read_text().replace(" a\n", " kitchen\n"))
    machines.client("a")
    server.wait_for("client kitchen joined")


@pytest.mark.slow
def test_what_a_killed_server_and_client_leave_is_removed_by_the_next(
    machines, monkeypatch, temporary
):
    monkeypatch.setenv("TMPDIR", str(temporary))
    machines.make_photos(a=24)
    for _ in range(2):
        server = machines.server(f"run_dir={machines.folder / 'run' / str(time.time_ns())}")
        server.wait_for("listening on")
        client = machines.client("a")
        client.wait_for("connected to")
        assert len(list(temporary.iterdir())) == 2
        for process in (client, server):
            process.send(9)
            process.wait()
        children_end(temporary)
    server = machines.server(f"run_dir={machines.folder / 'last'}")
    server.wait_for("listening on")
    assert len(list(temporary.iterdir())) == 1
    server.end()
    assert list(temporary.iterdir()) == []


def children_end(temporary):
    """Waits until no process has its files below a folder any more."""
    mark = str(temporary).encode()

    def gone():
        for environment in Path("/proc").glob("[0-9]*/environ"):
            try:
                if b"FLWR_HOME=" + mark in environment.read_bytes():
                    return False
            except OSError:
                continue
        return True

    wait_until(gone, 120)
