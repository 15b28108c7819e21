"""What every server optimizer does, held against rounds worked by hand and slow loops."""

import math
import tracemalloc

import numpy as np
import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import ServerOptimizerConfig
from orchestra_flwr.federation import vector_blocks

NAMES = ["adagrad", "adam", "mean", "momentum", "yogi"]
REMEMBERING = [name for name in NAMES if name != "mean"]


def build(name, size, **options):
    return ServerOptimizerConfig(name=name, **options).build(size)


def everything(size):
    return [slice(0, size)]


def rounds_of(size, count=4, seed=0, scale=0.05):
    """A state and the change of each round."""
    rng = np.random.default_rng(seed)
    state = rng.normal(size=size).astype(np.float32)
    return state, [(scale * rng.normal(size=size)).astype(np.float32) for _ in range(count)]


def run(optimizer, state, changes, trained=None):
    trained = everything(optimizer.size) if trained is None else trained
    for change in changes:
        state = optimizer.step(state, state + change, trained)
    return state


def test_these_are_found():
    assert sorted(ServerOptimizerConfig.room.found()) == NAMES
    assert ServerOptimizerConfig().name == "mean"


def by_hand(second_moments):
    """lr .1, beta1 .5, epsilon .5; m is .5 after Delta 1 and still after Delta .5."""
    return [0.1 * 0.5 / (math.sqrt(v) + 0.5) for v in second_moments]


@pytest.mark.parametrize(
    ("name", "options", "changes"),
    [
        ("mean", {}, [1.0, 0.5]),
        # v = 1, then .5 * 1 + .5
        ("momentum", {"lr": 0.1, "momentum": 0.5}, [0.1, 0.1]),
        # v = .25 before; .5 * .25 + .5 * 1; .5 * .625 + .5 * .25
        ("adam", {"lr": 0.1, "beta1": 0.5, "beta2": 0.5, "epsilon": 0.5}, by_hand([0.625, 0.4375])),
        # .25 + .5 * 1; .75 - .5 * .25
        ("yogi", {"lr": 0.1, "beta1": 0.5, "beta2": 0.5, "epsilon": 0.5}, by_hand([0.75, 0.625])),
        # .25 + 1; 1.25 + .25
        ("adagrad", {"lr": 0.1, "beta1": 0.5, "epsilon": 0.5}, by_hand([1.25, 1.5])),
    ],
)
def test_two_rounds_worked_by_hand(name, options, changes):
    """One value, 2; the clients' mean is 1 above it, in the second round 1/2."""
    optimizer, state = build(name, 1, **options), np.array([2], np.float32)
    for update, change in zip([1.0, 0.5], changes, strict=True):
        following = optimizer.step(state, state + np.float32(update), everything(1))
        assert following[0] - state[0] == pytest.approx(change, abs=2e-7)  # of float32 near 2
        state = following


def test_bias_corrected_adam_worked_by_hand():
    """First step: m / (1 - beta1) is Delta and the root of v / (1 - beta2) is |Delta|."""
    options = {"lr": 0.001, "beta2": 0.999, "epsilon": 1e-8, "bias_correction": True}
    after = build("adam", 3, **options).step(
        np.zeros(3, np.float32), np.array([0.3, -1e-4, 0], np.float32), everything(3)
    )
    np.testing.assert_allclose(after, [0.001, -0.001 / (1 + 1e-4), 0], rtol=1e-6)


