"""A resumed run keeps its own configuration, and takes nothing from this machine's environment."""

from pathlib import Path

import pytest

from orchestra_flwr.config import Config, ConfigError, config_to_yaml, load, load_config
from orchestra_flwr.config.reading.saved_config import read_run
from orchestra_flwr.deployment.server_config import ServerConfig

VERSION_0_2 = Path(__file__).with_name("version_0_2.yaml")  # as version 0.2.0 wrote it


@pytest.fixture
def run(tmp_path):
    """A run folder's saved configuration."""
    config = load_config(["seed=5", "training.lr=0.01", f"run_dir={tmp_path}"])
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    return tmp_path


def test_resume_alone_takes_the_runs_own_configuration(run):
    config = load_config([f"resume={run}"])
    assert (config.seed, config.training.lr) == (5, 0.01)
    assert config.resume == config.run_dir == str(run)


def test_a_value_of_another_version_is_refused_with_what_reads_it(run):
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("best_by: effective_rank", "best_by: lidar"))
    refusal = r"config.yaml: evaluation.best_by=lidar: .*; if another version .* that version reads"
    with pytest.raises(ConfigError, match=refusal):
        load_config([f"resume={run}"])
    with pytest.raises(ConfigError, match=refusal):
        read_run(run)


def test_resume_may_repeat_the_configuration_and_move_the_run(run):
    assert load_config([f"resume={run}", "seed=5", "engine=inline"]).engine.name == "inline"
    assert load_config([f"resume={run}", "engine.workers=1"]).engine.settings.workers == 1


def test_a_resumed_run_stays_in_its_folder(run, monkeypatch):
    """Another one was passed over without a word."""
    monkeypatch.chdir(run.parent)
    assert load_config([f"resume={run}", f"run_dir={run.name}"]).run_dir == str(run)
    with pytest.raises(ConfigError, match="run_dir=elsewhere: a resumed run stays in its own"):
        load_config([f"resume={run}", "run_dir=elsewhere"])
    moved = run.rename(run.with_name("moved"))
    assert load_config([f"resume={moved}", f"run_dir={run}"]).run_dir == str(moved)


def test_resume_may_repeat_a_method_and_its_values(tmp_path):
    given = ["data=cifar10", "method=byol", f"run_dir={tmp_path}"]
    (tmp_path / "config.yaml").write_text(config_to_yaml(load_config(given)))
    again = load_config([f"resume={tmp_path}", "data=cifar10", "method=byol"])
    assert (again.method.name, again.training.lr) == ("byol", 0.01)
    with pytest.raises(ConfigError, match="a resumed run keeps its own configuration"):
        load_config([f"resume={tmp_path}", "method=simclr"])


@pytest.mark.parametrize("began_with", ["frozen", None])
def test_a_resumed_run_keeps_what_pretrained_weights_suggested_when_it_began(tmp_path, began_with):
    """A run of an earlier version, whose file has null, goes on averaging."""
    pytest.importorskip("timm", reason="needs the extra timm")
    given = ["model=timm", "model.timm=test_resnet", "model.weights=x.safetensors"]
    values = load_config([*given, f"run_dir={tmp_path}"]).model_dump()
    assert values["model"]["batch_norm"] == "frozen"
    values["model"]["batch_norm"] = began_with
    (tmp_path / "config.yaml").write_text(config_to_yaml(values))
    for repeated in ([], given):
        again = load_config([f"resume={tmp_path}", *repeated])
        assert again.model.batch_norm == began_with
    with pytest.raises(ConfigError, match="^model.batch_norm=averaged: a resumed run keeps"):
        load_config([f"resume={tmp_path}", "model.batch_norm=averaged"])


def test_resume_may_repeat_images_that_were_moved(tmp_path):
    given = ["data=image_folder", f"run_dir={tmp_path}"]
    config = load_config([*given, "data.root=/before"])
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    for again, root in (([], "/before"), (["data.root=/now"], "/now")):
        resumed = load_config([f"resume={tmp_path}", "data=image_folder", *again])
        assert resumed.data.options["root"] == root


