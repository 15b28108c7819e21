"""The robust rules: by hand, beside slow oracles, and against clients that lie."""

import itertools

import numpy as np
import pytest
import torch

from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.federation.aggregations import Aggregation, TooFewResultsError, held_memory
from orchestra_flwr.federation.aggregations.geometric_median import GeometricMedian
from orchestra_flwr.federation.aggregations.krum import Krum
from orchestra_flwr.federation.aggregations.median import Median
from orchestra_flwr.federation.aggregations.multi_krum import MultiKrum, squared_distances
from orchestra_flwr.federation.aggregations.trimmed_mean import TrimmedMean
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.vector_blocks import BLOCK
from orchestra_flwr.training import build_learner

RULES = {
    "trimmed_mean": TrimmedMean,
    "median": Median,
    "geometric_median": GeometricMedian,
    "krum": Krum,
    "multi_krum": MultiKrum,
}


def combined(rule, states, weights=None, **options):
    aggregation: Aggregation = rule(rule.Settings(**options), len(states[0]))
    for state, weight in zip(states, weights or [1] * len(states), strict=True):
        aggregation.add(np.asarray(state, np.float32), weight)
    return aggregation.result()


def random_states(count, size, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)


def test_a_trimmed_mean_by_hand():
    states = [[1, -100], [2, 4], [3, 5], [4, 6], [1000, 7]]
    np.testing.assert_array_equal(combined(TrimmedMean, states), [3, 5])
    # A share that is less than one client leaves one out, but never all of them.
    np.testing.assert_array_equal(combined(TrimmedMean, states, trim=0.01), [3, 5])
    np.testing.assert_array_equal(combined(TrimmedMean, [[1], [3]], trim=0.4), [2])


def test_a_trimmed_share_that_is_whole_is_not_rounded_up():
    """In floats .28 * 25 is more than 7, and an eighth client at each end was left out."""
    states = [[number**2] for number in range(25)]
    expected = np.mean(states[7:-7])
    np.testing.assert_allclose(combined(TrimmedMean, states, trim=0.28), expected, rtol=1e-6)


def test_a_median_by_hand():
    np.testing.assert_array_equal(combined(Median, [[1, 9], [2, -9], [1e30, 3]]), [2, 3])
    np.testing.assert_array_equal(combined(Median, [[1], [2], [4], [1e30]]), [3])


def test_a_geometric_median_of_a_line_is_the_median():
    states = [[0.0], [1.0], [100.0]]
    assert combined(GeometricMedian, states, iterations=10_000) == pytest.approx(1.0, abs=1e-3)


def test_a_geometric_median_lies_below_all_points_around_it():
    """No step in any direction lowers the weighted sum of distances, which is convex."""
    states, weights = random_states(7, 3), [1, 2, 3, 1, 1, 5, 1]
    center = combined(GeometricMedian, states, weights, iterations=1000).astype(np.float64)

    def objective(point):
        return float(np.array(weights) @ np.linalg.norm(states - point, axis=1))

    for direction in itertools.product((-0.02, 0, 0.02), repeat=3):
        assert objective(center) <= objective(center + direction) + 1e-5


def test_krum_by_hand():
    """With one attacker of five, two neighbours count: those of 1 are closest, at 0 and 2.5."""
    states = [[0.0], [1.0], [2.5], [5.0], [1e9]]
    assert combined(Krum, states) == [1.0]
    assert combined(MultiKrum, states, chosen=2) == [(0.0 + 1.0) / 2]
    # More are never chosen: an attacker would be in the mean.
    for chosen in (None, 4, 5, 100):
        assert combined(MultiKrum, states, chosen=chosen) == [(0.0 + 1.0 + 2.5 + 5.0) / 4]


def test_distances_beside_a_slow_oracle():
    states = random_states(5, BLOCK + 3) + 2**20  # squares of these leave no digits for distances
    expected = [[float(np.square(a - b, dtype=np.float64).sum()) for b in states] for a in states]
    np.testing.assert_allclose(squared_distances(states), expected, rtol=1e-6)


@pytest.mark.parametrize("far", [1e6, 1e12, 1e30])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_minority_that_lies_as_it_likes_stays_without_effect(rule, far):
    """Two of nine send what is far away; the result stays among the honest states."""
    honest, lies = random_states(7, 50), np.full((2, 50), far, np.float32)
    options = {"attackers": 2} if issubclass(rule, MultiKrum) else {}
    options |= {"trim": 0.23} if rule is TrimmedMean else {}
    result = combined(rule, [*lies, *honest], **options)
    assert (result >= honest.min(0) - 1e-3).all() and (result <= honest.max(0) + 1e-3).all()
    plain = np.mean([*lies, *honest], axis=0)
    assert (plain > honest.max(0)).all()


