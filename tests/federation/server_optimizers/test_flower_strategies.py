"""Where ours equal Flower's own strategies, which are really called, and where they do not.

One client answers, so that Flower's mean is what that client sent. Flower computes in float32, so
"equal" is to a few units in the last place.
"""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi
from flwr.supercore.task_identity import TaskIdentity

from orchestra_flwr.config.choices import ServerOptimizerConfig

SIZE = 200
ONE_CLIENT = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
ADAPTIVE = {"eta": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}
OURS = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3}


@pytest.fixture(autouse=True)
def _messages_can_be_made(monkeypatch):
    """Outside of Flower's runtime nobody says which task, run and node this is."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class OneNode:
    def get_node_ids(self):
        return [7]


def record(values):
    return ArrayRecord({"weights": Array(values)})


def flower_round(strategy, number, before, after):
    """What the strategy makes of a round in which the only client sends `after`."""
    (message,) = strategy.configure_train(number, record(before), ConfigRecord(), OneNode())
    content = RecordDict({"arrays": record(after), "metrics": MetricRecord({"num-examples": 5})})
    arrays, _ = strategy.aggregate_train(number, [Message(content, reply_to=message)])
    return arrays["weights"].numpy()


def flower_state(strategy, state, changes, first=1):
    for number, change in enumerate(changes, first):
        state = flower_round(strategy, number, state, state + change)
        state = state.astype(np.float32)  # Flower's Adam returns float64
    return state


def our_state(name, state, changes, **options):
    optimizer = ServerOptimizerConfig(name=name, **options).build(len(state))
    for change in changes:
        state = optimizer.step(state, state + change, [slice(0, len(state))])
    return state


@pytest.fixture
def state():
    return np.random.default_rng(0).normal(size=SIZE).astype(np.float32)


@pytest.fixture
def changes():
    """Five rounds, of updates from far below epsilon / sqrt(1 - beta2) = .01 to above it."""
    rng = np.random.default_rng(1)
    scale = np.geomspace(1e-3, 1, SIZE)
    return [(scale * rng.normal(size=SIZE)).astype(np.float32) for _ in range(5)]


def from_epsilon_squared(strategy):
    """Starts v where Algorithm 2 does: Flower makes zeros of it only if there is none."""
    strategy.v_t = {"weights": np.full(SIZE, strategy.tau**2, np.float32)}
    return strategy


def test_momentum_is_fedavgm(state, changes):
    flower = FedAvgM(**ONE_CLIENT, server_learning_rate=0.5, server_momentum=0.9)
    np.testing.assert_allclose(
        our_state("momentum", state, changes, lr=0.5, momentum=0.9),
        flower_state(flower, state, changes),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("name", "strategy", "options"),
    [
        ("yogi", FedYogi(**ONE_CLIENT, **ADAPTIVE), OURS),
        ("adagrad", FedAdagrad(**ONE_CLIENT, eta=0.1, tau=1e-3), {"lr": 0.1, "epsilon": 1e-3}),
    ],
)
def test_yogi_and_adagrad_are_flowers_where_those_start_from_epsilon_squared(
    name, strategy, options, state, changes
):
    flower = flower_state(from_epsilon_squared(strategy), state, changes)
    np.testing.assert_allclose(
        our_state(name, state, changes, **options), flower, rtol=1e-5, atol=1e-6
    )


def test_adam_is_fedadam_where_that_starts_from_epsilon_squared_and_corrects_nothing(
    state, changes
):
    """In round 10,000 Flower's correction of the bias is 1."""
    strategy = from_epsilon_squared(FedAdam(**ONE_CLIENT, **ADAPTIVE))
    flower = flower_state(strategy, state, changes, first=10_000)
    np.testing.assert_allclose(
        our_state("adam", state, changes, **OURS), flower, rtol=1e-5, atol=1e-6
    )


def first_moves(name, strategy, update, **options):
    """How far one value moves in the first round: ours, and Flower's."""
    zero, change = np.zeros(1, np.float32), np.full(1, update, np.float32)
    ours = our_state(name, zero, [change], **options)
    return float(ours[0]), float(flower_state(strategy, zero, [change])[0])


@pytest.mark.parametrize(
    ("name", "strategy", "options", "update", "ours", "flowers"),
    [
        # v = epsilon^2 + (1 - beta2) Delta^2, Flower's without the first term; m = .1 Delta.
        ("yogi", FedYogi, OURS, 1.0, 0.00990, 0.00990),
        ("yogi", FedYogi, OURS, 0.01, 0.00414, 0.00500),
        ("yogi", FedYogi, OURS, 0.001, 0.0005, 0.00091),
        # v = epsilon^2 + Delta^2, Flower's without the first term; m = Delta.
        ("adagrad", FedAdagrad, {"lr": 0.01, "epsilon": 1e-3}, 1.0, 0.00999, 0.00999),
        ("adagrad", FedAdagrad, {"lr": 0.01, "epsilon": 1e-3}, 0.01, 0.00905, 0.00909),
        ("adagrad", FedAdagrad, {"lr": 0.01, "epsilon": 1e-3}, 0.001, 0.00414, 0.00500),
        # Flower's FedAdam times sqrt(1 - beta2^2) / (1 - beta1^2) = .742 as well.
        ("adam", FedAdam, OURS, 1.0, 0.00990, 0.00735),
        ("adam", FedAdam, OURS, 0.01, 0.00415, 0.00371),
        ("adam", FedAdam, OURS, 0.001, 0.0005, 0.00067),
    ],
)
def test_the_first_step_differs_so_much_by_default(name, strategy, options, update, ours, flowers):
    keys = {"lr": "eta", "beta1": "beta_1", "beta2": "beta_2", "epsilon": "tau"}
    theirs = strategy(**ONE_CLIENT, **{keys[key]: value for key, value in options.items()})
    moves = first_moves(name, theirs, update, **options)
    assert moves == pytest.approx((ours, flowers), rel=0.01)


def test_flowers_adam_counts_one_round_too_many():
    """The first step of Adam is lr, whatever the betas; Flower's is .74 of it."""
    options = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    strategy = FedAdam(**ONE_CLIENT, eta=0.001, beta_1=0.9, beta_2=0.999, tau=1e-8)
    ours, flowers = first_moves("adam", strategy, 1.0, bias_correction=True, **options)
    assert ours == pytest.approx(0.001, rel=1e-6)
    assert flowers / ours == pytest.approx(0.744, abs=1e-3)


@pytest.mark.slow
def test_the_difference_wears_off(state):
    """From equal states, after 1,000 rounds of like updates, one step differs by under 1 %."""
    rng = np.random.default_rng(2)
    strategy, zero = FedAdam(**ONE_CLIENT, **ADAPTIVE), np.zeros(SIZE, np.float32)
    optimizer = ServerOptimizerConfig(name="adam", **OURS).build(SIZE)
    for number in range(1, 1001):
        change = (0.05 * rng.normal(size=SIZE)).astype(np.float32)
        flower = flower_round(strategy, number, zero, change)
        ours = optimizer.step(zero, change.copy(), [slice(0, SIZE)])
    np.testing.assert_allclose(ours, flower, rtol=0.01)
