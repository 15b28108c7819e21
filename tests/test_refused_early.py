"""What can be refused without pixels is refused before an image is decoded."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from orchestra_flwr import simulate
from orchestra_flwr.cli import main, server_main
from orchestra_flwr.config import ConfigError
from orchestra_flwr.data.image_files import image_rows
from orchestra_flwr.folder_lock import locked

PHOTOS = ("data=image_folder", "data.root=photos", "engine=inline")
FLAT = ("data=image_folder", "data.root=flat", "engine=inline")
DECODE = image_rows.decode_files
HUGE = 10**20
MAE = ("method=mae", "model=vit_tiny", "model.width=24")
BEST_KNN = ("evaluation.keep=best", "evaluation.best_by=knn")
NOISE = ("privacy.clip=1", "privacy.noise_multiplier=1", "federation.weighting=uniform")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with 12 files in two class folders, 12 in none, none of which may be decoded."""
    for number in range(12):
        for folder in ("flat", f"photos/class{number % 2}"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / f"{number}.png").write_bytes(b"x")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.yaml").write_text("seed: 0")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    (tmp_path / "table.csv").write_text("file,group\nclass0/0.png,a\n")
    monkeypatch.chdir(tmp_path)

    def decoded(*_):
        pytest.fail("images are read")

    monkeypatch.setattr(image_rows, "decode_files", decoded)
    return tmp_path


REFUSED = [
    # keys and values
    ([*PHOTOS, "training.lrr=1"], "training.lrr"),
    ([*PHOTOS, "training.lr=-1"], "training.lr=-1"),
    ([*PHOTOS, "clustering.solver=newton"], "clustering.solver=newton"),
    ([*PHOTOS, "plugins=[no_such_package]"], "no_such_package"),
    # combinations
    ([*PHOTOS, "method=simclr", "clustering=private"], "clustering"),
    ([*PHOTOS, "method=rotpred", "labels.fraction=0.5"], "labels.fraction=0.5"),
    ([*PHOTOS, "exchange=clusters", "privacy.clip=1", "federation.weighting=uniform"], "exchange"),
    ([*PHOTOS, "privacy.clip=1"], "federation.weighting"),
    ([*PHOTOS, "clustering=private"], "privacy.epsilon"),
    ([*PHOTOS, "method=dino", f"method.outputs={HUGE}"], f"method.outputs={HUGE}"),
    ([*PHOTOS, "method=specloss", f"method.outputs={HUGE}"], f"method.outputs={HUGE}"),
    ([*PHOTOS, "method=swav", f"method.prototypes={HUGE}"], f"method.prototypes={HUGE}"),
    ([*PHOTOS, "method=simsiam", f"method.predictor_hidden={HUGE}"], "method.predictor_hidden="),
    ([*PHOTOS, *MAE, f"method.decoder_depth={HUGE}"], f"method.decoder_depth={HUGE}"),
    ([*PHOTOS, "method=simclr", "exchange=tree", "exchange.mixes=10000000"], "exchange.mixes=1"),
    ([*PHOTOS, "privacy.k_min=500"], "privacy.k_min=500"),
    ([*PHOTOS, "method=simclr", *NOISE], "privacy.noise_multiplier=1: must be 0 in a simulation"),
    # the run's folder
    ([*PHOTOS, "run_dir=taken"], "run_dir=taken: already holds a run"),
    ([*PHOTOS, "run_dir=full"], "run_dir=full: already holds files"),
    ([*PHOTOS, "run_dir=table.csv"], "run_dir=table.csv: must be a new folder"),
    ([*PHOTOS, "run_dir=table.csv/run"], "run_dir=table.csv/run: must be a new folder"),
    (["resume=missing"], "resume=missing"),
    # files, and what is to be built
    ([*PHOTOS, "data.root=missing"], "data.root=missing"),
    ([*PHOTOS, "init=missing"], "init=missing"),
    ([*PHOTOS, "partition=features", "partition.encoder=missing"], "partition.encoder=missing"),
    ([*PHOTOS, "partition=groups", "partition.csv=missing.csv"], "partition.csv=missing.csv"),
    ([*PHOTOS, "model.width=16384", "model.projector_dim=131072"], "GB, and this machine has"),
    ([*PHOTOS, "device=cuda:9"], "device=cuda:9"),
    ([*PHOTOS, "engine=ray", "engine.address=127.0.0.1:1"], "engine.address=127.0.0.1:1"),
    # images that lack something, by their names alone
    ([*FLAT], "partition=dirichlet: needs labels, and these images have none"),
    ([*FLAT, "partition=iid", "data.test_share=0.2"], "data.test_share=0.2: the images have no"),
    ([*FLAT, "partition=iid", "method=supervised"], "method=supervised: learns from labels"),
    ([*FLAT, "partition=iid", "method=simclr", "labels.fraction=0.5"], "labels.fraction=0.5: must"),
    ([*FLAT, "partition=iid", "evaluation.clients=true"], "evaluation.clients=true"),
    ([*FLAT, "partition=iid", "evaluation.keep=best"], "evaluation.best_by=effective_rank: the tr"),
    ([*PHOTOS, *BEST_KNN], "evaluation.best_by=knn: there are no labelled test images"),
    ([*PHOTOS, "evaluation.clients=true"], "evaluation.clients=true"),
    ([*PHOTOS, "federation.clients=13"], "federation.clients=13: at most one client for each"),
    ([*PHOTOS, "data.train_limit=9"], "federation.clients=10: at most one client for each of"),
    ([*PHOTOS, "partition=groups", "partition.csv=table.csv"], "partition.csv=table.csv"),
    ([*PHOTOS, "partition=groups", "partition.level=9"], "partition"),
    ([*PHOTOS, "method=supervised", "method.classes=[a,b]"], "method.classes=[a,b]"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "names"), REFUSED, ids=[names for _, names in REFUSED])
