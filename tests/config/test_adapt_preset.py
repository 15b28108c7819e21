"""preset=adapt: values by the images, the method, the clients and the machine."""

import logging

import pytest
import torch

from orchestra_flwr.config import ConfigError, config_to_yaml, load, load_config
from orchestra_flwr.data import local_epochs
from orchestra_flwr.deployment.server_config import ServerConfig

pytest.importorskip("timm", reason="needs the extra timm")


@pytest.fixture
def photos(tmp_path):
    """Makes a folder of so many files; nothing reads them."""

    def make(count):
        folder = tmp_path / f"photos{count}"
        folder.mkdir()
        for number in range(count):
            (folder / f"{number}.jpg").touch()
        return f"data.root={folder}"

    return make


@pytest.fixture
def gpu(monkeypatch):
    """Sets how many GPUs are visible."""
    return lambda count: monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize("wrong", ["federation.clients=abc", "~federation.clients", "~data"])
def test_what_is_wrong_with_a_key_that_it_asks_for_is_one_line(wrong):
    key = wrong.strip("~").partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^{key}(=abc:|(\.name)?: must be given)"):
        load_config(["preset=adapt", wrong])


def test_few_images_without_a_gpu(photos, gpu, caplog):
    gpu(0)
    with caplog.at_level(logging.INFO, "orchestra_flwr"):
        config = load_config(["preset=adapt", photos(12)])
    assert (config.model.name, config.model.options["timm"]) == ("timm", "tf_efficientnet_lite0")
    assert config.model.first_weights == {"model.weights": "pretrained"}
    assert (config.method.name, config.adaptation.name) == ("rotpred", "norms")
    assert (config.data.image_size, config.data.view_size) == (224, 64)
    assert (config.federation.rounds, config.training.min_steps) == (36, 4)
    assert config.model.batch_norm == "frozen"  # as its pretrained weights suggest
    assert config.partition.name == "iid"  # the default needs labels
    assert (config.evaluation.keep, config.evaluation.best_by) == ("best", "score")
    (line,) = (record.getMessage() for record in caplog.records)
    about = "12 images without labels, 10 clients (federation.clients), no GPU"
    assert line.startswith(f"preset=adapt: for {about}: ")
    assert line.count("where all weights lost") == 1
    assert "training.min_steps=4" in line and "clients of few images take few steps" in line
    assert "for images without an up and a down there is method=simclr" in line


@pytest.mark.parametrize("plugins", ["plugins=[my_package]", "plugins=my_package"])
def test_a_users_own_source_says_what_it_has(user_package, plugins):
    user_package({"sources/mine.py": """
from orchestra_flwr.data import Source

class Mine(Source):
    @classmethod
    def survey(cls, data):
        return 12, 0, 0

    def load(self):
        raise NotImplementedError
"""})  # fmt: skip
    config = load_config(["preset=adapt", plugins, "data=mine"])
    assert (config.training.min_steps, config.partition.name) == (4, "iid")
    assert config.data.image_size == 224  # as the pretrained network expects


def test_a_users_own_source_with_a_survey_of_an_earlier_version_is_refused(user_package):
    user_package({"sources/mine.py": """
from orchestra_flwr.data import Source

class Mine(Source):
    @classmethod
    def survey(cls, data):
        return 12, 0

    def load(self):
        raise NotImplementedError
"""})  # fmt: skip
    with pytest.raises(ConfigError, match=r"data=mine: Mine.survey must return None or three num"):
        load_config(["preset=adapt", "plugins=[my_package]", "data=mine"])


def test_many_images_on_a_gpu_have_the_networks_own_size(photos, gpu):
    gpu(1)
    config = load_config(["preset=adapt", photos(1000)])
    assert (config.data.image_size, config.data.view_size) == (224, 224)
    assert config.federation.rounds == 36
    gpu(0)
    config = load_config(["preset=adapt", photos(1001), "device=cuda"])
    assert config.data.view_size == 224


