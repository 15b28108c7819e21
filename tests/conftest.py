"""Fixtures shared by all tests: tiny configurations and folders that nothing outside sees."""

import functools
import gc
import importlib
import os
import pickle
import random
import secrets
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path

# Before numpy is loaded: BLAS threads of processes side by side wait for each other, spinning.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
from hydra._internal.config_repository import ConfigRepository

from orchestra_flwr.config import load_config  # isort: skip  (before torch, whose threads it tames)
import torch

from orchestra_flwr.config.reading.hydra_overrides import conf_dir
from orchestra_flwr.evaluation import linear_probe
from orchestra_flwr.federation.server import members
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder
from orchestra_flwr.reporting import plots

TINY = (
    "data=digits",
    "engine=inline",
    "device=cpu",
    "model.width=8",
    "model.projector_dim=16",
    "data.train_limit=120",
    "data.test_limit=60",
    "federation.clients=4",
    "federation.rounds=2",
    "training.local_epochs=1",
    "training.batch_size=16",
    "training.lr=0.003",
    "clustering.global_clusters=4",
    "clustering.local_clusters=2",
    "clustering.memory=32",
    "evaluation.every=2",
    "evaluation.probe=fixed",  # a tenth of a tiny run's time goes to choosing the penalty
    "logging.progress=plain",
)


ROOT = Path(__file__).parents[1]
# Their tests wait for processes: begun first, they leave no worker alone with them at the end.
LONG = ("tests/federation/engines/", "tests/deployment/end_to_end/", "tests/experiments/test_sweep")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
JUDGED = "tests/evaluation/"  # what linear probes find


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish():
    gc.freeze()  # what has been imported is never garbage, and is looked through again and again


def pytest_sessionfinish():
    gc.unfreeze()  # or libraries complain of what is left


@pytest.fixture(scope="module")  # as long as it runs, no other test can begin an event loop
def browser():
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=[*QUIET], timeout=240_000)
        yield opened
        opened.close()


@pytest.fixture(scope="session", autouse=True)
def _conf_is_read_once():
    """Hydra reads some thirty files for each configuration: more than a quarter of its time."""
    files, read = {}, ConfigRepository.load_config
    packaged = {"hydra.conf", str(conf_dir()), ""}

    def load(self, config_path):
        if {source.path for source in self.sources} != packaged:  # a test may change its own
            return read(self, config_path)
        if config_path not in files:
            files[config_path] = pickle.dumps(read(self, config_path))
        return pickle.loads(files[config_path])  # a quarter of the time of a deep copy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigRepository, "load_config", load)
        yield


@functools.cache
def _composed(overrides):
    return load_config([*TINY, *overrides])


@functools.cache
def _teacher():
    """A folder with an encoder of gray images: what a method with a teacher distils by default."""
    config = _composed(())
    folder = Path(os.environ["FLWR_HOME"]).parent / "teacher"
    folder.mkdir(exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        encoder = Encoder(EncoderSpec.of(config))
    save_encoder(folder / "encoder.safetensors", encoder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _own_folders():
    """Flower, Ray and our cache write where the session's end removes it (short: sockets).

    One torch thread: a second one only gets into the way of the processes that tests start.
    """
    torch.set_num_threads(1)
    os.fsync = lambda file: None  # nobody pulls the plug, and a disk takes 6 ms each time
    with tempfile.TemporaryDirectory(prefix="orch", ignore_cleanup_errors=True) as folder:
        os.environ["FLWR_HOME"] = f"{folder}/flwr"
        os.environ["RAY_TMPDIR"] = f"{folder}/ray"
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  (lower, they never get on)
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        yield


def _in_checkout():
    """What lies in the checkout and its `outputs/`; files of tools begin with a dot."""
    outputs = ROOT / "outputs"
    kinds = outputs.iterdir() if outputs.is_dir() else ()
    runs = {f"{kind.name}/{run.name}" for kind in kinds if kind.is_dir() for run in kind.iterdir()}
    own = {path.name for path in ROOT.iterdir() if path.name[0] != "."}
    return (own - {"__pycache__", "outputs"}) | runs


@pytest.fixture(autouse=True)
def _checkout_stays_clean():
    """A test writes into `tmp_path`: files in the checkout are those of a person."""
    before = _in_checkout()
    yield
    assert _in_checkout() - before == set()


@pytest.fixture(autouse=True)
def _same_every_time():
    """What fails fails again: nothing that a test draws without a generator differs by run."""
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)  # that of the CPU: for GPUs it would note each call


@pytest.fixture(autouse=True)
def _quick_runs(request, monkeypatch):
    """What takes most of a tiny run's time and is judged elsewhere.

    Pictures are drawn only in tests that take `pictures`. Linear probes converge in
    tests/evaluation, in slow tests and in those that take `exact_probes`; elsewhere they stop after
    a few steps.
    """
    test = request.node
    exact = "exact_probes" in request.fixturenames or test.get_closest_marker("slow")
    if not exact and not test.nodeid.startswith(JUDGED):
        monkeypatch.setattr(linear_probe, "TOLERANCE", 1e-2)
        monkeypatch.setattr(linear_probe, "COARSE_TOLERANCE", 0.1)
    if "pictures" not in request.fixturenames:
        for name in ("curves_figure", "partition_figure", "save_png"):
            monkeypatch.setattr(plots, name, lambda *_, **__: None)
    monkeypatch.setattr(members, "NODE_POLL_SECONDS", 0.01)


@pytest.fixture
def pictures():
    """Runs draw their pictures."""


@pytest.fixture
def exact_probes():
    """Linear probes of runs in this process converge, as those of other processes do."""


@pytest.fixture(scope="session")
def tiny_overrides():
    """What makes a run take a second, for the command line."""
    return TINY


@pytest.fixture
def tiny():
    """Makes the configuration of a run that takes a second.

    It is frozen, so each is composed once, unless it depends on a package that a test writes.
    """

    def make(*overrides):
        if any("plugins=" in override for override in overrides):
            return load_config([*TINY, *overrides])
        if "method=distill" in overrides and not any("method.teacher=" in o for o in overrides):
            overrides = (*overrides, f"method.teacher={_teacher()}")
        return _composed(overrides)

    return make


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def user_package(tmp_path, monkeypatch):
    """Writes files, by their paths, of a user's own package; returns the package's folder."""
    root = tmp_path / "installed"
    monkeypatch.syspath_prepend(root)
    written = set()

    def write(files, package="my_package"):
        written.add(package)
        for name, text in files.items():
            file = root / package / name
            file.parent.mkdir(parents=True, exist_ok=True)
            for folder in (root / package, file.parent):
                (folder / "__init__.py").touch()
            file.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return root / package

    yield write
    for module in [name for name in sys.modules if name.partition(".")[0] in written]:
        del sys.modules[module]


@pytest.fixture
def stranger(user_package, tmp_path):
    """A package that nobody has named, and the file that it leaves once it is imported."""
    name, marker = f"stranger_{secrets.token_hex(4)}", tmp_path / "imported"
    user_package({"__init__.py": f"open({str(marker)!r}, 'w').close()\n"}, package=name)
    return name, marker
