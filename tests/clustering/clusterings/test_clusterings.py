"""What holds for all clusterings and solvers, and for each that will be added."""

import ast
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr import methods
from orchestra_flwr.config import Config, ConfigError, load_config
from orchestra_flwr.config.choices import ClusteringConfig, SolverConfig
from orchestra_flwr.methods import release_of
from orchestra_flwr.seeding import ClientSeed

CLUSTERINGS = sorted(ClusteringConfig.room.found())
SOLVERS = sorted(SolverConfig.room.found())
NEEDS = {"private": ("privacy.epsilon=50",), "features": ("privacy.k_min=1",)}
SEED = ClientSeed(0, 2, "0")

MINE = """
    import torch

    from orchestra_flwr.clustering.clusterings import LOCAL_CENTROIDS, Clustering
    from orchestra_flwr.config import Section
    from orchestra_flwr.privacy.release import Contribution, Release

    class Mine(Clustering):
        takes_clean_features = True

        class Settings(Section):
            share: float = 0.5

        @classmethod
        def check(cls, config):
            if config.clustering.settings.share > 1:
                raise ValueError("clustering.share: must be at most 1")

        @classmethod
        def release(cls, config):
            rows = {LOCAL_CENTROIDS: (1, config.model.projector_dim)}
            return Release(rows, "means", min_images=2, first_round=0)

        def start_round(self, round_, images, features):
            count = max(2, int(self.settings.share * len(images)))
            self.mean = features(images[:count]).mean(0, keepdim=True)

        def end_round(self, images, seed):
            return Contribution({LOCAL_CENTROIDS: self.mean}, smallest_group=2)
"""
LAST = """
    from torch.nn.functional import normalize

    from orchestra_flwr.clustering.solvers import Solver

    class Last(Solver):
        def solve(self, points, previous, generator):
            return normalize(points[-1:]).expand(len(previous), -1)
"""


@pytest.mark.parametrize("name", CLUSTERINGS)
def test_what_is_sent_is_what_the_release_says(tiny, name):
    config = tiny(f"clustering={name}", *NEEDS.get(name, ()))
    release, clustering = release_of(config), config.clustering.build(config)
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=draw)
    weights = torch.randn(64, 16, generator=draw)

    def features(some):
        return F.normalize(some.flatten(1).float() / 255 @ weights, dim=1)

    clustering.start_round(max(release.first_round, 1), images, features)
    clustering.observe(torch.arange(40), features(images))
    contribution = clustering.end_round(images, SEED)
    assert contribution.arrays.keys() == release.rows.keys()
    for key, array in contribution.arrays.items():
        most, width = release.rows[key]
        assert array.shape[1] == width and 1 <= len(array) <= most
        torch.testing.assert_close(array.norm(dim=1), torch.ones(len(array)))
    assert clustering.first_centroids().shape == (config.clustering.global_clusters, 16)


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_make_unit_vectors_and_draw_from_their_generator_alone(tiny, name):
    config = tiny(f"clustering.solver={name}")
    draw = torch.Generator().manual_seed(0)
    points = F.normalize(torch.randn(40, 16, generator=draw), dim=1)
    state = torch.get_rng_state()
    for previous in (torch.zeros(4, 16), F.normalize(torch.randn(4, 16, generator=draw), dim=1)):
        ours, again = (
            config.clustering.solver.build(config).solve(
                points, previous, torch.Generator().manual_seed(1)
            )
            for _ in range(2)
        )
        assert torch.equal(ours, again) and ours.shape == (4, 16)
        torch.testing.assert_close(ours.norm(dim=1), torch.ones(4))
    assert torch.equal(torch.get_rng_state(), state)


def test_no_method_knows_a_clustering_or_a_solver_by_name():
    names = {*CLUSTERINGS, *SOLVERS}
    for file in Path(methods.__file__).parent.rglob("*.py"):
        texts = {
            node.value
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not texts & names, file


def test_a_clustering_and_a_solver_of_a_users_package_are_found_and_used(tiny, user_package):
    user_package({"clusterings/mine.py": MINE, "solvers/last.py": LAST})
    chosen = ("plugins=[my_package]", "clustering=mine", "clustering.solver=last")
    config = tiny(*chosen, "clustering.share=0.25")
    assert release_of(config).label == "means"
    method = methods.build_method(config, 1).train()
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=draw)
    method.start_round(methods.Received("0", 0, 2, images))
    sent = method.end_round(images, SEED).arrays["local_centroids"]
    torch.testing.assert_close(sent, method._clean_features(images[:10]).mean(0, keepdim=True))
    method.update_server_state({"local_centroids": torch.cat([sent, -sent])}, draw)
    assert torch.equal(method.global_centroids, F.normalize(-sent).expand(4, -1))
    with pytest.raises(ConfigError, match="clustering.share: must be at most 1"):
        tiny(*chosen, "clustering.share=2")
    with pytest.raises(ConfigError, match="clustering.shar: unknown option of clustering=mine"):
        tiny(*chosen, "clustering.shar=2")
    assert Config.from_json(config.to_json()).clustering == config.clustering


def test_options_of_other_clusterings_are_passed_over_and_others_are_not(tiny):
    """Files of data sets set them for whatever clustering there is."""
    config = load_config(["data=cifar100", "clustering=features", "privacy.k_min=1"])
    assert config.clustering.options == {"memory": 128}
    assert config.clustering.options_of_others == ("local_clusters",)
    with pytest.raises(ConfigError, match="clustering.lokal: unknown option of clustering=feature"):
        tiny("clustering=features", "privacy.k_min=1", "clustering.lokal=3")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("clustering.solver=newton", "clustering.solver=newton: must be one of alternating, gradi"),
        (
            "clustering.solver.steps=3",
            "clustering.solver.steps: unknown option of clustering.solver=a",
        ),
        ("clustering.damping=1", "clustering.damping=1: input should be less than 1"),
        ("clustering.global_clusters=1", "clustering.global_clusters=1: input should be greater"),
        ("clustering.local_clusters=1", "clustering.local_clusters=1: input should be greater"),
        ("clustering=k_means", "clustering=k_means: must be one of features, private, sinkhorn"),
    ],
)
def test_what_cannot_be_chosen_is_refused(tiny, override, says):
    with pytest.raises(ConfigError) as error:
        tiny(override)
    assert str(error.value).startswith(says)


def test_a_solver_stands_in_a_configuration_as_its_name(tiny):
    """As in every run folder of before."""
    config = tiny("clustering.solver=gradient")
    assert config.model_dump()["clustering"]["solver"] == "gradient"
    assert tiny("clustering.solver.name=gradient") == config
    assert Config.from_json(config.to_json()) == config


def test_a_damping_that_nothing_reads_is_refused():
    given = ["clustering.solver=gradient", "clustering.damping=0.1"]
    with pytest.raises(ConfigError, match="damping: is not read with clustering.solver=gradient"):
        load_config(given, all_read=True)
    assert load_config(given).clustering.damping == 0.1