def test_so_many_images_that_they_would_fill_memory_are_smaller(photos, gpu):
    gpu(0)
    few, many = (config_of(photos(count)) for count in (19_999, 20_000))
    assert (few.data.image_size, many.data.image_size) == (224, 128)
    assert many.data.view_size == 64


def test_sizes_are_multiples_of_dinov2s_patches(photos, gpu):
    """Its own 518 pixels would be too many, and 64 are no multiple of 14."""
    network = "model.timm=vit_small_patch14_dinov2"
    sizes = {}
    for gpus, count in ((0, 19_999), (0, 20_000), (1, 9)):
        gpu(gpus)
        data = config_of(photos(count), network).data
        sizes[gpus, count] = (data.image_size, data.view_size)
    assert sizes == {(0, 19_999): (224, 70), (0, 20_000): (126, 70), (1, 9): (224, 224)}
    gpu(0)
    said = config_of(photos(8), network, "data.image_size=98").data
    assert (said.image_size, said.view_size) == (98, 70)
    own = config_of(photos(7), "model.timm=eva02_base_patch14_448").data
    assert (own.image_size, own.view_size) == (448, 70)
    overrides = ["preset=adapt", network, "federation.min_clients=2"]
    server = load(ServerConfig, overrides, all_read=True).data
    assert (server.image_size, server.view_size) == (224, 70)


def test_other_images_have_the_size_of_a_machine_without_a_gpu(gpu):
    gpu(0)
    config = config_of("data=digits", "federation.rounds=1")
    assert (config.data.name, config.data.view_size) == ("digits", 64)


@pytest.mark.parametrize(
    ("label", "partition", "best_by"),
    [("label", "dirichlet", "linear"), ("name", "iid", "score"), ("null", "iid", "score")],
)
def test_a_tables_lines_count_as_images(tmp_path, label, partition, best_by):
    for name, count in (("train", 20_000), ("test", 200)):
        lines = [f"{number}.jpg,{number % 2}," for number in range(count)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["file,label,name", *lines]))
    tables = [f"data.table={tmp_path}/train.csv", f"data.test_table={tmp_path}/test.csv"]
    config = config_of("data=image_table", *tables, f"data.label={label}")
    assert (config.partition.name, config.evaluation.best_by) == (partition, best_by)
    assert (config.data.name, config.data.image_size) == ("image_table", 128)
    limited = config_of(
        "data=image_table", *tables, f"data.label={label}", "data.train_limit=19999"
    )
    assert limited.data.image_size == 224


