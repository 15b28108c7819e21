"""What a client makes of the encoder that its server sends: bytes of a stranger, stored as data."""

import errno
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from orchestra_flwr import load_encoder
from orchestra_flwr.config import ConfigError, load
from orchestra_flwr.deployment.client_work import encoder_store
from orchestra_flwr.deployment.client_work.encoder_store import EncoderStore
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, ENCODER
from orchestra_flwr.flower.arrays import to_record
from orchestra_flwr.models import Encoder, EncoderSpec, build_backbone, save_encoder
from orchestra_flwr.models.encoder_description import write_description


@pytest.fixture
def encoder(tmp_path, server):
    file = tmp_path / "made" / "encoder.safetensors"
    file.parent.mkdir()
    backbone = build_backbone(server.model, 3)
    save_encoder(file, Encoder(EncoderSpec.of(server.for_clients()), backbone), rounds=3)
    return file


@pytest.fixture
def offer(encoder):
    """The message with the encoder, or without its arrays; changed as a server may change it."""

    def make(arrays=True, weights=None, described=None, **entries):
        weights = encoder.read_bytes() if weights is None else weights
        text = described or encoder.with_suffix(".json").read_text()
        about = {ENCODER: text, "card": "# A card\x1b]0;", "size": len(weights), **entries}
        content = {CONFIG: ConfigRecord(about)}
        if arrays:
            content[ARRAYS] = to_record({ENCODER: np.frombuffer(weights, np.uint8)})
        return RecordDict(content)

    return make


def word(ask, worker, content):
    answer = ask(worker, "take_encoder", content)
    return answer[CONFIG][ENCODER] if CONFIG in answer else answer["failure"]


def test_an_encoder_is_stored_beside_its_card_and_said_how_to_use(
    worker, ask, offer, encoder, tmp_path, said
):
    one = worker()
    assert word(ask, one, offer(arrays=False)) == "wanted" and not said
    assert word(ask, one, offer()) == "stored"
    folder = tmp_path / "encoder"
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md", "encoder.json", "encoder.safetensors",
    ]  # fmt: skip
    assert (folder / "encoder.safetensors").read_bytes() == encoder.read_bytes()
    assert load_encoder(folder).dim == load_encoder(encoder).dim
    assert "\x1b" not in (folder / "README.md").read_text()
    modes = {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()}
    assert modes == {0o600} and stat.S_IMODE(folder.stat().st_mode) == 0o700
    (line,) = said
    assert line.startswith(f"the encoder is here: orchestra-embed run={folder} images=...")
    assert word(ask, worker(), offer(arrays=False)) == "stored"  # a server that was killed here
    (folder / "encoder.safetensors").write_bytes(b"damaged")
    assert word(ask, worker(), offer(arrays=False)) == "wanted"


def test_the_commands_that_it_names_can_be_pasted_in_any_folder(offer, tmp_path, monkeypatch, said):
    """A client's state is relative to where a service or start.sh started it."""
    (tmp_path / "my site").mkdir()
    monkeypatch.chdir(tmp_path / "my site")
    EncoderStore(Path("state/a"), 1e9, ()).answer(offer(), said.append)
    place = f"'{tmp_path}/my site/state/a/encoder'"
    assert said == [
        f"the encoder is here: orchestra-embed run={place} images=..., orchestra-export run={place}"
    ]


@pytest.mark.parametrize("arrays", [False, True])
def test_the_clients_own_bound_refuses_it(worker, ask, offer, tmp_path, said, arrays):
    """Whatever the server says of the size; this is no problem of its health."""
    one = worker("encoder_megabytes=0.001")
    assert word(ask, one, offer(arrays, **({"size": 1} if arrays else {}))) == "too_large"
    assert not (tmp_path / "encoder").exists() and one.problem is None
    assert said[0].endswith("MB is not stored: encoder_megabytes=0.001")
    assert word(ask, worker("encoder_megabytes=0"), offer(False, size=1)) == "too_large"


