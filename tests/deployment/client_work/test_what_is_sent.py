"""Everything that a client hands to Flower for its server, searched for what must stay here.

The same with real processes, and the bytes on the wire: `end_to_end/test_traffic.py`.
"""

import platform
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from PIL import Image

from orchestra_flwr.deployment.channel import relay_app
from orchestra_flwr.deployment.channel.unix_socket import ChannelListener
from orchestra_flwr.deployment.processes import client_process
from orchestra_flwr.deployment.processes.scratch_folder import scratch_folder
from orchestra_flwr.federation.engines.inline import identify_process
from orchestra_flwr.federation.messages.arrays import ARRAYS, CONFIG
from orchestra_flwr.federation.messages.failures import Failure

identify_process()


@pytest.fixture
def photos(photos):
    """In class folders, with names that say too much, one of them broken."""
    for i, file in enumerate(sorted(photos.iterdir())):
        folder = photos / ("HIV_positive" if i % 2 else "HIV_negative")
        folder.mkdir(exist_ok=True)
        file.rename(folder / f"Jane_Doe_{i}.png")
    broken = photos / "HIV_positive" / "Jane_Doe_broken.jpg"
    broken.write_bytes(np.random.default_rng(1).bytes(500))
    return photos


class Client:
    """A client's process behind its channel, and all that its ClientApp gives to Flower."""

    def __init__(self, trainer, scratch, said):
        self.sent = b""
        self.errors = []
        self.trainer = trainer
        self.listener = ChannelListener(scratch)
        self._said = said

    def ask(self, kind, content):
        def answer():
            client_process._answer(self.trainer, self.listener.accept(30), self._said.append)

        thread = threading.Thread(target=answer)
        thread.start()
        reply = self.relay(kind, content, self.listener.address)
        thread.join()
        return reply

    def relay(self, kind, content, address):
        message = Message(content, 1, "train")
        context = SimpleNamespace(node_config={"channel": address})
        reply = relay_app._relay(kind, message, context)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.sent += message_to_proto(reply).SerializeToString()
        for each in get_all_nested_objects(reply).values():
            self.sent += each.deflate()
        if reply.has_error():
            self.errors.append((reply.error.code, reply.error.reason))
        return reply


@pytest.fixture
def client(trainer, said):
    clients = []
    with scratch_folder() as scratch:

        def make(*overrides):
            clients.append(Client(trainer(*overrides), scratch, said))
            return clients[-1]

        yield make
        for each in clients:
            each.listener.close()


@pytest.fixture
def assert_nothing_leaks(leaks, photos, monkeypatch):
    private = ["ward-7-of-st-mary", "jane-from-ward-7", "site-packages", str(Path.cwd())]
    monkeypatch.setattr(socket, "gethostname", lambda: private[0])
    monkeypatch.setattr(platform, "node", lambda: private[0])
    for variable in ("USER", "LOGNAME", "HOME"):
        monkeypatch.setenv(variable, private[1])

    def check(sent):
        assert leaks(sent, photos, 16, *private) == []

    return check


def test_the_search_finds_images_and_names(leaks, photos):
    """In whatever form they would be sent."""
    file = photos / "HIV_positive" / "Jane_Doe_1.png"
    pixels = np.asarray(Image.open(file))
    for sent in (
        file.read_bytes(),
        pixels.tobytes(),
        np.ascontiguousarray(pixels.transpose(2, 0, 1)).tobytes(),
        (pixels / np.float32(255)).astype(np.float32).tobytes(),
        (pixels / np.float32(127.5) - 1).astype(np.float16).tobytes(),
    ):
        assert f"bytes of {file.name}" in leaks(b"head" + sent + b"tail", photos, 16)
    assert {"HIV_positive", file.name} <= set(leaks(f"cannot read {file}".encode(), photos, 16))


def test_a_run_sends_what_was_computed_and_nothing_of_the_machine(
    client, configured, greeting, task, said, assert_nothing_leaks
):
    server, one = configured("evaluation.unsupervised=true"), client()
    assert one.ask("greet", greeting(server)).content[CONFIG]["images"] == 20
    one.ask("train", task(server, 0))
    trained = one.ask("train", task(server, 1)).content[ARRAYS]["shared"].numpy()
    one.ask("evaluate", task(server, 1))
    assert one.errors == [] and "1 image files cannot be read and are left out" in said
    assert b"kitchen" in one.sent  # the record holds what is sent
    assert trained.tobytes()[:4000] in one.sent
    assert_nothing_leaks(one.sent)


def test_a_refusal_sends_nothing_but_its_word(
    client, server, greeting, said, photos, assert_nothing_leaks
):
    one = client("data.limit=7")
    one.ask("greet", greeting(server))
    one.ask("greet", greeting(server, version="9.9"))
    unmounted = photos.rename(photos.with_name("unmounted"))
    one.trainer._images = None
    one.ask("greet", greeting(server))
    unmounted.rename(photos)
    supervised = server.model_dump() | {"method": {"name": "supervised", "classes": ["a", "b"]}}
    one.ask("greet", greeting(type(server).model_validate(supervised)))
    for word in ("too_few_images", "other_version", "data_unreadable"):
        assert word.encode() in one.sent
    assert any(str(photos) in line for line in said)  # the person at the client is told
    assert_nothing_leaks(one.sent)


def test_a_failure_sends_nothing_but_its_word(
    client, server, task, said, photos, assert_nothing_leaks, capfd
):
    """Images that cannot be read, a disk that takes no state, a client that has ended."""
    one = client()
    kept = {file: file.read_bytes() for file in photos.rglob("*.png")}
    for file in kept:
        file.write_bytes(b"broken")
    one.ask("train", task(server))
    for file, data in kept.items():
        file.write_bytes(data)
    content = task(server)
    content[CONFIG] = ConfigRecord({**content[CONFIG], "schema": "HIV_positive"})
    one.ask("train", content)
    ended = str(photos / "channel")
    one.relay("train", task(server), ended)
    unreadable, failed = Failure.DATA_UNREADABLE, Failure.FAILED
    assert one.errors == [(each.value, each.word) for each in (unreadable, failed, failed)]
    assert "HIV_positive" in "".join(said)
    assert ended in capfd.readouterr().err  # the SuperNode's log, on this machine
    assert_nothing_leaks(one.sent)
