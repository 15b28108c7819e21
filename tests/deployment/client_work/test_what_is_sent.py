"""Everything that a client hands to Flower for its server, searched for what must stay here.

The same with real processes, and the bytes on the wire: `end_to_end/test_traffic.py`.
"""

import platform
import socket
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from PIL import Image

from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, ENCODER, ENCODER_KIND
from orchestra_flwr.federation.messages.schema import pack_state
from orchestra_flwr.flower.arrays import to_record
from orchestra_flwr.flower.process_identity import identify_process
from orchestra_flwr.models import Encoder, EncoderSpec, build_backbone, save_encoder

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
    """A client's process, and all that it gives to its SuperNode."""

    def __init__(self, worker, said, serving):
        self.sent = b""
        self.errors = []
        self.worker = worker
        self._node = serving(worker, said.append)

    def ask(self, kind, content, **about):
        self._node.put(content, kind, **about)
        error, data = self._node.answer()
        self.sent += data
        self.errors += [error] if error else []


@pytest.fixture
def client(worker, said, serving):
    return lambda *overrides: Client(worker(*overrides), said, serving)


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
    one.ask("query", greeting(server))
    one.ask("train", task(server, 0))
    one.ask("train", task(server, 1))
    client_of_run = one.worker._latest[1]
    trained = pack_state(client_of_run.learner, client_of_run.schemas)["shared"]
    one.ask("evaluate", task(server, 1))
    assert one.errors == [] and "1 image files cannot be read and are left out" in said
    assert b"kitchen" in one.sent  # the record holds what is sent
    assert trained.tobytes()[:4000] in one.sent
    assert_nothing_leaks(one.sent)


def test_of_an_encoder_that_comes_a_client_sends_a_word(
    client, server, tmp_path, said, assert_nothing_leaks
):
    """Also of one that is damaged, and that names a file of the client's."""
    made = tmp_path / "made" / "encoder.safetensors"
    made.parent.mkdir()
    backbone = build_backbone(server.model, 3)
    save_encoder(made, Encoder(EncoderSpec.of(server.for_clients()), backbone))
    weights = np.fromfile(made, np.uint8)
    text = made.with_suffix(".json").read_text()
    offer = {ENCODER: text, "card": "HIV_positive", "size": weights.size}
    one, arrays = client(), to_record({ENCODER: weights})
    one.ask(ENCODER_KIND, RecordDict({CONFIG: ConfigRecord(offer)}))
    one.ask(ENCODER_KIND, RecordDict({CONFIG: ConfigRecord(offer), ARRAYS: arrays}))
    offer[ENCODER] = text.replace("convnet", "HIV_positive")
    one.ask(ENCODER_KIND, RecordDict({CONFIG: ConfigRecord(offer), ARRAYS: arrays}))
    assert b"wanted" in one.sent and b"stored" in one.sent
    assert one.errors == [(Failure.FAILED.code, "failed")]
    assert str(tmp_path) in "".join(said)  # the person at the client is told
    assert_nothing_leaks(one.sent)


def test_a_refusal_sends_nothing_but_its_word(
    client, server, greeting, said, photos, assert_nothing_leaks
):
    one = client("data.limit=7")
    one.ask("query", greeting(server))
    one.ask("query", greeting(server, version="9.9"))
    unmounted = photos.rename(photos.with_name("unmounted"))
    one.worker._images = None
    one.ask("query", greeting(server))
    unmounted.rename(photos)
    supervised = server.model_dump() | {"method": {"name": "supervised", "classes": ["a", "b"]}}
    one.ask("query", greeting(type(server).model_validate(supervised)))
    for word in ("too_few_images", "other_version", "data_unreadable"):
        assert word.encode() in one.sent
    assert any(str(photos) in line for line in said)  # the person at the client is told
    assert_nothing_leaks(one.sent)


def test_a_failure_sends_nothing_but_its_word(
    client, server, task, said, photos, assert_nothing_leaks
):
    """Images that cannot be read, a model that is another."""
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
    unreadable, failed = Failure.DATA_UNREADABLE, Failure.FAILED
    assert one.errors == [(failure.code, failure.word) for failure in (unreadable, failed)]
    assert "HIV_positive" in "".join(said)
    assert_nothing_leaks(one.sent)
