"""An environment that was made for a client: `pip install orchestra-flwr` without extras."""

import logging
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orchestra_flwr import square_image
from orchestra_flwr.cli import client_main
from orchestra_flwr.config import ConfigError, ModelConfig, load, load_config
from orchestra_flwr.data import load_dataset
from orchestra_flwr.deployment.watch.figures import exposed
from orchestra_flwr.export.export_config import ExportConfig
from orchestra_flwr.export.exporter import export_saved
from orchestra_flwr.export.hub_folder import export_to_hub
from orchestra_flwr.extras import SERVER, log_the_hub_once
from orchestra_flwr.federation.simulation import check_resources
from orchestra_flwr.models.backbones import build_backbone
from orchestra_flwr.models.backbones import timm as timm_backbone
from orchestra_flwr.optional_formats import LIBRARIES
from orchestra_flwr.privacy.accounting import calibrate
from orchestra_flwr.reporting.run_result import Result
from orchestra_flwr.square_image import decode_image
from orchestra_flwr.training import build_learner
from orchestra_flwr.use.image_embeddings import loaded_encoder
from orchestra_flwr.use.use_config import EmbedConfig

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
HIDDEN = (*SERVER, "ray", "pandas", "tensorboard")
HIDE = f"import sys; sys.modules.update(dict.fromkeys({HIDDEN!r}))\n"
CLIENT = """if True:
    from pathlib import Path
    from orchestra_flwr.cli import client_main
    import orchestra_flwr.flower.client_tasks, flwr.supernode.cli.flower_supernode
    import orchestra_flwr.deployment.processes.client_process
    from orchestra_flwr import load_encoder
    from orchestra_flwr.config import load_config
    from orchestra_flwr.data import load_dataset
    from orchestra_flwr.federation.client.numpy_client import OrchestraClient
    from orchestra_flwr.seeding import ClientSeed
    from orchestra_flwr.training import build_learner, train_round
    config = load_config(sys.argv[1:])
    images = load_dataset(config.data).train.images
    learner = build_learner(config, images.shape[1])
    trained = train_round(learner, images, config, ClientSeed(0, 1, "0"))
    print(trained.steps)
"""


def python(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", HIDE + program, *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip


def test_a_client_trains_orchestra_without_the_libraries_of_a_server(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(40):
        pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    done = python(
        CLIENT, "data=image_folder", f"data.root={tmp_path}", "partition=iid", "model.width=8",
        "data.image_size=16", "training.local_epochs=1", "training.batch_size=8", "device=cpu",
        "clustering.global_clusters=4", "clustering.local_clusters=2", "clustering.memory=32",
    )  # fmt: skip
    assert done.stdout == "5\n", done.stderr


def test_a_client_says_what_private_clustering_needs(tmp_path, monkeypatch, capsys):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "one.png")
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    bounded = client_main(
        ["server=127.0.0.1:1", f"data.root={tmp_path / 'photos'}", f"state={tmp_path}",
         "privacy.total_epsilon=8", "privacy.delta=1e-5"]
    )  # fmt: skip
    line = (
        "privacy.epsilon, privacy.total_epsilon: dp_accounting is not installed; "
        "pip install 'orchestra-flwr[privacy]'\n"
    )
    assert bounded == 2 and capsys.readouterr().err.endswith(line)


# Commands with other required keys may name those first: they are complete here.
COMMANDS = {
    "main": ("run_sim.py", []),
    "server_main": ("run_server.py", []),
    "evaluate_main": ("orchestra-evaluate", ["run=."]),
    "embed_main": ("orchestra-embed", ["run=.", "images=."]),
    "label_main": ("orchestra-label", ["run=.", "images=.", "labels=labels.csv"]),
    "compare_main": ("orchestra-compare", ["after=.", "images=."]),
    "export_main": ("orchestra-export", ["run=."]),
}
MODULES = {"orchestra_flwr.experiments": "orchestra-report"}


def test_python_and_any_other_command_say_in_one_line_what_to_install(tmp_path):
    (tmp_path / "encoder.safetensors").touch()
    (tmp_path / "encoder.json").touch()
    program = f"""if True:
        import os, runpy
        try:
            from orchestra_flwr import simulate
        except ModuleNotFoundError as error:
            print(error, file=sys.stderr)
        from orchestra_flwr import cli
        os.chdir({str(tmp_path)!r})
        for command, (_, arguments) in {COMMANDS!r}.items():
            print(getattr(cli, command)(arguments))
        for module in {[*MODULES]!r}:
            try:
                runpy.run_module(module, run_name="__main__")
            except SystemExit as error:
                print(error.code)
    """
    done = python(program, tmp_path)
    names = [*(name for name, _ in COMMANDS.values()), *MODULES.values()]
    assert done.stderr.splitlines() == [
        f"{name}: matplotlib is not installed; pip install 'orchestra-flwr[server]'"
        for name in ("orchestra_flwr.simulate", *(f"error: {name}" for name in names))
    ]
    assert done.stdout.split() == ["2"] * len(names)


def asks_for(extra, tiny, folder):
    """What needs an extra, by the library that is hidden; none of it computes anything."""
    encoder = folder / "encoder.safetensors"
    encoder.touch()
    run = f"run={encoder}"
    return {
        "server": {"sklearn": lambda: load_dataset(tiny().data)},
        "privacy": {"dp_accounting": lambda: calibrate(0.123, 1e-5)},
        "simulation": {"ray": lambda: check_resources(tiny("engine=ray"))},
        "tensorboard": {"tensorboard": lambda: check_resources(tiny("logging.tensorboard=true"))},
        "wandb": {"wandb": lambda: check_resources(tiny("logging.wandb=true"))},
        "mlflow": {"mlflow": lambda: check_resources(tiny("logging.mlflow=true"))},
        "timm": {
            "timm": lambda: build_learner(tiny("model=timm", "model.timm=resnet10t"), 3),
            "peft": lambda: tiny("method=simclr", "adaptation=lora"),
        },
        "notebook": {"pandas": lambda: Result(finished(folder)).frame()},
        "watch": {
            "prometheus_client": lambda: exposed({"role": "server", "version": "1"}),
        },
        "parquet": {
            "pyarrow": lambda: loaded_encoder(
                load(EmbedConfig, [run, "images=photos", "format=parquet"])
            )
        },
        "formats": {
            "pillow_heif": lambda: decode_anew(bytes(4) + b"ftypheic" + bytes(120)),
            "pydicom": lambda: decode_anew(bytes(128) + b"DICM"),
        },
        "onnx": {
            library: lambda: export_saved(load(ExportConfig, [run]))
            for library in ("onnx", "onnxruntime", "onnxscript")
        },
        "huggingface": {
            "datasets": lambda: load_dataset(
                load_config(["data=huggingface", "data.dataset=owner/name"]).data
            ),
            "flwr_datasets": lambda: tiny(
                "partition=flwr_datasets", "partition.partitioner=IidPartitioner"
            ).partition.build().split(None, 4, 2, 0),
            "huggingface_hub": lambda: export_to_hub(
                load(ExportConfig, [run, "format=hub", "push_to_hub=me/photos"])
            ),
        },
    }[extra]  # fmt: skip


def decode_anew(data):
    """As in a process that looks for the libraries now."""
    square_image._formats.cache_clear()
    for name in LIBRARIES:
        Image.OPEN.pop(name, None)  # registered again by the next image
    try:
        decode_image(data, 8)
    finally:
        square_image._formats.cache_clear()


def finished(folder):
    (folder / "config.yaml").touch()
    (folder / "metrics.jsonl").write_text('{"round": 0}\n')
    (folder / "summary.json").write_text("{}")
    return folder


OF_DEVELOPERS = {"dev", "docs", "bench", "peers", "deploy", "audit", "mutants"}


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - OF_DEVELOPERS))
def test_without_an_extra_one_line_says_what_to_install(extra, tiny, tmp_path, monkeypatch):
    """Of every extra there is, and of every library that it brings."""
    asked = asks_for(extra, tiny, tmp_path)
    for library, ask in asked.items():
        with monkeypatch.context() as hidden:
            hidden.setitem(sys.modules, library, None)
            with pytest.raises((ConfigError, ImportError, ValueError)) as caught:
                ask()
        line = str(caught.value)
        assert "\n" not in line and "is not installed" in line
        assert f"pip install 'orchestra-flwr[{extra}]'" in line


