"""A client's own process takes part in runs, without any network."""

import errno
import gc
import json
import os
import weakref

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr import __version__
from orchestra_flwr.data import UNLABELLED
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.client_status import ClientStatus
from orchestra_flwr.evaluation import LabelFreeScores
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
from orchestra_flwr.flower.client_tasks import Request
from orchestra_flwr.flower.deployed_app import APP


def test_a_greeting_is_answered_with_name_and_images(worker, server, said, ask, greeting):
    answer = ask(worker(), "greet", greeting(server))[CONFIG]
    assert (answer["client"], answer["images"]) == ("kitchen", 20)
    assert "refusal" not in answer
    assert said == ["takes part with 20 images of 16 x 16 pixels: orchestra, convnet, 20 rounds"]


def test_a_client_hears_that_a_run_has_not_places_for_all(worker, configured, said, ask, greeting):
    """It said that it takes part, and the server alone that it did not."""
    server = configured("terms.verification.weight=1", "terms.verification.capacity=7")
    ask(worker(), "greet", greeting(server))
    assert said[1].startswith("the run has places for 7 clients: those that come when others have")


def test_a_client_hears_that_its_photographs_lose_most_of_their_pixels(
    worker, server, said, ask, greeting, photos
):
    for i in range(20):
        with Image.open(photos / f"{i}.png") as image:
            image.resize((40, 50)).save(photos / f"{i}.png")
    ask(worker(), "greet", greeting(server))
    (warning, _) = said
    assert warning.startswith("images whose shorter side is 40 pixels are shrunk to 16")
    assert warning.endswith("; the server sets it")


def test_the_disk_has_the_latest_decoded_images_alone(
    worker, server, configured, ask, greeting, photos, tmp_path
):
    """Each change of a folder left a copy for ever, and so did each size of a run."""
    cache = tmp_path / "cache"
    mine = f"data.cache={cache}"
    cache.mkdir()
    (of_others := cache / "image_folder-0.safetensors").touch()

    def after(one, asked):
        assert "refusal" not in ask(one, "greet", greeting(asked))[CONFIG]
        (file,) = (cache / "kitchen").iterdir()
        return file

    one = worker(mine)
    small = after(one, server)
    made = small.stat().st_mtime_ns
    assert after(worker(mine), server).stat().st_mtime_ns == made  # read, not decoded again
    assert after(one, configured("data.image_size=24")) != small
    assert after(one, server) == small
    Image.new("RGB", (30, 30)).save(photos / "new.png")
    assert after(worker(mine), server) != small and of_others.exists()


@pytest.mark.parametrize(
    ("overrides", "changes", "word", "says"),
    [
        ([], {"version": "9.9"}, "other_version", f" 9.9, this client {__version__}: install the"),
        ([], {"schema": "other"}, "other_version", "the server's model has schema other"),
        (["data.image_size=24"], {}, "settings_refused", "start it with data.image_size=16, or"),
        (["data.train_limit=7"], {}, "too_few_images", "7 different images, the server asks for"),
        ([], {"config": '{"nonsense": 1}'}, "settings_refused", "method: must be given"),
    ],
)  # fmt: skip
def test_why_a_client_stays_out_is_shown_here_and_sent_as_one_word(
    worker, server, said, overrides, changes, word, says, ask, greeting
):
    one = worker(*overrides)
    sent = ask(one, "greet", greeting(server, **changes))[CONFIG]
    assert sent == {"client": "kitchen", "version": __version__, "refusal": word}
    (line,) = said
    assert line == f"cannot take part: {one.problem}" and says in line


@pytest.mark.parametrize("kind", ["greet", "train"])
def test_a_model_that_no_memory_holds_is_refused_before_any_is_asked_for(
    kind, worker, server, said, ask, greeting, task
):
    """The system killed the client, without a word at either end."""
    values = json.loads(server.for_clients().to_json())
    values["model"] |= {"name": "resnet18", "width": 16384}
    made = {"greet": greeting, "train": task}[kind]
    answer = ask(worker(), kind, made(server, config=json.dumps(values)))
    assert answer.get("failure", answer.get(CONFIG, {}).get("refusal")) == "out_of_memory"
    line = said[-1]
    assert "model.width=16384" in line and "and this machine has" in line


