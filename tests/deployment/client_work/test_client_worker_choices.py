"""What a server's configuration chooses works at a real client as in a simulation."""

import shutil

import numpy as np
import pytest
from safetensors import safe_open

from orchestra_flwr.config import Config
from orchestra_flwr.federation.client.answers import train_reply
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.client.state_folder import ClientStateFolder
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, FROZEN, METRICS
from orchestra_flwr.federation.messages.frozen_weights import digest_of
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.flower.arrays import NumpyArray
from orchestra_flwr.methods import Role
from orchestra_flwr.training import build_learner


def simulated(config, images, content, folder):
    """The reply of a simulation's client with these images."""
    run = content[CONFIG].get("run")
    place = ClientStateFolder(folder, str(run)) if run else None
    return train_reply(OrchestraClient(config, "kitchen", images, state_folder=place), content)


def assert_same(one, other):
    assert set(one[ARRAYS]) == set(other[ARRAYS])
    for name, array in one[ARRAYS].items():
        np.testing.assert_array_equal(array.numpy(), other[ARRAYS][name].numpy(), strict=True)
    timeless = [{k: v for k, v in r[METRICS].items() if k != "seconds"} for r in (one, other)]
    assert timeless[0] == timeless[1]


@pytest.mark.parametrize(
    "overrides",
    [
        ["terms.proximal.weight=0.1"],
        pytest.param(["merging=fedbn"], marks=pytest.mark.slow),
        pytest.param(["server_optimizer=adam"], marks=pytest.mark.slow),
        pytest.param(["optimizer=adamw"], marks=pytest.mark.slow),
        ["method=byol", "merging=fedu", "terms.proximal.weight=0.1", "server_optimizer=yogi"],
        ["merging=fedbn", "federation.wire=int8", "terms.proximal.weight=1"],
    ],
    ids=" ".join,
)
def test_a_real_clients_rounds_have_the_bits_of_a_simulation(
    worker, configured, tmp_path, ask, greeting, task, overrides
):
    server, one = configured(*overrides), worker()
    assert "refusal" not in ask(one, "greet", greeting(server))[CONFIG]
    for round_ in (1, 2):
        ours = ask(one, "train", task(server, round_, run="monday", index=3))
        images = one._latest[1].images
        content = task(server, round_, run="monday", index=3)
        theirs = simulated(server.for_clients(), images, content, tmp_path / "simulated")
        assert_same(ours, theirs)


def test_a_term_is_part_of_the_loss(worker, configured, said, ask, task):
    """The first batch of a round is where the received parameters are: its term is 0."""
    server = configured("terms.proximal.weight=0.1", "training.batch_size=20")
    metrics = ask(worker(), "train", task(server))[METRICS]
    assert metrics["steps"] == 1 and metrics["loss/proximal"] == 0
    server = configured("terms.proximal.weight=0.1", "training.local_epochs=3")
    metrics = ask(worker(), "train", task(server))[METRICS]
    assert metrics["loss/proximal"] > 0
    total = sum(value for name, value in metrics.items() if name.startswith("loss/"))
    assert f"loss {total:.3f}" in said[-1]


def test_norms_stay_with_a_real_client(worker, configured, tmp_path, ask, task):
    """They are in its own folder, in no message, and there again when it is started anew."""
    server = configured("merging=fedbn")
    config = server.for_clients()
    learner = build_learner(config, 3)
    local = set(learner.state(Role.LOCAL))
    norms = {
        name
        for name, module in learner.method.named_modules()
        if "BatchNorm" in type(module).__name__ and module.state_dict()
    }
    assert {name.rpartition(".")[0] for name in local} == norms

    def sent(one, round_):
        return ask(one, "train", task(server, round_, run="monday"))[ARRAYS]["shared"].numpy()

    one = worker()
    shared = sum(t.numel() for t in learner.state(Role.SHARED).values())
    assert sent(one, 1).size == shared
    with safe_open(tmp_path / "runs/monday/1.safetensors", framework="np") as file:
        assert set(file.keys()) == local
    second = sent(one, 2)
    np.testing.assert_array_equal(sent(worker(), 2), second)
    fresh = ask(worker(), "train", task(server, 2, run="tuesday"))[ARRAYS]["shared"].numpy()
    assert (fresh != second).any()  # its norms were those of round 1


def test_a_real_client_keeps_the_statistics_that_it_was_sent(worker, configured, ask, task):
    """The server alone knows which encoder they came from (`init`)."""
    server = configured("model.batch_norm=frozen", "init=pretrained")
    config = server.for_clients()
    assert config.init is None and config.model.batch_norm == "frozen"
    learner = build_learner(config, 3)
    names = [name for name in learner.state(Role.SERVER) if "running_" in name]
    answer = ask(worker(), "train", task(server))[ARRAYS]
    assert names and "server" not in answer
    assert answer["shared"].numpy().size == sum(
        tensor.numel() for tensor in learner.state(Role.SHARED).values()
    )