def described(encoder, **changes):
    """A description that is changed, with a digest that fits."""
    about = json.loads(encoder.with_suffix(".json").read_text()) | changes
    about.pop("sha256")
    file = encoder.with_name("changed.json")
    write_description(file, about)
    return file.read_text()


def spec(encoder):
    return json.loads(encoder.with_suffix(".json").read_text())["spec"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda e: {"weights": e.read_bytes()[:-1] + b"x"}, "checksum is not that in"),
        (lambda e: {"described": "{}"}, "describes no encoder"),
        (lambda e: {"described": described(e, weights_sha256=None)}, "names no checksum"),
        (lambda e: {"described": described(e).replace("about", "abort")}, "checksum is wrong"),
        (lambda e: {"described": "x" * 2**21}, "description has more than"),
        (lambda e: {"card": "x" * 2**21}, "description has more than"),
        (lambda e: {"described": described(e, spec={"model": {"name": "os"}})}, "must be"),
        (
            lambda e: {"described": described(e, spec={**spec(e), "plugins": ["antigravity"]})},
            "antigravity",
        ),
    ],
)  # fmt: skip
def test_nothing_damaged_or_foreign_is_stored(
    worker, ask, offer, encoder, tmp_path, said, change, says
):
    """And what was there before stays."""
    one = worker()
    assert word(ask, one, offer()) == "stored"
    before = {p.name: p.read_bytes() for p in (tmp_path / "encoder").iterdir()}
    assert word(ask, one, offer(**change(encoder))) in ("failed", "settings_refused")
    assert {p.name: p.read_bytes() for p in (tmp_path / "encoder").iterdir()} == before
    assert says in one.problem or says in said[-1], said[-1]


def test_on_a_full_disk_nothing_is_left_of_an_encoder(
    worker, ask, offer, tmp_path, said, monkeypatch
):
    """An empty folder stayed, of which the commands for encoders then made no sense."""

    def write(path, *_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(encoder_store, "write_atomically", write)
    assert word(ask, worker(), offer()) == "disk_full"
    assert said == [f"failed: the disk is full (No space left on device): make room in {tmp_path}"]
    assert not (tmp_path / "encoder").exists()


@pytest.mark.parametrize("last", ["encoder.json.next", "encoder.safetensors", "README.md"])
def test_a_client_that_is_killed_while_it_stores_an_encoder_has_the_old_one_or_the_new_one(
    offer, encoder, tmp_path, monkeypatch, last
):
    class KilledError(BaseException):
        pass

    store, replace = EncoderStore(tmp_path, 1e9, ()), Path.replace
    store.answer(offer(), print)
    old = encoder.read_bytes()
    save_encoder(encoder, Encoder(load_encoder(encoder).spec), rounds=6)

    def killing(self, target):
        replace(self, target)
        if target == store.folder / last:
            raise KilledError

    monkeypatch.setattr(Path, "replace", killing)
    with pytest.raises(KilledError):
        store.answer(offer(), print)
    monkeypatch.undo()
    load_encoder(store.folder)
    is_old = last == "encoder.json.next"
    assert (store.folder / "encoder.safetensors").read_bytes() == (
        old if is_old else encoder.read_bytes()
    )
    assert store.answer(offer(arrays=False), print) == "wanted"
    assert store.answer(offer(), print) == "stored"
    assert sorted(p.name for p in store.folder.iterdir()) == [
        "README.md", "encoder.json", "encoder.safetensors",
    ]  # fmt: skip


def test_a_server_can_keep_its_encoder(configured):
    assert configured().share.encoder and not configured("share.encoder=false").share.encoder
    with pytest.raises(ConfigError, match=r"^share\.every: is not read with share\.encoder=false"):
        load(ServerConfig, ["share.encoder=false", "share.every=3"], all_read=True)
    assert "share" not in ServerConfig.for_clients(configured()).model_dump()
