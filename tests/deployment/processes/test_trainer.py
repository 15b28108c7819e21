"""A client's own process, told what the server tells and without any network."""

import json
import os

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from PIL import Image

from orchestra_flwr import __version__
from orchestra_flwr.config import Config, ConfigError, load
from orchestra_flwr.deployment.channel.flower_records import decode, encode
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.processes.own_privacy import OwnPrivacy
from orchestra_flwr.deployment.processes.trainer import Trainer
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.federation.wire import ARRAYS, CONFIG, METRICS, Schemas, pack_state
from orchestra_flwr.methods import build_method
from orchestra_flwr.privacy import calibrate, spent


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
def trainer(photos, said, tmp_path):
    def make(*overrides):
        config = load(
            ClientConfig,
            ["server=127.0.0.1:1", f"data.root={photos}", "device=cpu", "training.threads=1",
             *overrides],
        )  # fmt: skip
        return Trainer(config, "kitchen", tmp_path, said.append)

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


def test_the_average_is_scored_and_told_in_figures_alone(trainer, server, said):
    values = server.model_dump()
    values["evaluation"]["unsupervised"] = True
    reply = ask(trainer(), "evaluate", task(ServerConfig.model_validate(values), 3))
    assert not reply.array_records
    told = reply[METRICS]
    assert set(told) == {"alignment", "uniformity", "examples"} and told["examples"] == 20
    assert said[-1] == (
        f"round 3: the average has alignment {told['alignment']:.3f}, "
        f"uniformity {told['uniformity']:.3f} on the images here"
    )


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


@pytest.fixture
def supervised(server):
    values = server.model_dump()
    values["method"] = {"name": "supervised", "classes": ["ant", "bee", "cat"]}
    return ServerConfig.model_validate(values)


def into_folders(photos, *names):
    for i, file in enumerate(sorted(photos.iterdir())):
        folder = photos / names[i % len(names)]
        folder.mkdir(exist_ok=True)
        file.rename(folder / file.name)


def test_class_folders_are_labels_in_the_servers_numbers(trainer, supervised, photos):
    """This client has two of the three classes, and numbers them 0 and 1 by itself."""
    into_folders(photos, "cat", "bee")
    one = trainer()
    assert "refusal" not in ask(one, "greet", greeting(supervised))[CONFIG]
    reply = ask(one, "train", task(supervised))
    assert "loss/classification" in reply[METRICS]
    (_, client) = one._latest
    assert client.labels.bincount().tolist() == [0, 10, 10]


@pytest.mark.parametrize(
    ("names", "says"), [((), "the images have none"), (("bee", "dog"), "dog is missing")]
)
def test_without_the_right_labels_a_client_is_refused(trainer, supervised, photos, names, says):
    if names:
        into_folders(photos, *names)
    told = ask(trainer(), "greet", greeting(supervised))[CONFIG]
    assert says in told["refusal"]


def test_labels_that_nobody_needs_are_not_held(trainer, server, photos):
    into_folders(photos, "bee", "cat")
    one = trainer()
    ask(one, "train", task(server))
    assert one._latest[1].labels is None


@pytest.mark.parametrize(
    ("overrides", "told", "says"),
    [
        (["privacy.k_min=3"], {}, "privacy.k_min=2: this client asks for at least 3"),
        (["privacy.epsilon=10"], None,
         "clustering=sinkhorn: must be private with this client, which allows privacy.epsilon=10"),
        (["privacy.total_epsilon=10"], None, "which allows privacy.total_epsilon=10"),
        (["privacy.epsilon=10"], {}, "privacy.epsilon=50 at privacy.delta=0.001: one release costs "
         "epsilon 50 at this client's privacy.delta=0.001, it allows at most 10"),
        (["privacy.epsilon=50", "privacy.delta=1e-5"], {}, "it allows at most 50"),
        (["privacy.total_epsilon=49"], {}, "privacy.epsilon=50: one more release would exceed "
         "this client's privacy.total_epsilon=49, of which 0 is spent"),
    ],
)  # fmt: skip
def test_what_a_client_does_not_allow_it_refuses_whoever_asks(
    trainer, server, said, tmp_path, overrides, told, says
):
    """When greeted, and when a server asks for another thing than it said then."""
    given = server if told is None else private(server, **told)
    one = trainer(*overrides)
    refusal = ask(one, "greet", greeting(given))[CONFIG]["refusal"]
    assert says in refusal and "\n" not in refusal
    assert said == [f"cannot take part: {refusal}"]
    assert says in ask(one, "train", task(given))["error"]
    assert not (tmp_path / "releases.jsonl").exists()


def test_bounds_that_are_kept_keep_nobody_out(trainer, server):
    one = trainer("privacy.epsilon=50", "privacy.total_epsilon=300", "privacy.k_min=4")
    told = ask(one, "greet", greeting(private(server, k_min=4)))[CONFIG]
    assert "refusal" not in told


def rows(reply):
    return len(reply[ARRAYS]["local_centroids"].numpy())