@pytest.mark.parametrize("kind", ["greet", "train"])
def test_what_a_server_says_does_not_fill_the_terminal(
    kind, worker, server, said, ask, greeting, task
):
    """Nor the file `problem`, which is written anew every few seconds."""
    much = {"config": f'{{"{"x" * 10**6}": 1}}', "version": "9" * 10**6}
    one, made = worker(), {"greet": greeting, "train": task}[kind]
    ask(one, kind, made(server, **much))
    (line,) = said
    assert len(one.problem) < len(line) < 1100


def test_a_client_whose_key_has_another_name_at_the_server_says_that_it_is_refused(
    worker, server, said, ask, greeting
):
    """It said again and again that it took part, and the server alone that it did not."""
    one = worker("security=keys")
    for _ in range(2):  # the server asks again
        sent = ask(one, "greet", greeting(server, registered="cellar"))[CONFIG]
    assert sent["refusal"] == "other_name"
    assert said == [
        "cannot take part: the server refuses this client: its key is registered there as cellar, "
        "and named kitchen in keys/client.pub. Either end that file with cellar and start this "
        "client again, or run at the server: orchestra-keys revoke "
        "name=cellar, then register key=client.pub"
    ]
    assert "refusal" not in ask(one, "greet", greeting(server, registered="kitchen"))[CONFIG]


def test_a_name_from_the_server_is_no_text_for_a_shell(worker, server, said, ask, greeting):
    sent = ask(worker("security=keys"), "greet", greeting(server, registered="a; rm -rf ~"))[CONFIG]
    assert sent["refusal"] == "other_name"
    (line,) = said
    assert line.endswith("the server gives this client's key a name that no key can have")


def test_a_client_is_well_again_when_its_images_are_there(
    worker, server, said, photos, ask, greeting
):
    one = worker()
    photos.rename(photos.with_name("unmounted"))
    for _ in range(2):  # the server asks again
        assert ask(one, "greet", greeting(server))[CONFIG]["refusal"] == "data_unreadable"
    assert str(photos) in one.problem and len(said) == 1
    photos.with_name("unmounted").rename(photos)
    assert "refusal" not in ask(one, "greet", greeting(server))[CONFIG]
    assert one.problem is None


def test_a_folder_whose_name_is_no_text(worker, server, said, photos, ask, greeting, task):
    """As old disks have them; only this machine ever sees the name."""
    odd = photos.with_name(os.fsdecode(b"caf\xe9 \xff"))
    photos.rename(odd)
    one = worker(f"data.root={odd}")
    assert ask(one, "greet", greeting(server))[CONFIG]["images"] == 20
    assert ask(one, "train", task(server))[METRICS]["examples"] == 20
    assert one.problem is None


@pytest.mark.parametrize("key", ["data.train_limit", "data.limit"])
def test_a_client_whose_own_limit_leaves_too_few_is_told_to_raise_it(
    worker, server, ask, greeting, photos, key
):
    """It was told to add images to a folder that held enough."""
    one = worker(f"{key}=7")
    assert ask(one, "greet", greeting(server))[CONFIG]["refusal"] == "too_few_images"
    assert f"at least 16: raise {key}=7, if {photos} holds more, or lower " in one.problem
    few = worker()
    ask(few, "greet", greeting(server, config=few_images(server)))
    assert f"at least 30: add images to {photos}, or lower federation.min" in few.problem


def few_images(server):
    values = json.loads(server.for_clients().to_json())
    values["federation"]["min_images"] = 30
    return json.dumps(values)


def test_copies_of_images_are_not_more_images(worker, server, said, ask, greeting, photos):
    """20 files, as links would make them too, but two images: too few for the server's 16."""
    for i in range(2, 20):
        (photos / f"{i}.png").write_bytes((photos / "0.png").read_bytes())
    one = worker()
    assert ask(one, "greet", greeting(server))[CONFIG]["refusal"] == "too_few_images"
    assert "2 different images, the server asks for at least 16" in one.problem


def test_rounds_are_trained_and_told(worker, server, said, ask, greeting, task):
    one = worker()
    ask(one, "greet", greeting(server))
    first = ask(one, "train", task(server, 0))
    assert set(first[ARRAYS]) == {"local_centroids"}
    reply = ask(one, "train", task(server, 1))
    assert set(reply[ARRAYS]) == {"shared", "local_centroids"}
    assert reply[METRICS]["examples"] == 20
    assert said[1] == "before training: first centroids"
    assert said[2].startswith("before training: sent first centroids, ")
    assert said[-1].startswith("round 1: 3 steps, loss ")


