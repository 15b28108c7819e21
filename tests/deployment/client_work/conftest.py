"""A client with its own images, and the messages that its server sends, without any network."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from PIL import Image

from orchestra_flwr import __version__
from orchestra_flwr.config import load
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.client_work.client_worker import ClientWorker
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.flower.arrays import to_record
from orchestra_flwr.flower.client_tasks import Request
from orchestra_flwr.flower.deployed_app import APP
from orchestra_flwr.training import build_learner

SMALL = (
    "model.width=8",
    "model.projector_dim=16",
    "data.image_size=16",
    "training.batch_size=8",
    "training.local_epochs=1",
    "clustering.global_clusters=4",
    "clustering.local_clusters=2",
    "clustering.memory=16",
)


@pytest.fixture
def photos(tmp_path):
    """The client's images: 20 photographs."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(20):
        size = (int(rng.integers(20, 50)), int(rng.integers(20, 50)), 3)
        pixels = rng.integers(0, 256, size, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.png")
    return tmp_path / "photos"


@pytest.fixture
def configured():
    """Makes a server's configuration."""
    return lambda *overrides: load(ServerConfig, [*SMALL, *overrides])


@pytest.fixture
def server(configured):
    return configured()


@pytest.fixture
def said():
    """What the client reports."""
    return []


@pytest.fixture
def worker(photos, said, tmp_path):
    """Makes the client, as often as it is started."""

    def make(*overrides):
        config = load(
            ClientConfig,
            ["server=127.0.0.1:1", f"data.root={photos}", "device=cpu", "training.threads=1",
             *overrides],
        )  # fmt: skip
        return ClientWorker(config, "kitchen", tmp_path, said.append)

    return make


@pytest.fixture
def ask():
    """Sends a message as it arrives; the answer's content, or a failure's word."""
    kinds = {work: kind for kind, work in ClientWorker.KINDS.items()}

    def send(worker, work, content):
        answer = worker.answer(Request(kinds[work], APP, 1, content))
        return {"failure": answer.word} if isinstance(answer, Failure) else answer

    return send


def model_of(server):
    """What the server sends: its learner, and the schemas of it."""
    config = server.for_clients()
    learner = build_learner(config, 3)
    return learner, Schemas.of(learner, config)


@pytest.fixture
def greeting():
    """Makes the content of the message to a client that has just come."""

    def make(server, **changes):
        _, schemas = model_of(server)
        about = {
            "version": __version__,
            "config": server.for_clients().to_json(),
            "schema": schemas.fingerprint,
            **changes,
        }
        return RecordDict({CONFIG: ConfigRecord(about)})

    return make


@pytest.fixture
def task():
    """Makes the content of the message that asks for a round."""

    def make(server, round_=1, **entries):
        learner, schemas = model_of(server)
        about = {
            "config": server.for_clients().to_json(),
            "schema": schemas.fingerprint,
            "round": round_,
            "train": round_ > 0,
            "contribute": True,
            **entries,
        }
        arrays = to_record(pack_state(learner, schemas))
        return RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(about)})

    return make
