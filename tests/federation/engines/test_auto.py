"""Which engine is chosen, and that a chosen one runs. The same bits on both: test_ray.py."""

import importlib.util
import re
from contextlib import nullcontext

import pytest
import torch

from orchestra_flwr.cli import main
from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.federation.engines import auto, ray
from orchestra_flwr.federation.engines.inline import InlineEngine
from orchestra_flwr.federation.engines.ray import RayEngine
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.flower import ray_start
from orchestra_flwr.flower.ray_start import RayStartError
from orchestra_flwr.training import devices


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    """Two, unless a test asks for another number."""

    def there_are(count):
        monkeypatch.setattr(devices, "usable_cpus", lambda: count)

    there_are(2)
    return there_are


@pytest.fixture
def engine(tiny):
    def of(*overrides):
        config = tiny("engine=auto", "federation.clients=10", *overrides)
        return config.engine.build(config)

    return of


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        (("federation.rounds=9", "training.local_epochs=1"), InlineEngine),
        (("federation.rounds=10", "training.local_epochs=1"), RayEngine),
        (("federation.rounds=4", "training.local_epochs=3"), RayEngine),
        (("federation.rounds=10", "federation.participation=0.5"), InlineEngine),
        (("federation.rounds=2", "data.image_size=64"), InlineEngine),
        (("federation.rounds=3", "data.image_size=64"), RayEngine),
    ],
)
def test_fewer_than_100_local_epochs_are_inline(engine, overrides, kind):
    built = engine("training.local_epochs=1", *overrides)
    assert type(built.chosen) is kind
    assert built.starts_immediately == (kind is InlineEngine)
    small = r"engine=inline was chosen: \d0 local epochs in all are fewer than (100|25)"
    assert (built.remark is None) == (kind is RayEngine)
    assert built.remark is None or re.fullmatch(small, built.remark)


def test_one_core_is_inline(engine, cores):
    long = ("federation.rounds=100",)
    cores(1)
    assert "cores and memory hold one client at a time" in engine(*long).remark
    cores(3)
    assert type(engine(*long, "training.threads=2").chosen) is InlineEngine
    assert type(engine(*long).chosen) is RayEngine


def test_memory_for_one_client_is_inline(engine, monkeypatch):
    monkeypatch.setattr(devices, "usable_memory", lambda: 5 * 2**29)  # the server's GiB, and 1.5
    assert "memory hold one client at a time" in engine("federation.rounds=100").remark


@pytest.mark.parametrize(
    ("gpus", "device", "refused"),
    [(2, "cuda:1", True), (2, "cuda:0", True), (1, "cuda:0", False), (2, "cuda", False)],
)
def test_a_run_keeps_to_the_gpu_that_it_names(engine, monkeypatch, gpus, device, refused):
    """Each worker of Ray sees one GPU, as its first."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(ray, "ray_backend", lambda config: {})
    built = engine("federation.rounds=100", f"device={device}")
    assert type(built.chosen) is (InlineEngine if refused else RayEngine)
    assert ("CUDA_VISIBLE_DEVICES shows it that one" in (built.remark or "")) is refused
    asked = engine("federation.rounds=100", f"device={device}", "engine.workers=2")
    with pytest.raises(ConfigError, match=f"device={device} says") if refused else nullcontext():
        asked.check_resources()


def test_whoever_gives_an_option_of_ray_gets_ray(engine, cores):
    cores(1)
    built = engine("engine.workers=2")
    assert type(built.chosen) is RayEngine and built.remark is None
    assert built.chosen.settings.workers == 2


def test_without_ray_clients_run_inline_unless_it_was_asked_for(engine, monkeypatch):
    spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else spec(name)
    )
    built = engine("federation.rounds=100")
    built.check_resources()
    assert type(built.chosen) is InlineEngine and "Ray is not installed" in built.remark
    with pytest.raises(ConfigError, match="Ray is not installed"):
        engine("engine.workers=2").check_resources()


def test_a_small_run_is_inline_and_says_so(tiny_overrides, tmp_path, capsys):
    folders = {name: tmp_path / name for name in ("inline", "auto")}
    for name, folder in folders.items():
        assert main([*tiny_overrides, f"engine={name}", f"run_dir={folder}"]) == 0
    assert "engine=inline was chosen" in capsys.readouterr().out
    first, second = ((f / "encoder.safetensors").read_bytes() for f in folders.values())
    assert first == second


@pytest.fixture
def broken(monkeypatch):
    """Ray, which takes its time to say that it does not start."""

    def start(init_args, tries):
        assert tries == 1
        raise RayStartError("no room for objects")

    monkeypatch.setattr(ray_start, "_start", start)
    monkeypatch.setattr(auto, "MIN_EPOCHS", 1)


@pytest.mark.usefixtures("broken")
def test_where_ray_does_not_start_the_run_goes_on_inline(tiny_overrides, tmp_path, capsys):
    folders = {name: tmp_path / name for name in ("inline", "auto")}
    for name, folder in folders.items():
        assert main([*tiny_overrides, f"engine={name}", f"run_dir={folder}"]) == 0
    said = "engine=inline was chosen: Ray does not start here: no room for objects\n"
    assert capsys.readouterr().out.count(said) == 1
    first, second = ((f / "encoder.safetensors").read_bytes() for f in folders.values())
    assert first == second


def test_whoever_asked_for_ray_is_told_that_it_does_not_start(engine, monkeypatch):
    def start(init_args, tries):
        assert tries == 2
        raise RayStartError("no room for objects")

    monkeypatch.setattr(ray_start, "_start", start)
    built = engine("engine.workers=2")
    built.begin()
    with pytest.raises(FederationError, match="Ray does not start here: no room for objects"):
        built.run(lambda grid, workers: pytest.fail("is served"), 4)


def test_it_is_the_default():
    assert load_config([]).engine.name == "auto"


@pytest.mark.slow
def test_a_long_run_is_on_ray(tiny_overrides, tmp_path, capfd):
    """Its start begins before the run, and ends with it."""
    long = ("federation.rounds=26", "training.local_epochs=1", "federation.clients=4")
    assert main([*tiny_overrides, *long, "engine=auto", f"run_dir={tmp_path / 'run'}"]) == 0
    out = capfd.readouterr().out
    assert "engine=auto" in out and "was chosen" not in out