@pytest.mark.parametrize("place", [0, 4, 9])
def test_a_state_that_is_very_far_away_does_not_hide_another_attacker(place):
    """Beside it the distances of all others would have no digits left."""
    honest = random_states(8, 50)
    states = np.insert(honest, [place and 8], np.float32(40), axis=0)
    states = np.insert(states, [place], np.float32(1e12), axis=0)
    result = combined(MultiKrum, states, attackers=2)
    np.testing.assert_allclose(result, honest.mean(0), atol=1e-6)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_order_of_clients_and_a_shift_of_all_make_no_difference(rule):
    states = random_states(9, 2 * BLOCK + 5)
    result = combined(rule, states)
    np.testing.assert_allclose(combined(rule, states[::-1]), result, atol=1e-6)
    np.testing.assert_allclose(combined(rule, states + 8), result + 8, atol=1e-5)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_equal_states_are_their_own_aggregate(rule):
    states = np.repeat(random_states(1, 100), 5, axis=0)
    np.testing.assert_allclose(combined(rule, states), states[0], atol=1e-7)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_was_added_is_a_copy(rule):
    aggregation = rule(rule.Settings(), 2)
    values = np.ones(2, np.float32)
    for _ in range(5):
        aggregation.add(values, 1)
    values[:] = 9
    np.testing.assert_array_equal(aggregation.result(), [1, 1])


def test_krum_needs_enough_results():
    with pytest.raises(TooFewResultsError, match="attackers=1 needs 5 good results, and 4 came"):
        combined(Krum, random_states(4, 3))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["privacy.clip=2", "federation.weighting=uniform"],
            "must be mean with privacy.clip=2, which bounds what a client adds to a sum",
        ),
        (["exchange=clusters"], "must be mean with exchange=clusters"),
        (["exchange=tree", "method=simclr"], "must be mean with exchange=tree"),
    ],
)
def test_what_a_robust_rule_cannot_be_combined_with(rule, overrides, line):
    with pytest.raises(ConfigError, match=f"^aggregation={rule}: {line}"):
        load_config([f"aggregation={rule}", *overrides])


def test_krum_is_refused_for_cohorts_that_are_too_small():
    with pytest.raises(ConfigError, match=r"^aggregation.attackers=2: needs 7 clients in a round"):
        load_config(["aggregation=krum", "aggregation.attackers=2", "federation.clients=6"])


def test_memory_is_said_and_checked_before_the_start(monkeypatch):
    config = load_config(["aggregation=median", "federation.participation=0.5"])
    assert held_memory(config, 10**6, 10) == (
        "aggregation=median holds the models of 5 clients at once, 20.0 MB"
    )
    monkeypatch.setattr("orchestra_flwr.federation.aggregations.usable_memory", lambda: 25 * 10**8)
    with pytest.raises(FederationError, match="machine has 2.5 GB: lower federation.participation"):
        held_memory(config, 10**15, 10)
    assert held_memory(load_config([]), 10**15, 10) is None


UPDATES = """
import numpy as np
from orchestra_flwr.federation.aggregations import RobustAggregation

class Halved(RobustAggregation):
    def combine(self, states, weights):
        mean = sum(w * state for w, state in zip(weights / weights.sum(), states))  # float64
        return (self.sent + (mean - self.sent) / 2)[: self.size - CUT]
"""


def test_a_rule_may_work_on_updates(tiny, tmp_path, federate, user_package):
    """With one client: half of the way from what it was sent to what it returned."""
    user_package({"aggregations/halved.py": UPDATES.replace("CUT", "0")})
    states = []
    for number, line in enumerate(([], ["aggregation=halved"])):
        config = tiny(
            "plugins=[my_package]", "method=simclr", "federation.clients=1",
            "federation.rounds=1", *line, f"run_dir={tmp_path / str(number)}",
        )  # fmt: skip
        states.append(federate(config, evaluate=False).state)
    before = build_learner(config, config.data.channels).trained()
    mean, halved = states
    for name, start in before.items():
        assert (mean[name] - start).norm() > 0
        torch.testing.assert_close(halved[name], (start + mean[name]) / 2, atol=1e-6, rtol=0)


def test_a_rule_that_returns_another_size_is_named(tiny, tmp_path, federate, user_package):
    """Also if it is found out in a round, after its trial."""
    user_package({"aggregations/halved.py": UPDATES.replace("CUT", "1")})
    config = tiny(
        "plugins=[my_package]", "method=simclr", "aggregation=halved", f"run_dir={tmp_path / 'r'}"
    )
    line = r"^aggregation: Halved\.combine must return an array of \d+ values, and"
    with pytest.raises(ConfigError, match=line):
        federate(config, evaluate=False)


def test_a_round_with_too_few_results_for_a_rule_ends_the_run(tiny, tmp_path, federate):
    """Five clients are enough for Krum; one sends what is not plausible and is dropped."""
    config = tiny(
        "aggregation=krum", "federation.clients=5", "federation.participation=1",
        "attack=random_weights", "attack.scale=1e6", f"run_dir={tmp_path / 'r'}",
    )  # fmt: skip
    line = r"^round 1: aggregation.attackers=1 needs 5 good results, and 4 came"
    with pytest.raises(FederationError, match=line):
        federate(config, evaluate=False)


def test_a_run_that_needs_more_memory_than_there_is_does_not_start(
    tiny, tmp_path, federate, monkeypatch
):
    monkeypatch.setattr("orchestra_flwr.federation.aggregations.usable_memory", lambda: 1)
    config = tiny("aggregation=median", f"run_dir={tmp_path / 'r'}")
    with pytest.raises(FederationError, match=r"^aggregation=median holds the models of 4 clients"):
        federate(config, evaluate=False)