def test_nothing_is_read_for_a_simulation_that_is_refused(place, capsys, arguments, names):
    before = sorted(place.rglob("*"))
    assert main(["logging.progress=off", *arguments]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith("error: ") and names in err[-1]
    assert sorted(place.rglob("*")) == before


def test_an_aggregation_that_memory_cannot_hold(place, capsys, monkeypatch):
    monkeypatch.setattr("orchestra_flwr.federation.aggregations.usable_memory", lambda: 10**6)
    assert main([*PHOTOS, "aggregation=median", "logging.progress=off"]) == 2
    assert "aggregation=median holds the models of 10 clients at once" in capsys.readouterr().err


@pytest.mark.parametrize("extra", ["tensorboard", "wandb", "mlflow"])
def test_an_extra_that_is_missing(place, capsys, monkeypatch, extra):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *of: None if name == extra else find_spec(name, *of),
    )
    monkeypatch.setitem(sys.modules, extra, None)
    assert main([*PHOTOS, f"logging.{extra}=true", "logging.progress=off"]) == 2
    assert f"logging.{extra}=true" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(place, capsys):
    (place / "full").chmod(0o500)
    assert main([*PHOTOS, "run_dir=full/run", "logging.progress=off"]) == 2
    assert "run_dir=full/run: must be a new folder, which cannot be" in capsys.readouterr().err


def test_a_run_that_another_process_continues(place, capsys, tiny_overrides, monkeypatch):
    with monkeypatch.context() as whole:
        whole.setattr(image_rows, "decode_files", DECODE)
        assert main([*tiny_overrides, "run_dir=run", "federation.rounds=1"]) == 0
    with locked(Path("run")):
        assert main(["resume=run"]) == 2
    assert "writes to this folder; wait until it has ended" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["run_dir=taken"], "already holds a run"),
        (["host=0.0.0.0"], "keys server"),
        ([*BEST_KNN], "evaluation.best_by=knn: there are no labelled test images"),
    ],
)
def test_a_server_that_is_refused(place, capsys, arguments, names):
    labelled = ("data=image_folder", "data.root=photos")
    assert server_main([*labelled, *arguments]) == 2
    assert names in capsys.readouterr().err


def test_a_run_from_python_stores_no_images_that_it_would_refuse(place):
    class Unread:
        def __len__(self):
            return 12

        def __getitem__(self, index):
            pytest.fail("images are read")

    with pytest.raises(ConfigError, match="run_dir=taken: already holds a run"):
        simulate(["engine=inline", "run_dir=taken"], dataset=Unread())