def oracle(name, options, state, changes):
    """Algorithm 2 in Python's own numbers, value by value."""
    lr, b1, eps = options["lr"], options.get("beta1", 0.0), options.get("epsilon", 0.0)
    b2, corrects = options.get("beta2", 0.0), options.get("bias_correction", False)
    result = state.copy()
    for i in range(len(state)):
        x, m, v = state[i], 0.0, 0.0 if corrects else float(np.float32(eps**2))
        for t, change in enumerate(changes, 1):
            d = float(np.float32(x + change[i])) - float(x)
            if name == "momentum":
                m = options["momentum"] * m + d
                x = np.float32(float(x) + lr * m)
            else:
                m = b1 * m + (1 - b1) * d
                if name == "adagrad":
                    v = v + d * d
                elif name == "adam":
                    v = b2 * v + (1 - b2) * (d * d)
                else:
                    v = v - (1 - b2) * (d * d) * float(np.sign(v - d * d))
                c1, c2 = (1 - b1**t, 1 - b2**t) if corrects else (1.0, 1.0)
                x = np.float32(float(x) + lr * (m / c1) / (math.sqrt(v / c2) + eps))
            m, v = float(np.float32(m)), float(np.float32(v))
        result[i] = x
    return result


OPTIONS = [
    ("momentum", {"lr": 0.7, "momentum": 0.9}),
    ("adam", {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-3}),
    ("adam", {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-5, "bias_correction": True}),
    ("yogi", {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 0.05}),
    ("adagrad", {"lr": 0.1, "beta1": 0.3, "epsilon": 1e-3}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_equals_a_slow_loop_in_all_bits(name, options):
    state, changes = rounds_of(101)
    after = run(build(name, 101, **options), state, changes)
    np.testing.assert_array_equal(after, oracle(name, options, state, changes))


def test_bias_corrected_adam_is_torchs():
    state, changes = rounds_of(50, count=10)
    parameter = torch.nn.Parameter(torch.from_numpy(state).double())
    reference = torch.optim.Adam([parameter], lr=1e-3)  # betas .9 and .999, eps 1e-8
    optimizer = build("adam", 50, lr=1e-3, beta2=0.999, epsilon=1e-8, bias_correction=True)
    for change in changes:
        before = state
        state = optimizer.step(before, before + change, everything(50))
        parameter.grad = torch.from_numpy(before.astype(float) - (before + change).astype(float))
        reference.step()
    np.testing.assert_allclose(state, parameter.detach().numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_state_before_is_not_changed(name):
    state, changes = rounds_of(10)
    state.flags.writeable = False
    before = state.copy()
    run(build(name, 10), state, changes[:1])
    np.testing.assert_array_equal(state, before)


def test_the_mean_itself_is_returned():
    state, changes = rounds_of(10)
    mean, optimizer = state + changes[0], build("mean", 10)
    assert optimizer.step(np.empty(0, np.float32), mean, everything(10)) is mean
    assert not optimizer.needs_before
    np.testing.assert_array_equal(mean, state + changes[0])
    assert optimizer.moments() == {}


def test_momentum_0_with_lr_1_is_the_mean():
    state, changes = rounds_of(1000)
    after = run(build("momentum", 1000, lr=1, momentum=0), state, changes)
    np.testing.assert_array_equal(after, run(build("mean", 1000), state, changes))


@pytest.mark.parametrize("name", REMEMBERING)
def test_what_is_not_trained_takes_the_mean(name):
    """As BatchNorm statistics and moving averages do, in the same bits; the rest is as without."""
    state, changes = rounds_of(30)
    trained = [slice(20, 30), slice(3, 12)]
    after = run(build(name, 30), state, changes, trained)
    mean = run(build("mean", 30), state, changes)
    alone = run(build(name, 30), state, changes)
    is_trained = np.zeros(30, bool)
    for span in trained:
        is_trained[span] = True
    np.testing.assert_array_equal(after[~is_trained], mean[~is_trained])
    np.testing.assert_array_equal(after[is_trained], alone[is_trained])
    assert (alone != mean).all()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_trained_and_nothing_shared(name):
    state, changes = rounds_of(5)
    np.testing.assert_array_equal(
        run(build(name, 5), state, changes, []), run(build("mean", 5), state, changes)
    )
    assert run(build(name, 0), np.zeros(0, np.float32), [0.0], []).shape == (0,)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_and_the_order_of_slices_change_no_bit(monkeypatch, name, options, block):
    state, changes = rounds_of(100)
    whole = run(build(name, 100, **options), state, changes)
    monkeypatch.setattr(vector_blocks, "BLOCK", block)
    slices = [slice(60, 100), slice(0, 1), slice(1, 60)]
    np.testing.assert_array_equal(run(build(name, 100, **options), state, changes, slices), whole)


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_value_that_no_client_moved_stays_until_it_was_moved(name):
    optimizer, state = build(name, 2), np.array([0.1, 1], np.float32)
    for _ in range(3):
        following = optimizer.step(state, state + np.float32([0, 0.1]), everything(2))
        assert following[0] == state[0] and following[1] > state[1]
        state = following


@pytest.mark.parametrize("name", ["adagrad", "adam", "yogi"])
def test_the_scale_of_updates_makes_no_difference_where_they_are_large_beside_epsilon(name):
    changes = [np.float32([1, -2, 0.5]), np.float32([-1, -2, 3])]
    state = np.zeros(3, np.float32)
    once, scaled = (
        run(build(name, 3, epsilon=1e-12), state, [scale * c for c in changes[:1]])
        for scale in (1, 64)
    )
    np.testing.assert_allclose(once, scaled, rtol=1e-6)
    np.testing.assert_array_equal(np.sign(once), np.sign(changes[0]))


@pytest.mark.parametrize(("name", "options"), [*OPTIONS, ("mean", {})])
def test_killed_and_resumed_ends_in_the_same_bits(name, options):
    state, changes = rounds_of(200, count=6)
    whole = run(build(name, 200, **options), state, changes)
    first = build(name, 200, **options)
    middle = run(first, state, changes[:3])
    saved = {n: array.copy() for n, array in first.moments().items()}
    run(first, middle, changes[3:])  # what went on before it was killed leaves nothing behind
    second = build(name, 200, **options)
    second.load_moments(saved)
    np.testing.assert_array_equal(run(second, middle, changes[3:]), whole)
    for n, array in second.moments().items():
        np.testing.assert_array_equal(array, first.moments()[n])
    if saved:  # and without its moments it does not
        assert (run(build(name, 200, **options), middle, changes[3:]) != whole).any()


def test_moments_are_what_a_checkpoint_can_hold():
    moments = build("adam", 5).moments()
    assert {n: (a.dtype, a.shape) for n, a in moments.items()} == {
        "first": (np.float32, (5,)),
        "second": (np.float32, (5,)),
        "steps": (np.int64, (1,)),
    }
    assert list(build("momentum", 5).moments()) == ["momentum", "steps"]


def test_loading_copies():
    one, other = build("momentum", 3), build("momentum", 3)
    other.load_moments(one.moments())
    run(one, *rounds_of(3))
    assert other.steps == 0 and not other.moments()["momentum"].any()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("adam", {"lr": 0}, "server_optimizer.lr=0"),
        ("adam", {"beta2": 1}, "server_optimizer.beta2=1"),
        ("yogi", {"epsilon": 0}, "server_optimizer.epsilon=0"),
        ("momentum", {"beta1": 0.5}, "server_optimizer.beta1: unknown option"),
        ("mean", {"lr": 1}, "unknown option of server_optimizer=mean, which has no options"),
        ("adamw", {}, "must be one of adagrad, adam, mean, momentum, yogi"),
    ],
)
def test_wrong_options_are_refused_in_one_line(name, options, says):
    with pytest.raises(ConfigError, match=says) as refusal:
        build(name, 3, **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_takes_no_memory_beside_the_moments(name):
    """A few blocks of float64, of a model of 64 blocks."""
    size = 64 * vector_blocks.BLOCK
    before, mean = np.zeros(size, np.float32), np.ones(size, np.float32)
    optimizer = build(name, size)
    tracemalloc.start()
    try:
        optimizer.step(before, mean, everything(size))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.4 * mean.nbytes  # 12 blocks of float64