@pytest.mark.parametrize("change", ["training.lr=0.02", "seed=0", "data=cifar10", "model=resnet18"])
def test_resume_refuses_another_configuration(run, change):
    with pytest.raises(ConfigError, match="a resumed run keeps its own configuration"):
        load_config([f"resume={run}", change])


def test_a_resumed_run_may_get_more_rounds(run):
    assert load_config([f"resume={run}", "federation.rounds=40"]).federation.rounds == 40
    assert load_config([f"resume={run}", "federation.rounds=10"]).federation.rounds == 10
    with pytest.raises(ConfigError, match="federation.rounds may grow, and engine, device, .* may"):
        load_config([f"resume={run}", "seed=6"])
    (run / "config.yaml").write_text(config_to_yaml(load_config(["schedule=cosine"])))
    with pytest.raises(ConfigError, match="^federation.rounds=40: .* schedule=cosine .*init="):
        load_config([f"resume={run}", "federation.rounds=40"])


def test_a_preset_may_be_repeated_on_resume_but_not_brought_in(run, tmp_path):
    with pytest.raises(ConfigError, match="weighting=batches: a resumed run keeps"):
        load_config([f"resume={run}", "preset=released_code"])
    preset = ["preset=released_code"]
    (run / "config.yaml").write_text(config_to_yaml(load_config(preset)))
    assert load_config([f"resume={run}", *preset]).training.drop_last


def test_a_run_of_version_0_2_is_resumed(tmp_path):
    (tmp_path / "config.yaml").write_bytes(VERSION_0_2.read_bytes())
    config = load_config([f"resume={tmp_path}"])
    assert (config.name, config.data.settings.root) == ("1e3", "photos/\u00fc")
    assert (config.optimizer.name, config.optimizer.settings.betas) == ("adamw", (0.9, 0.999))
    assert (config.clustering.options["memory"], config.terms["proximal"].weight) == (64, 0.1)
    again = ["data=image_folder", "optimizer=adamw", "server_optimizer=adam", "schedule=steps"]
    assert load_config([f"resume={tmp_path}", *again, "optimizer.betas=[0.9,0.999]"]) == config
    with pytest.raises(ConfigError, match="^optimizer.weight_decay=0.02: a resumed run keeps"):
        load_config([f"resume={tmp_path}", "optimizer.weight_decay=0.02"])


@pytest.mark.parametrize("key", ["name", "data.root", "engine.address"])
def test_a_strangers_configuration_reads_nothing_of_this_machine(key, tmp_path, monkeypatch):
    """`${oc.env:...}` was resolved, and sent to all clients."""
    monkeypatch.setenv("SECRET", "hunter2")
    config = load(Config, ["data=image_folder", "data.root=there", "engine.address=there"])
    *sections, last = key.split(".")
    values = config.model_dump()
    section = values[sections[0]] if sections else values
    section[last] = "${oc.env:SECRET}"
    (tmp_path / "config.yaml").write_text(config_to_yaml(values))
    for given in ([], ["engine=inline", "logging.progress=off"], ["federation.rounds=99"]):
        resumed = load_config([f"resume={tmp_path}", *given])
        assert "hunter2" not in resumed.to_json() + config_to_yaml(resumed)
    assert "hunter2" not in load_config([f"resume={tmp_path}"]).model_dump_json()


def test_a_strangers_configuration_of_a_server_reads_nothing_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    config = load(ServerConfig, ["federation.min_clients=2", "name=mine"])
    text = config_to_yaml(config).replace("name: mine", "name: ${oc.env:SECRET}")
    (tmp_path / "config.yaml").write_text(text)
    resumed = load(ServerConfig, [f"resume={tmp_path}", "host=0.0.0.0", "port=0"])
    assert (resumed.name, resumed.host) == ("${oc.env:SECRET}", "0.0.0.0")
    assert "hunter2" not in resumed.for_clients().to_json()