def test_a_real_client_gets_what_the_servers_weights_suggest(configured):
    """It decides nothing by itself: it needs neither the weights nor their configuration."""
    pytest.importorskip("timm", reason="needs the extra timm")
    weights = ("model=timm", "model.timm=test_resnet", "model.weights=x.safetensors")
    sent = Config.from_json(configured(*weights).for_clients().to_json())
    assert (sent.model.batch_norm, sent.data.normalise) == ("frozen", "half")
    assert sent.data.image_size == sent.model.settings.image_size == 16  # set by the server's user
    trained = configured(*weights, "model.batch_norm=averaged").for_clients()
    assert trained.model.batch_norm == "averaged"


def test_a_client_says_that_its_state_is_gone(worker, said, tmp_path, configured, ask, task):
    """Its server knows that it trained before; what is missing cannot be made up for."""
    server = configured("merging=fedbn")
    ask(worker(), "train", task(server, 1, run="monday"))
    ask(worker(), "train", task(server, 2, run="monday", trained=1))
    assert not any("afresh" in line for line in said)
    shutil.rmtree(tmp_path / "runs")
    reply = ask(worker(), "train", task(server, 3, run="monday", trained=2))
    lines = [line for line in said if "afresh" in line]
    assert lines == [
        f"this client trained in round 2 of this run, and {tmp_path / 'runs'} holds nothing from "
        "before round 3: it begins afresh"
    ]
    assert reply[CONFIG]["state_of"] == 0
    assert (tmp_path / "runs/monday/3.safetensors").is_file()


def test_a_client_whose_server_was_restored_from_an_old_copy_says_so(
    worker, said, tmp_path, configured, ask, task
):
    """Its folder was not empty, but held later rounds alone, and it began afresh without a word."""
    server = configured("merging=fedbn")
    one = worker()
    ask(one, "train", task(server, 1, run="monday"))
    for round_ in range(2, 7):
        reply = ask(one, "train", task(server, round_, run="monday", trained=round_ - 1))
        assert "state_of" not in reply[CONFIG]
    assert not any("afresh" in line for line in said)
    reply = ask(one, "train", task(server, 3, run="monday", trained=2))
    assert any(
        line.endswith("holds nothing from before round 3: it begins afresh") for line in said
    )
    assert reply[CONFIG]["state_of"] == 0
    said.clear()
    reply = ask(one, "train", task(server, 6, run="monday", trained=5))
    assert any(line.endswith("holds only its state of round 3: it goes on from that")
               for line in said)  # fmt: skip
    assert reply[CONFIG]["state_of"] == 3


def test_a_client_that_keeps_state_needs_a_name_for_the_run(worker, said, configured, ask, task):
    answer = ask(worker(), "train", task(configured("merging=fedbn")))
    assert answer == {"failure": "failed"}
    assert "client kitchen keeps state from round to round" in said[-1]


def test_frozen_weights_come_once_and_outlive_the_process(
    worker, configured, ask, greeting, task, tmp_path
):
    """A client says whether it has them; what it sends never holds them."""
    server = configured("method=simclr", "adaptation=head")
    config = server.for_clients()
    schemas = Schemas.of(build_learner(config, 3), config)
    values = np.random.default_rng(0).random(schemas.frozen.size, np.float32)
    digest = digest_of(values)

    def has(client):
        return ask(client, "greet", greeting(server, frozen=digest))[CONFIG]["frozen"]

    first = worker()
    assert not has(first)
    assert ask(first, "train", task(server, 1, frozen=digest)) == {"failure": "weights_missing"}
    content = task(server, 1, frozen=digest)
    content[ARRAYS][FROZEN] = NumpyArray(values)
    reply = ask(first, "train", content)
    assert FROZEN not in reply[ARRAYS] and "shared" in reply[ARRAYS]
    assert has(first)
    (file,) = (tmp_path / "frozen").iterdir()
    assert file.name == f"{digest}.float32" and file.stat().st_mode & 0o777 == 0o600

    second = worker()
    assert has(second)
    again = ask(second, "train", task(server, 2, frozen=digest))
    assert FROZEN not in again[ARRAYS]
    learner = second._latest[1].learner
    np.testing.assert_array_equal(schemas.frozen.pack(learner.state(Role.FROZEN)), values)
    assert ask(second, "greet", greeting(server, frozen="../x")) == {"failure": "failed"}


@pytest.mark.parametrize("change", ["longer", "float64", "digest"])
def test_frozen_weights_that_are_not_the_runs_are_never_written(
    worker, configured, ask, task, tmp_path, change
):
    """A server could fill the client's disk otherwise."""
    server = configured("method=simclr", "adaptation=head")
    config = server.for_clients()
    size = Schemas.of(build_learner(config, 3), config).frozen.size
    values = np.zeros(size + (change == "longer"), np.float64 if change == "float64" else "float32")
    digest = "0" * 64 if change == "digest" else digest_of(values)
    content = task(server, 1, frozen=digest)
    content[ARRAYS][FROZEN] = NumpyArray(values)
    assert ask(worker(), "train", content) == {"failure": "failed"}
    assert not (tmp_path / "frozen").exists()