def test_a_client_does_not_end_its_last_round_in_silence(worker, configured, said, ask, task):
    server = configured("federation.rounds=2")
    for round_, last in ((1, False), (2, True)):
        ask(worker(), "train", task(server, round_))
        assert (said[-1] == "that was the last round: waiting for another run") is last


@pytest.mark.parametrize(("number", "place"), [(0, "before training"), (3, "round 3")])
def test_the_average_is_scored_and_told_in_figures_alone(
    worker, server, said, ask, task, number, place
):
    values = server.model_dump()
    values["evaluation"]["unsupervised"] = True
    reply = ask(worker(), "evaluate", task(ServerConfig.model_validate(values), number))
    assert not reply.array_records
    metrics = reply[METRICS]
    assert set(metrics) == {"examples", *LabelFreeScores.ranges(1)} and metrics["examples"] == 20
    assert said[-1] == (
        f"{place}: the average has alignment {metrics['alignment']:.3f}, "
        f"uniformity {metrics['uniformity']:.3f}, effective rank {metrics['effective_rank']:.3g} "
        "on the images here"
    )


def test_a_client_kept_alive_answers_like_a_fresh_one(worker, server, ask, task):
    kept = worker()
    ask(kept, "train", task(server, 1))
    again, fresh = ask(kept, "train", task(server, 2)), ask(worker(), "train", task(server, 2))
    for name in again[ARRAYS]:
        np.testing.assert_array_equal(again[ARRAYS][name].numpy(), fresh[ARRAYS][name].numpy())


def test_the_server_says_in_how_many_bits_a_model_travels(worker, server, ask, greeting, task):
    federation = server.federation.model_copy(update={"wire": "int8"})
    server = server.model_copy(update={"federation": federation})
    one = worker()
    assert "refusal" not in ask(one, "greet", greeting(server))[CONFIG]
    reply = ask(one, "train", task(server))[ARRAYS]
    assert {name: array.dtype for name, array in reply.items()} == {
        "update.int8": "int8", "update.float16": "float16", "update.float32": "float32",
        "update.scales": "float32", "local_centroids": "float32",
    }  # fmt: skip


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


def test_class_folders_are_labels_in_the_servers_numbers(
    worker, supervised, photos, ask, greeting, task
):
    """This client has two of the three classes, and numbers them 0 and 1 by itself."""
    into_folders(photos, "cat", "bee")
    one = worker()
    assert "refusal" not in ask(one, "greet", greeting(supervised))[CONFIG]
    reply = ask(one, "train", task(supervised))
    assert "loss/classification" in reply[METRICS]
    (_, client) = one._latest
    assert client.labels.bincount().tolist() == [0, 10, 10]


@pytest.mark.parametrize(
    ("names", "says"), [((), "the images have none"), (("bee", "dog"), "dog is missing")]
)
def test_without_the_right_labels_a_client_is_refused(
    worker, supervised, photos, said, names, says, ask, greeting
):
    if names:
        into_folders(photos, *names)
    answer = ask(worker(), "greet", greeting(supervised))[CONFIG]
    assert answer["refusal"] == "data_unsuitable" and says in said[-1]


@pytest.mark.parametrize("method", ["simclr", "cbafed"])
def test_loose_images_beside_class_folders_are_the_unlabelled_ones(
    worker, configured, photos, ask, greeting, task, method
):
    """All labels that a real client has are used with labels.fraction=1."""
    server = configured(f"method={method}", "method.classes=[ant,bee,cat]", "labels.fraction=1")
    for i, name in enumerate(("cat", "bee", "cat")):
        (photos / name).mkdir(exist_ok=True)
        (photos / f"{i}.png").rename(photos / name / f"{i}.png")
    one = worker()
    assert "refusal" not in ask(one, "greet", greeting(server))[CONFIG]
    reply = ask(one, "train", task(server))
    assert reply[METRICS]["loss/classification"] > 0
    labels = one._latest[1].labels
    assert sorted(labels[labels >= 0].tolist()) == [1, 2, 2]
    assert (labels == UNLABELLED).sum() == 17


