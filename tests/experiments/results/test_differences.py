import pytest

from orchestra_flwr.experiments.results import differences
from orchestra_flwr.experiments.results.runs import read_run


@pytest.fixture
def runs(make_run):
    def make(*overrides):
        folders = [
            make_run(f"2026-11-22_10-00-{n:02}", {}, overrides=differing)
            for n, differing in enumerate(overrides)
        ]
        return [read_run(folder) for folder in folders]

    return make


def by_difference(runs):
    return differences.by_difference(runs, runs[0].folder.parent)


def names(found):
    return {name: [run.config.seed for run in members] for name, members in found.items()}


def test_runs_are_named_by_what_differs_and_seeds_are_together(runs):
    groups = by_difference(
        runs(
            ["training.lr=0.1", "seed=0"],
            ["training.lr=0.1", "seed=1"],
            ["training.lr=0.2", "federation.rounds=7", "name=other", "device=cpu"],
        )
    )
    assert names(groups) == {
        "federation.rounds=100, training.lr=0.1": [0, 1],
        "federation.rounds=7, training.lr=0.2": [0],
    }


def test_a_choice_that_differs_stands_for_its_options(runs):
    groups = by_difference(runs(["method=simclr"], ["method=byol"]))
    assert [name.split(", ")[0] for name in groups] == ["method=simclr", "method=byol"]
    assert not any("method." in name for name in groups)


def test_what_a_run_does_not_read_is_not_in_its_name(runs):
    groups = by_difference(runs(["clustering.local_clusters=16"], ["method=simclr"], []))
    assert list(groups) == [
        "method=orchestra, clustering.local_clusters=16",
        "method=simclr",
        "method=orchestra, clustering.local_clusters=8",
    ]


def test_a_value_that_some_lack_is_null(runs):
    groups = by_difference(runs(["data.train_limit=50"], []))
    assert list(groups) == ["data.train_limit=50", "data.train_limit=null"]


@pytest.mark.parametrize("count", [1, 2])
def test_runs_that_do_not_differ_have_their_folders_names(runs, count):
    groups = by_difference(runs(*[[]] * count))
    assert list(groups) == [f"2026-11-22_10-00-{n:02}" for n in range(count)]


def test_a_run_that_was_repeated_has_both(runs):
    groups = by_difference(runs(["training.lr=0.1"], ["training.lr=0.1"], ["training.lr=0.2"]))
    assert list(groups) == [
        "training.lr=0.1, 2026-11-22_10-00-00",
        "training.lr=0.1, 2026-11-22_10-00-01",
        "training.lr=0.2",
    ]


def test_at_most_four_keys_are_named(runs):
    many = ["training.lr=0.2", "federation.rounds=7", "partition.alpha=3", "data.train_limit=50",
            "evaluation.every=3"]  # fmt: skip
    groups = by_difference(runs(many, []))
    assert [len(name.split(", ")) for name in groups] == [4, 4]


def test_runs_that_differ_beyond_the_fourth_key_are_not_one(runs):
    many = ["training.lr=0.2", "federation.rounds=7", "partition.alpha=3", "data.train_limit=50"]
    groups = by_difference(
        runs([*many, "evaluation.every=3", "seed=0"], [*many, "evaluation.every=5", "seed=1"], [])
    )
    assert len(groups) == 3
    assert sorted(name.split(", ")[-1] for name in groups if "rounds=7" in name) == [
        "evaluation.every=3",
        "evaluation.every=5",
    ]


def test_options_of_a_choice_tell_its_runs_apart_where_nothing_else_does(runs):
    groups = by_difference(
        runs(
            ["method=simclr", "method.temperature=0.1", "seed=0"],
            ["method=simclr", "method.temperature=0.9", "seed=1"],
            [],
        )
    )
    assert len(groups) == 3
    assert {name for name in groups if "simclr" in name} == {
        "method=simclr, method.temperature=0.1",
        "method=simclr, method.temperature=0.9",
    }


def test_equal_runs_in_folders_of_one_name_are_both_there(make_run):
    folders = [make_run(f"{parent}/seed0", {}) for parent in "xy"]
    groups = differences.by_difference(list(map(read_run, folders)), folders[0].parent.parent)
    assert list(groups) == ["x/seed0", "y/seed0"]