def test_class_folders_are_dealt_out_by_class(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.jpg").touch()
    assert config_of(f"data.root={tmp_path / 'photos'}").partition.name == "dirichlet"


@pytest.mark.parametrize(("test", "best_by", "limit"), [(200, "linear", 1000), (199, "score", 500)])
def test_test_images_choose_the_round(tmp_path, test, best_by, limit):
    for part, count in (("train", 300), ("test", test)):
        for name in ("ant", "bee"):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for number in range(count // 2 + (name == "bee") * (count % 2)):
                (folder / f"{number}.jpg").touch()
    config = config_of(f"data.root={tmp_path / 'photos'}")
    assert (config.evaluation.best_by, config.evaluation.limit) == (best_by, limit)
    assert (config.adaptation.name, config.evaluation.keep) == ("norms", "best")


@pytest.mark.parametrize(("share", "best_by"), [(0.2, "linear"), (0.1, "score")])
def test_images_that_are_held_back_to_test_with_count_as_such(tmp_path, share, best_by):
    for name in ("ant", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(560):
            (tmp_path / "photos" / name / f"{number}.jpg").touch()
    config = config_of(f"data.root={tmp_path / 'photos'}", f"data.test_share={share}")
    assert config.evaluation.best_by == best_by


def test_clients_of_few_images_train_for_more_epochs(photos):
    """Simulated and real ones alike: each client knows how many it has."""
    simulated = config_of(photos(1000)).training
    real = load(ServerConfig, ["preset=adapt", "federation.min_clients=2"], all_read=True).training
    for training in (simulated, real):
        assert [local_epochs(training, count) for count in (40, 64, 200)] == [4, 2, 1]


def test_what_is_left_out_is_said_by_the_run(photos, tmp_path, caplog):
    """It reads the images; here they are only counted, and if there are none, it says so."""
    root = photos(0)
    (tmp_path / "photos0" / "1.dng").touch()
    load_config(["preset=adapt", root])
    assert "left out" not in caplog.text


def test_methods_that_learn_slowly_have_more_rounds(photos, caplog):
    """The command's own keys win over these as over all others."""
    with caplog.at_level(logging.INFO, "orchestra_flwr"):
        config = config_of(photos(9), "method=orchestra", "evaluation.every=6")
    assert (config.training.lr, config.federation.rounds) == (0.01, 36)
    assert (config.evaluation.every, config.training.min_steps) == (6, 4)
    assert config.federation.wire == "int8" and "gain for longer" in caplog.text
    assert config.method.views == "default"
    rotations, others = config_of(photos(8)), config_of(photos(10), "method=simclr")
    assert (rotations.method.views, rotations.federation.rounds) == ("plain", 36)
    assert (others.training.lr, others.federation.rounds) == (0.003, 8)
    assert (others.evaluation.every, others.federation.wire) == (4, "float32")


def test_many_clients_send_few_bits(photos):
    many, fewer = (
        config_of(photos(count), "method=simclr", f"federation.clients={count}")
        for count in (50, 49)
    )
    assert (many.federation.wire, fewer.federation.wire) == ("int8", "float32")


def config_of(*overrides):
    return load_config(["preset=adapt", *overrides])


def test_what_the_command_says_wins(photos):
    """Options of a choice that is not taken are left out with it."""
    config = config_of(
        photos(5),
        "method=simclr",
        "model=convnet",
        "federation.rounds=2",
        "adaptation=blocks",
        "adaptation.last=2",
    )
    assert (config.model.name, config.federation.rounds) == ("convnet", 2)
    assert (config.adaptation.name, config.adaptation.options) == ("blocks", {"last": 2})
    assert config.training.lr == 0.003


def test_a_network_of_timm_stays_pretrained_where_the_command_says_timm_once_more():
    """As in every other command for such a network; random weights would be frozen."""
    for more, network in ((), "tf_efficientnet_lite0"), (("model.timm=resnet18",), "resnet18"):
        config = config_of("model=timm", *more)
        assert config == config_of(*more)
        assert config.model.first_weights == {"model.weights": "pretrained"}
        assert config.model.options["timm"] == network


def test_reasons_are_of_what_was_chosen(photos, caplog):
    with caplog.at_level(logging.INFO, "orchestra_flwr"):
        config_of(photos(8), "federation.rounds=1")
    (record,) = caplog.records
    assert "federation.rounds" not in record.getMessage()
    assert "training.local_epochs" in record.getMessage() and "dealt out" in record.getMessage()


def test_a_server_without_images_chooses_by_its_clients(tmp_path):
    overrides = ["preset=adapt", "method=simclr", "federation.min_clients=60"]
    config = load(ServerConfig, overrides, all_read=True)
    assert (config.federation.wire, config.federation.rounds) == ("int8", 8)


def test_a_servers_own_images_change_nothing_that_only_simulations_read(photos):
    overrides = ["preset=adapt", "federation.min_clients=2", photos(7)]
    assert load(ServerConfig, overrides, all_read=True).federation.rounds == 36


def test_a_resumed_run_keeps_what_was_chosen(photos, tmp_path, gpu):
    gpu(0)
    few = photos(6)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(config_to_yaml(config_of(few)))
    gpu(1)
    (tmp_path / "photos6" / "7.jpg").touch()
    again = config_of(few, f"resume={run}")
    assert (again.data.view_size, again.training.min_steps) == (64, 4)