def test_a_client_counts_for_itself_over_runs_and_restarts(trainer, server, said, tmp_path):
    """Two releases of one run and a third of another spend all; a repeated round counts again."""
    weak, strong = private(server), private(server, epsilon=20.0)
    noises = [calibrate(epsilon, 1e-3) for epsilon in (50.0, 20.0)]
    total = spent({noises[0]: 2, noises[1]: 1}, 1e-3)
    mine = [f"privacy.total_epsilon={total + 1e-6}"]
    for _ in range(2):
        ask(trainer(*mine), "train", task(weak, 1))
    last = trainer(*mine)
    ask(last, "train", task(strong, 0))
    lines = [json.loads(line) for line in (tmp_path / "releases.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 1, 0]
    assert len({line["run"] for line in lines}) == 2

    # Spent in the middle of a run: it trains, and sends no centroids.
    reply = ask(last, "train", task(strong, 1))
    assert rows(reply) == 0 and reply[METRICS]["steps"] == 3
    assert "sent no centroids: this client's own privacy.total_epsilon is spent" in said[-1]
    # It may come back to that run, but takes part in no other one.
    again = trainer(*mine)
    assert "refusal" not in ask(again, "greet", greeting(strong))[CONFIG]
    assert rows(ask(again, "train", task(strong, 2))) == 0
    refusal = ask(again, "greet", greeting(private(server, epsilon=30.0)))[CONFIG]["refusal"]
    assert f"privacy.total_epsilon={total:g}, of which {total:.3g} is spent" in refusal
    assert len((tmp_path / "releases.jsonl").read_text().splitlines()) == 3


def test_a_release_is_on_the_disk_before_the_work_on_it_begins(
    trainer, server, tmp_path, monkeypatch
):
    """What a SIGKILL at that moment leaves, power cuts included."""
    file, events = tmp_path / "releases.jsonl", []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (events.append("sync"), sync(number)))

    def killed(*_, **__):
        events.append(file.read_text().count("\n"))
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestra_flwr.methods.orchestra.private_clustering", killed)
    with pytest.raises(KeyboardInterrupt):
        ask(trainer(), "train", task(private(server), 0))
    assert "sync" in events and events[-1] == 1
    assert sum(OwnPrivacy(bounds(), file).ledger.releases.values()) == 1


def test_nothing_is_sent_that_cannot_be_counted(trainer, server, tmp_path):
    one = trainer()
    (tmp_path / "releases.jsonl").mkdir()
    answer = ask(one, "train", task(private(server), 0))
    assert "releases.jsonl" in answer["error"] and answer["code"] == 101


def test_only_private_centroids_that_are_sent_are_counted(trainer, server, tmp_path):
    ask(trainer(), "train", task(server, 1))
    content = task(private(server))
    content[CONFIG]["contribute"] = False
    ask(trainer(), "train", content)
    assert not (tmp_path / "releases.jsonl").exists()


def bounds():
    return load(ClientConfig, ["server=127.0.0.1:1", "data.root=x"]).privacy


def test_a_ledger_that_cannot_be_read_is_no_empty_one(tmp_path):
    file = tmp_path / "releases.jsonl"
    file.write_text('{"run": "a"}\n')
    with pytest.raises(ConfigError, match=r"releases.jsonl, line 1: no record of a release"):
        OwnPrivacy(bounds(), file)
    file.write_text('{"run": "a", "rou')  # a crash cut it off before anything was sent
    assert OwnPrivacy(bounds(), file).ledger.releases == {}


@pytest.fixture
def silo(server):
    values = server.model_dump()
    values["method"] = {"name": "byol"}
    values["federation"] |= {"merge": "fedema"}
    return ServerConfig.model_validate(values)


def test_a_client_keeps_its_state_in_its_own_folder_by_run(trainer, silo, tmp_path):
    """A client that was started anew goes on from it; another run starts without."""

    def sent(one, round_, run):
        content = task(silo, round_)
        content[CONFIG]["run"] = run
        return ask(one, "train", content)[ARRAYS]["shared"].numpy()

    kept = trainer()
    sent(kept, 1, "monday")
    second = sent(kept, 2, "monday")
    folder = tmp_path / "runs"
    assert sorted(p.stem for p in (folder / "monday").iterdir()) == ["1", "2"]
    np.testing.assert_array_equal(sent(trainer(), 2, "monday"), second)
    other = sent(kept, 2, "tuesday")
    assert (other != second).any()
    assert [p.name for p in folder.iterdir()] == ["tuesday"]
    np.testing.assert_array_equal(other, sent(trainer(), 2, "wednesday"))


def test_a_failure_becomes_an_error_that_says_what_happened(trainer, server, said, photos):
    one = trainer()
    for file in photos.iterdir():
        file.unlink()
    answer = ask(one, "train", task(server))
    assert "holds no images" in answer["error"] and answer["code"] == 101
    assert said[-1].startswith("failed: ConfigError")


def test_features_never_leave_a_real_client_whatever_the_server_asks(trainer, server, said):
    """This server's own checks are left out, as another one's might be."""
    values = server.model_dump()
    values["clustering"]["name"], values["privacy"]["k_min"] = "features", 1
    asking = Config.model_validate({k: v for k, v in values.items() if k in Config.model_fields})
    content = greeting(server, config=asking.to_json())
    assert "does not send" in ask(trainer(), "greet", content)[CONFIG]["refusal"]
    content = task(server)
    content[CONFIG]["config"] = asking.to_json()
    assert "does not send" in ask(trainer(), "train", content)["error"]
