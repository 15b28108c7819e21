"""A run that hurts says so, and which knob to turn."""

import math

import pytest

from orchestra_flwr.reporting import run_warnings as module

GOOD = {
    "knn": 0.5, "knn_standard_error": 0.01, "linear": 0.6, "linear_standard_error": 0.01,
    "feature_std": 0.8, "effective_rank": 40.0,
    "untrained": {"knn": 0.4, "linear": 0.5, "feature_std": 0.9, "effective_rank": 30.0},
}  # fmt: skip


def run_warnings(summary, records, chance, steps=1000, clients=()):
    return module.run_warnings(summary, records, chance, steps, clients)


def records(name, *losses):
    return [
        {"round": n, "loss": {name: loss, "total": 9.0}, "clients": {"dropped": []}}
        for n, loss in enumerate(losses)
    ]


def failures(*rounds):
    """Records of rounds in which these clients failed, each with its reason."""
    return [
        {"round": n, "clients": {"dropped": [{"client": c, "reason": r} for c, r in failed]}}
        for n, failed in enumerate(rounds)
    ]


def test_a_run_that_went_well_has_no_warning():
    assert run_warnings(GOOD, records("rotation", 1.4, 1.3, 1.2), {"rotation": math.log(4)}) == []
    assert run_warnings({}, [], {"rotation": 1.0}) == []


def test_training_that_hurts_is_named_with_its_figures_and_a_knob():
    harmed = {**GOOD, "linear": 0.35, "untrained": {**GOOD["untrained"], "linear": 0.433}}
    (line,) = run_warnings(harmed, [], {})
    assert "worse than before training (linear probe 43.3 % to 35.0 %)" in line
    assert "training.lr" in line and "model.batch_norm=frozen" in line and "\n" not in line
    for of_network in ("frozen", "none"):
        (line,) = run_warnings({**harmed, "batch_norm": of_network}, [], {})
        assert line.endswith("try a smaller training.lr or fewer federation.rounds")


@pytest.mark.parametrize(("after", "lines"), [(0.495, 0), (0.485, 1)])
def test_less_than_a_standard_error_is_no_harm(after, lines):
    assert len(run_warnings({**GOOD, "linear": after}, [], {})) == lines


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("feature_std", 0.14, "feature_std 0.9 to 0.14"),
        ("effective_rank", 3.0, "effective rank 30 to 3"),
    ],
)
def test_features_that_collapse_are_named(key, value, says):
    (line,) = run_warnings({**GOOD, key: value}, [], {})
    assert line.startswith("the features collapse") and says in line
    assert "training.batch_size" in line


@pytest.mark.parametrize("key", ["knn", "effective_rank"])
def test_after_a_few_steps_the_averages_of_batch_norm_are_to_blame(key):
    """Training less, or more slowly, would make it worse."""
    fallen = {**GOOD, "batch_norm": "averaged", key: 0.1}
    (line,) = run_warnings(fallen, [], {}, module.FEW_STEPS - 1)
    assert "after 29 steps BatchNorm's averages are" in line and "training.lr" not in line
    both = {**fallen, "linear": 0.1, "feature_std": 0.1}
    assert len(run_warnings(both, [], {}, 1)) == 1 and len(run_warnings(both, [], {})) == 2
    (line,) = run_warnings(fallen, [], {}, module.FEW_STEPS)
    assert "training.lr" in line
    (line,) = run_warnings({**fallen, "batch_norm": "none"}, [], {}, 1)
    assert "training.lr" in line


def test_a_loss_that_stays_at_chance_is_named():
    chance = {"rotation": math.log(4)}
    (line,) = run_warnings(GOOD, records("rotation", 1.2, 1.3, 1.39, 1.4), chance)
    assert line.startswith("the rotation loss stays at chance (1.390")
    assert "another training.lr" in line and "training.local_epochs" in line
    # Centroids that are all alike: the assignments say nothing.
    (line,) = run_warnings(GOOD, records("rotation", 1.38629, 1.38629, 1.38629), chance)
    assert line.startswith("the rotation loss stays at chance (1.386, and 1.386 without any")
    (line,) = run_warnings(GOOD, records("rotation", 1.2, 1.5, 2.0, 2.1), chance)
    assert "a smaller training.lr" in line


def test_one_round_below_chance_or_too_few_rounds_are_no_reason():
    chance = {"rotation": math.log(4)}
    assert run_warnings(GOOD, records("rotation", 2.0, 2.0, 1.2, 2.0), chance) == []
    assert run_warnings(GOOD, records("rotation", 2.0, 2.0), chance) == []
    assert run_warnings(GOOD, records("cluster", 9.0, 9.0, 9.0), chance) == []


def test_the_round_of_the_early_warning():
    """A third of the rounds, five at least, and never the last, behind which the end says it."""
    assert [module.early_round(rounds) for rounds in (0, 3, 5, 6, 36)] == [None, None, None, 5, 12]


def test_clients_that_never_gave_a_result_are_named_with_the_last_reason():
    rounds = ([("3", "in round 0")], [("3", "OSError: a"), ("1", "late")], [("3", "KeyError: b")])
    (line,) = run_warnings(GOOD, failures(*rounds), {}, clients=("0", "1"))
    assert line == "client 3 gave no result, and failed in 2 of 2 rounds: KeyError: b"
    assert run_warnings(GOOD, failures(*rounds), {}, clients=("0", "1", "3")) == []


def test_of_many_clients_without_a_result_the_first_are_named():
    many = [(str(n), "KeyError: a") for n in range(10)]
    lines = run_warnings(GOOD, failures([], many), {})
    assert [line.partition(",")[0] for line in lines[:-1]] == [
        f"client {n} gave no result" for n in range(3)
    ]
    assert lines[-1] == "7 more clients gave no result either"
    twice = failures([], [("5", "first stage"), ("5", "second stage")])
    (line,) = run_warnings(GOOD, twice, {})
    assert line.endswith("failed in 1 of 1 round: second stage")