def test_a_client_installs_none_of_them_and_everything_else_does():
    small = {
        re.split(r"[<>=\[]", requirement)[0] for requirement in PYPROJECT["project"]["dependencies"]
    }
    assert not small & {"matplotlib", "scikit-learn", "ray", "pandas", "scipy", "dp-accounting"}
    assert set(EXTRAS["privacy"]) < set(EXTRAS["server"])
    for extra in ("simulation", "notebook"):
        assert "orchestra-flwr[server]" in EXTRAS[extra]
    assert PYPROJECT["dependency-groups"]["app"] == EXTRAS["server"]  # flwr run .
    assert PYPROJECT["tool"]["uv"]["default-groups"] == ["app"]


def test_uvicorn_is_what_flower_itself_requires():
    """docs/jetson.md says so: nothing that is left out here would keep it from a client."""
    assert any(requirement.startswith("uvicorn") for requirement in requires("flwr") or [])


@pytest.fixture
def hub():
    """The hub's logger, with the handler that its library gives it and one of a user's own."""
    logger = logging.getLogger("huggingface_hub")
    before, own = logger.handlers, logging.NullHandler()
    logger.handlers = [logging.StreamHandler(), own]
    yield logger, own
    logger.handlers = before


def test_messages_of_the_hub_are_logged_once(hub, capsys):
    """Its library prints them, too: on the terminal each would stand twice, and between JSON."""
    logger, own = hub
    log_the_hub_once()
    assert logger.handlers == [own] and logger.propagate


def test_weights_of_the_hub_are_loaded_after_that(hub, monkeypatch, caplog):
    pytest.importorskip("timm", reason="needs the extra timm")
    options = {"name": "timm", "timm": "test_vit", "image_size": 32, "weights": "pretrained"}
    backbone = build_backbone(ModelConfig.model_validate(options), 3)
    logger, own = hub
    handlers = []

    def offline(*_, **__):
        handlers.append(logger.handlers)
        raise OSError("no network")

    monkeypatch.setattr("orchestra_flwr.models.backbones.timm._seeded", offline)
    timm_backbone._announce_download.cache_clear()
    for _ in range(2):  # a run loads them several times, and says so once
        with (
            caplog.at_level(logging.INFO, "orchestra_flwr"),
            pytest.raises(ConfigError, match="name a"),
        ):
            backbone.load_weights()
    assert handlers == [[own]] * 2
    assert caplog.messages == [
        "loading the weights of test_vit; they are downloaded if not yet here"
    ]


def test_data_of_the_hub_are_loaded_after_that(hub, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs the extra huggingface")
    logger, own = hub
    handlers = []

    def offline(*_, **__):
        handlers.append(logger.handlers)
        raise OSError("no network")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_dataset(load_config(["data=huggingface", "data.dataset=somebody/photos"]).data)
    assert handlers == [[own]]
