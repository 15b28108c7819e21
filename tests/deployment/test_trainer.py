"""A client's own process, told what the server tells and without any network."""

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from PIL import Image

from orchestra_flwr import __version__
from orchestra_flwr.config import load
from orchestra_flwr.deployment.config import ClientConfig, ServerConfig
from orchestra_flwr.deployment.records import decode, encode
from orchestra_flwr.deployment.trainer import Trainer
from orchestra_flwr.federation.wire import ARRAYS, CONFIG, METRICS, Schemas, pack_state
from orchestra_flwr.methods import build_method


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(20):
        size = (int(rng.integers(20, 60)), int(rng.integers(20, 60)), 3)
        pixels = rng.integers(0, 256, size, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.png")
    return tmp_path / "photos"


@pytest.fixture
def server():
    return load(
        ServerConfig,
        ["model.width=8", "model.projector_dim=16", "data.image_size=16", "training.batch_size=8",
         "training.local_epochs=1", "clustering.global_clusters=4", "clustering.local_clusters=2",
         "clustering.memory=16"],
    )  # fmt: skip


@pytest.fixture
def said():
    return []


@pytest.fixture
def trainer(photos, said):
    def make(*overrides):
        config = load(
            ClientConfig,
            ["server=127.0.0.1:1", f"data.root={photos}", "device=cpu", "training.threads=1",
             *overrides],
        )  # fmt: skip
        return Trainer(config, "kitchen", said.append)

    return make


def ask(trainer, kind, content):
    """As the relay asks: through JSON."""
    header, blobs = encode(content)
    request = json.loads(json.dumps({"kind": kind, "content": header}))
    answer, arrays = trainer.answer(request, blobs)
    return (
        answer if "error" in answer else decode(json.loads(json.dumps(answer))["content"], arrays)
    )


def greeting(server, **changes):
    method = build_method(server.for_clients(), 3)
    told = {
        "version": __version__,
        "config": server.for_clients().to_json(),
        "schema": Schemas.of(method, server.federation.wire).fingerprint,
        **changes,
    }
    return RecordDict({CONFIG: ConfigRecord(told)})


def task(server, round_=1):
    method = build_method(server.for_clients(), 3)
    schemas = Schemas.of(method, server.federation.wire)
    told = {
        "config": server.for_clients().to_json(),
        "schema": schemas.fingerprint,
        "round": round_,
        "train": round_ > 0,
        "contribute": True,
    }
    return RecordDict({ARRAYS: pack_state(method, schemas), CONFIG: ConfigRecord(told)})


def test_a_greeting_is_answered_with_name_and_images(trainer, server, said):
    told = ask(trainer(), "greet", greeting(server))[CONFIG]
    assert (told["client"], told["images"]) == ("kitchen", 20)
    assert "refusal" not in told
    assert said == ["takes part with 20 images of 16 x 16 pixels: orchestra, convnet, 20 rounds"]


@pytest.mark.parametrize(
    ("overrides", "changes", "says"),
    [
        ([], {"version": "9.9"}, f" 9.9, this client {__version__}: install the same"),
        ([], {"schema": "other"}, "the server's model has schema other"),
        (["data.image_size=24"], {}, "start it with data.image_size=16, or without it"),
        (["data.limit=7"], {}, "7 images, the server asks for at least 16: add images to"),
        ([], {"config": '{"nonsense": 1}'}, "method: must be given"),
    ],
)  # fmt: skip
def test_what_keeps_a_client_out_is_told_on_both_sides(
    trainer, server, said, overrides, changes, says
):
    told = ask(trainer(*overrides), "greet", greeting(server, **changes))[CONFIG]
    assert says in told["refusal"]
    assert said == [f"cannot take part: {told['refusal']}"]


def test_rounds_are_trained_and_told(trainer, server, said):
    one = trainer()
    ask(one, "greet", greeting(server))
    first = ask(one, "train", task(server, 0))
    assert set(first[ARRAYS]) == {"local_centroids"}
    reply = ask(one, "train", task(server, 1))
    assert set(reply[ARRAYS]) == {"shared", "local_centroids"}
    assert reply[METRICS]["examples"] == 20
    assert said[1] == "round 0: first clustering"
    assert said[-1].startswith("round 1: 3 steps, loss ")


def test_a_client_kept_alive_answers_like_a_fresh_one(trainer, server):
    kept = trainer()
    ask(kept, "train", task(server, 1))
    again, fresh = ask(kept, "train", task(server, 2)), ask(trainer(), "train", task(server, 2))
    for name in again[ARRAYS]:
        np.testing.assert_array_equal(again[ARRAYS][name].numpy(), fresh[ARRAYS][name].numpy())


def private(server, **privacy):
    """The server's configuration with private centroids."""
    values = server.model_dump()
    values["clustering"]["name"] = "private"
    values["privacy"] |= {"epsilon": 50.0, **privacy}
    return ServerConfig.model_validate(values)


def test_noise_of_private_centroids_cannot_be_repeated_by_who_knows_the_seed(trainer, server):
    given, one = private(server), trainer()
    first, second = (ask(one, "train", task(given, 0))[ARRAYS] for _ in range(2))
    a, b = first["local_centroids"].numpy(), second["local_centroids"].numpy()
    assert a.shape != b.shape or (a != b).any()


def test_the_server_says_in_how_many_bits_a_model_travels(trainer, server):
    federation = server.federation.model_copy(update={"wire": "int8"})
    server = server.model_copy(update={"federation": federation})
    one = trainer()
    assert "refusal" not in ask(one, "greet", greeting(server))[CONFIG]
    reply = ask(one, "train", task(server))[ARRAYS]
    assert {name: array.dtype for name, array in reply.items()} == {
        "update.int8": "int8", "update.float16": "float16", "update.float32": "float32",
        "update.scales": "float32", "local_centroids": "float32",
    }  # fmt: skip


def test_too_many_images_for_delta_are_told(trainer, server):
    told = ask(trainer(), "greet", greeting(private(server, delta=0.1)))[CONFIG]
    assert "privacy.delta=0.1: must be below 1 / 20" in told["refusal"]


def test_a_client_whose_budget_is_spent_says_that_it_sent_no_centroids(trainer, server, said):
    content = task(private(server))
    content[CONFIG]["contribute"] = False
    reply = ask(trainer(), "train", content)
    assert reply[ARRAYS]["local_centroids"].numpy().shape == (0, 16)
    assert "sent no centroids: privacy.total_epsilon is spent" in said[-1]


def test_a_failure_becomes_an_error_that_says_what_happened(trainer, server, said, photos):
    one = trainer()
    for file in photos.iterdir():
        file.unlink()
    answer = ask(one, "train", task(server))
    assert "holds no images" in answer["error"] and answer["code"] == 101
    assert said[-1].startswith("failed: ConfigError")
