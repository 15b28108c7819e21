"""Every method in a whole federation, with real messages in this process."""

import json

import numpy as np
import pytest

from orchestra_flwr.config import ConfigError, MethodConfig
from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.engines.inline import InlineGrid
from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.population import check_population, load_population
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.federation.server.loop import FederationRun
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.flower.arrays import from_record
from orchestra_flwr.methods import release_of
from orchestra_flwr.reporting import RunFolder, make_progress
from orchestra_flwr.training import build_learner


class ListeningGrid(InlineGrid):
    """Keeps the names and sizes of all arrays in the clients' replies."""

    def __init__(self, app):
        super().__init__(app)
        self.heard = []

    def send_and_receive(self, messages, *, timeout=None):
        for reply in super().send_and_receive(messages, timeout=timeout):
            if ARRAYS in reply.content:
                arrays = from_record(reply.content[ARRAYS])
                self.heard.append({name: array.size for name, array in arrays.items()})
            yield reply


def run(config):
    population = load_population(config)
    check_population(config, population)
    grid = ListeningGrid(client_app)
    members = SimulatedMembers(grid, population.parts)
    folder = RunFolder.create(config)
    with make_progress("off", config.federation.rounds) as progress:
        summary = FederationRun(
            grid,
            config,
            members,
            evaluator=Evaluator(config, population.dataset),
            folder=folder,
            progress=progress,
        ).run()
    return summary, folder, grid.heard


# What each method does in a round is tested in tests/methods; these are the most unlike ones.
OFTEN = {"orchestra", "byol", "mae", "cbafed", "swav"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in OFTEN else pytest.mark.slow)
        for name in MethodConfig.room.found()
    ],
)
def test_two_rounds_end_with_finite_scores_of_the_kept_backbone(tiny, tmp_path, name):
    needs = ("model=vit_tiny", "model.width=24", "model.depth=2") if name == "mae" else ()
    config = tiny(f"method={name}", f"run_dir={tmp_path / 'run'}", *needs)
    summary, folder, heard = run(config)
    learner = build_learner(config, 1)
    backbone = next(iter(learner.method.backbones()))
    assert summary["backbone"] == backbone == json.loads(folder.summary.read_text())["backbone"]
    for scores in (summary, summary["untrained"]):
        values = [scores[key] for key in ("knn", "linear", "feature_std")]
        assert np.isfinite(values).all() and 0 < values[0] <= 1
    about = json.loads((folder.path / "encoder.json").read_text())["about"]
    assert (about["method"], about["backbone"]) == (name, backbone)
    rounds = folder.read_metrics()
    assert [r["round"] for r in rounds] == [0, 1, 2]
    assert all(np.isfinite(r["loss"]["total"]) for r in rounds[1:])
    sizes = Schemas.of(learner, config).shared.size
    release = release_of(config)
    allowed = set(release.rows) if release else set()
    trained = [arrays for arrays in heard if "shared" in arrays]
    assert len(trained) == 2 * 4 and {arrays["shared"] for arrays in trained} == {sizes}
    assert {name for arrays in heard for name in arrays} == {"shared"} | allowed


def photos(root, **sizes):
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, size in sizes.items():
        (root / name).mkdir(parents=True)
        for i in range(size):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return ["method=supervised", "data=image_folder", f"data.root={root}", "data.image_size=8"]


def test_labels_that_do_not_fit_are_told_before_anything_starts(tiny, tmp_path):
    given = photos(tmp_path / "photos", ant=9, bee=9)
    config = tiny(*given, "method.classes=[ant,cat]", f"run_dir={tmp_path / 'run'}")
    with pytest.raises(ConfigError, match="bee is missing"):
        run(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_federation_learns_the_labels_of_photos(tiny, tmp_path):
    given = photos(tmp_path / "photos", ant=20, bee=20)
    config = tiny(
        *given, "method.classes=[bee,ant]", f"run_dir={tmp_path / 'run'}", "federation.rounds=6",
        "training.local_epochs=20", "training.lr=0.03", "partition=iid", "model.width=16",
    )  # fmt: skip
    _, folder, _ = run(config)
    losses = [r["loss"]["classification"] for r in folder.read_metrics()[1:]]
    assert losses[-1] < 0.5 * losses[0]