def test_a_client_without_any_label_takes_part(worker, configured, ask, greeting, task):
    server = configured("method=simsiam", "method.classes=[ant,bee]", "labels.fraction=1")
    one = worker()
    assert "refusal" not in ask(one, "greet", greeting(server))[CONFIG]
    metrics = ask(one, "train", task(server))[METRICS]
    assert metrics["loss/classification"] == metrics["loss/similarity_class"] == 0
    assert metrics["loss/similarity"] != 0


def test_labels_that_nobody_needs_are_not_held(worker, server, photos, ask, task):
    into_folders(photos, "bee", "cat")
    one = worker()
    ask(one, "train", task(server))
    assert one._latest[1].labels is None


@pytest.fixture
def silo(server):
    values = server.model_dump()
    values["method"] = {"name": "byol"}
    values["merging"] = {"name": "fedema"}
    return ServerConfig.model_validate(values)


def test_a_client_keeps_its_state_in_its_own_folder_by_run(worker, silo, tmp_path, ask, task):
    """A client that was started anew goes on from it; another run starts without."""

    def sent(one, round_, run):
        content = task(silo, round_)
        content[CONFIG]["run"] = run
        return ask(one, "train", content)[ARRAYS]["shared"].numpy()

    kept = worker()
    sent(kept, 1, "monday")
    second = sent(kept, 2, "monday")
    folder = tmp_path / "runs"
    assert sorted(p.stem for p in (folder / "monday").iterdir()) == ["1", "2"]
    np.testing.assert_array_equal(sent(worker(), 2, "monday"), second)
    other = sent(kept, 2, "tuesday")
    assert (other != second).any()
    assert [p.name for p in folder.iterdir()] == ["tuesday"]
    np.testing.assert_array_equal(other, sent(worker(), 2, "wednesday"))


def test_a_failure_is_shown_here_and_sent_as_one_word(worker, server, said, photos, ask, task):
    one = worker()
    for file in photos.iterdir():
        file.unlink()
    assert ask(one, "train", task(server)) == {"failure": "data_unreadable"}
    assert "holds no images" in said[-1] and said[-1] == f"failed: {one.problem}"
    unexpected = task(server)
    del unexpected[CONFIG]["round"]
    assert ask(one, "train", unexpected) == {"failure": "failed"}
    assert said[-1].startswith("failed: KeyError")


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_too_little_memory_has_its_own_word(worker, server, error, ask, task, monkeypatch):
    def load(*arguments):
        raise error

    monkeypatch.setattr("orchestra_flwr.deployment.client_work.client_worker.load_dataset", load)
    assert ask(worker(), "train", task(server)) == {"failure": "out_of_memory"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("kind", ["greet", "train"])
def test_a_full_disk_has_its_own_word_and_is_said_with_its_folder(
    worker, server, said, photos, ask, greeting, task, monkeypatch, code, kind
):
    """It was an error that the client did not expect, with a line of this program."""

    def load(*arguments):
        raise OSError(code, os.strerror(code), str(photos / "made/for/it.safetensors"))

    monkeypatch.setattr("orchestra_flwr.deployment.client_work.client_worker.load_dataset", load)
    one = worker()
    answer = ask(one, kind, {"greet": greeting, "train": task}[kind](server))
    assert answer.get("failure", answer.get(CONFIG, {}).get("refusal")) == "disk_full"
    assert one.problem == f"the disk is full ({os.strerror(code)}): make room in {photos}"
    assert said[-1].endswith(f": {one.problem}")


def test_a_full_disk_is_told_from_other_files_that_cannot_be_written(
    worker, server, said, ask, task, monkeypatch
):
    def load(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied", "/x")

    monkeypatch.setattr("orchestra_flwr.deployment.client_work.client_worker.load_dataset", load)
    assert ask(worker(), "train", task(server)) == {"failure": "data_unreadable"}


def test_models_are_let_go_of_at_once(worker, server, task):
    """Python would find those that are part of a cycle only after a while: on a board too late."""
    one, models = worker(), []
    status = ClientStatus(
        "a", "host:1", 20, connected=bool, problem=lambda: one.problem, certificates=()
    )
    gc.collect()
    gc.disable()
    try:
        request = Request("train", APP, 1, task(server))
        models += [weakref.ref(request.content[ARRAYS])]
        status.asked(request)
        answer = one.answer(request)
        status.answered("train", answer)
        models += [weakref.ref(answer[ARRAYS])]
        del request, answer
        assert [model() for model in models] == [None, None]
    finally:
        gc.enable()
    assert status.to_dict()["bytes"]["up"] > 0
