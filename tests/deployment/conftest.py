"""A server's folder to try things on, and the command as a person calls it."""

import errno
import hashlib
import os
import shutil
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Context, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory

from orchestra_flwr.deployment.keys.command_line import main
from orchestra_flwr.deployment.processes import client_process
from orchestra_flwr.deployment.watch.client_status import ClientStatus
from orchestra_flwr.flower.deployed_app import APP


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def unreadable():
    """A context in which no key file can be read, as where a network disk is away for a moment."""

    @contextmanager
    def fail():
        def stale(self, *_, **__):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "open", stale)
            yield

    return fail


@pytest.fixture
def contents():
    """Every path below a folder with its bytes."""

    def read(folder: Path) -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}

    return read


@pytest.fixture
def keys(tmp_path, monkeypatch, capsys):
    """Runs the command in an empty folder; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def refused(keys, contents, tmp_path):
    """Runs a command that must fail in one line and leave everything as it was."""

    def call(*arguments):
        before = contents(tmp_path)
        code, out, err = keys(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
        assert contents(tmp_path) == before
        return err

    return call


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template") / "security"
    hosts = "host=example.org,10.0.0.5,2001:db8::5"
    assert main(["server", f"folder={folder}", hosts, "client=site-1"]) == 0
    return folder


@pytest.fixture
def security(template, tmp_path):
    """A server's folder with one client's bundle."""
    return Path(shutil.copytree(template, tmp_path / "security"))


@pytest.fixture
def bundle(security):
    """The folder of the client site-1."""
    return security / "bundles" / "site-1"


@pytest.fixture
def new_line():
    """Makes the line of a new public key."""

    def make(name: str = "site-2") -> bytes:
        key = ec.generate_private_key(ec.SECP384R1()).public_key()
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return line + f" {name}\n".encode()

    return make


@pytest.fixture
def public(tmp_path, new_line):
    """The public key of a client, site-2, as it was brought to the server."""
    path = tmp_path / "client.pub"
    path.write_bytes(new_line())
    return path


@pytest.fixture
def leaks(monkeypatch):
    """What of a client's machine is in the bytes that it sent: see `faults/leaks.py`."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from faults.leaks import leaks

    return leaks


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NO_ARCHIVE = Fab(hashlib.sha256(b"x").hexdigest(), b"x", {})


class Node:
    """Flower's own Runtime API of a SuperNode at a socket; the server's messages are put in here.

    Args:
        folder: for the socket.
    """

    def __init__(self, folder: Path) -> None:
        self.objects = ObjectStoreFactory()
        factory = NodeStateFactory(objectstore_factory=self.objects)
        self.state = factory.state()
        self.state.set_node_id(7)
        self.socket = folder / "node"
        config = uvicorn.Config(create_app(factory), uds=str(self.socket), log_config=None)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def put(self, content, kind="train", *, app=APP, run=1, task_type=TaskType.CLIENT_APP):
        """A message as a SuperNode stores it; its number."""
        about = replace(Run.create_empty(run), fab_id=app, fab_hash=NO_ARCHIVE.hash_str)
        self.state.store_run(about)
        self.state.store_fab(NO_ARCHIVE)
        context = Context(run, 7, {}, RecordDict(), {}, series_id=about.series_id)
        self.state.set_run_series_context(about.series_id, context)
        self.state.create_task(task_type=task_type, run_id=run, fab_hash=NO_ARCHIVE.hash_str)
        metadata = Metadata(run, "", 1, 7, "", "", time.time(), 3600.0, kind)
        message = make_message(metadata, content=content)
        message.metadata.__dict__["_message_id"] = message.object_id
        store = self.objects.store()
        store.preregister(run, get_object_tree(message))
        for key, value in get_all_nested_objects(message).items():
            store.put(key, value.deflate())
        self.state.store_message(remove_content_from_message(message))
        return message.metadata.message_id

    def answer(self, seconds=60):
        """Waits for a reply: (its code and reason, if it is an error; all its bytes)."""
        deadline = time.monotonic() + seconds
        while not (replies := self.state.get_messages_legacy(is_reply=True)):
            assert time.monotonic() < deadline, "no reply came"
            time.sleep(0.02)
        (reply,) = replies
        about = reply.metadata
        data = message_to_proto(reply).SerializeToString()
        if reply.has_error():
            self.state.delete_messages(message_ids=[about.message_id, about.reply_to_message_id])
            return (reply.error.code, reply.error.reason), data
        store = self.objects.store()
        tree = store.get_object_tree(reply.metadata.message_id)
        # The reply comes first, and then what it is made of.
        while not all(pieces := [store.get(part.object_id) for part in iterate_object_tree(tree)]):
            assert time.monotonic() < deadline, "not all of a reply came"
            time.sleep(0.02)
        self.state.delete_messages(message_ids=[about.message_id, about.reply_to_message_id])
        return None, data + b"".join(pieces)

    def close(self):
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def serving():
    """Makes a SuperNode's API and a client's process that answers its messages."""
    running = []

    def make(worker, report):
        folder = Path(tempfile.mkdtemp(prefix="orch"))  # short: sockets
        node = Node(folder)
        about = {"connected": lambda: True, "problem": lambda: None, "certificates": ()}
        status = ClientStatus("a", "host:1", 20, **about)
        arguments = (node.socket, worker, report, status)
        thread = threading.Thread(target=client_process._serve, args=arguments)
        thread.start()
        running.append((folder, node, thread))
        return node

    yield make
    for folder, node, thread in running:
        node.close()
        thread.join()
        shutil.rmtree(folder)
