"""The simulation's app: a node is whichever client it is asked to be."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from PIL import Image

from orchestra_flwr.federation.client import client_app
from orchestra_flwr.federation.client.client_app import app
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.flower.arrays import from_record, to_record
from orchestra_flwr.flower.process_identity import identify_process
from orchestra_flwr.training import build_learner

identify_process()


def ask(config, node, client):
    learner = build_learner(config, 1)
    schemas = Schemas.of(learner, config)
    task = {"config": config.to_json(), "schema": schemas.fingerprint, "round": 1, "train": True,
            "contribute": True, "client": client}  # fmt: skip
    content = RecordDict(
        {ARRAYS: to_record(pack_state(learner, schemas)), CONFIG: ConfigRecord(task)}
    )
    context = Context(0, node, {"partition-id": node, "num-partitions": 4}, RecordDict(), {})
    return app(Message(content, node, "train"), context)


def test_the_message_says_which_client_a_node_is(tiny):
    config = tiny("partition=iid")
    first, second, other = (ask(config, node, client) for node, client in
                            ((1, "0"), (3, "0"), (3, "2")))  # fmt: skip
    sent = [from_record(reply.content[ARRAYS])["shared"] for reply in (first, second, other)]
    np.testing.assert_array_equal(sent[0], sent[1])
    assert (sent[0] != sent[2]).any()
    assert first.content[METRICS]["examples"] == 30


def test_a_client_that_nobody_is_fails_by_name(tiny):
    reply = ask(tiny("partition=iid"), 1, "9")
    assert reply.has_error() and "KeyError: '9'" in reply.error.reason


def test_what_is_wrong_with_images_is_said_once(tiny, tmp_path, caplog):
    """By the server, and not again where a client reads the same table."""
    for number in range(8):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / f"{number}.png")
    lines = [f"{number}.png,{number % 4}" for number in (*range(8), 9)]
    (tmp_path / "t.csv").write_text("\n".join(["file,owner", *lines]))
    config = tiny("data=image_table", f"data.root={tmp_path}", f"data.table={tmp_path}/t.csv",
                  "data.label=null", "data.group=owner", "partition=groups",
                  "data.train_limit=null", "data.test_limit=null", "data.image_size=16",
                  )  # fmt: skip
    load_population(config)
    assert "1 of 9 images are not below data.root" in caplog.text
    caplog.clear()
    client_app._loaded(config.to_json())
    assert not caplog.text


def test_a_worker_sees_the_images_that_the_server_sees(tiny, tmp_path):
    """A successor of a lost worker may find a folder that has changed since the run began."""
    for number in range(30):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / f"{number}.png")
    config = tiny("data=image_folder", f"data.root={tmp_path}", f"data.cache={tmp_path / 'cache'}",
                  "data.train_limit=null", "data.test_limit=null", "data.image_size=16",
                  "federation.clients=2", "partition=iid",
                  )  # fmt: skip
    task = {"config": config.to_json(), "client": "0", "split": load_population(config).split}
    content = RecordDict({CONFIG: ConfigRecord(task)})
    assert len(client_app._addressed_client(content).images) == 15
    (tmp_path / "3.png").rename(tmp_path / "x.png")
    client_app._addressed_client(content)  # this worker has them in memory
    client_app.forget_images()
    with pytest.raises(ValueError, match="images on .* are others than those that the run began"):
        client_app._addressed_client(content)


def test_a_client_trains_on_its_shifted_images_in_every_round(tiny):
    """With an uneven partition that is a joint shift; labels and test images stay as they are."""
    from orchestra_flwr.data import shift_images
    from orchestra_flwr.federation.client.client_app import _addressed_client
    from orchestra_flwr.federation.population import load_population

    shifted = tiny("partition=by_class", "federation.clients=10", "method=supervised",
                   "shift=rotation", "shift.range=90")  # fmt: skip
    population = load_population(shifted)
    plain = load_population(tiny("partition=by_class", "federation.clients=10"))
    assert torch.equal(population.dataset.test.images, plain.dataset.test.images)
    for name, part in population.parts.items():
        clients = [
            _addressed_client(
                RecordDict(
                    {
                        CONFIG: ConfigRecord(
                            {"config": shifted.to_json(), "client": name, "round": r}
                        )
                    }
                )
            )
            for r in (1, 2)
        ]
        indices = torch.from_numpy(part)
        upright = population.dataset.train.images[indices]
        expected = shift_images(shifted.shift, upright, indices, name, shifted.seed)
        assert not torch.equal(expected, upright)
        assert all(torch.equal(client.images, expected) for client in clients)
        assert (clients[0].labels == int(name)).all()


def test_a_question_with_a_configuration_loads_the_runs_images(tiny):
    config = tiny("seed=11")
    context = Context(0, 1, {}, RecordDict(), {})

    def question(text):
        content = RecordDict({CONFIG: ConfigRecord({"config": text})})
        return app(Message(content, 1, "query"), context)

    client_app._load.cache_clear()
    assert not question(config.to_json()).has_error()
    assert client_app._load.cache_info().currsize == 1
    client_app._loaded(config.to_json())
    assert client_app._load.cache_info().hits == 1
    assert not question("no configuration").has_error()  # the round will say so


def test_clients_in_threads_read_the_runs_images_once(tiny, monkeypatch):
    config, read = tiny("seed=12"), []
    load_population = client_app.load_population

    def slow(config):
        read.append(config)
        time.sleep(0.1)
        return load_population(config)

    monkeypatch.setattr(client_app, "load_population", slow)
    client_app._load.cache_clear()
    with ThreadPoolExecutor(4) as threads:
        loaded = [*threads.map(client_app._loaded, [config.to_json()] * 4)]
    assert len(read) == 1 and all(result is loaded[0] for result in loaded)
