"""Integers of updates: their sum is that of the updates, without bias, and never too large."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra_flwr.federation.messages.schema import Schema, Schemas
from orchestra_flwr.federation.secure_aggregation.sum_codec import Numbers, RingCodec, Start
from orchestra_flwr.seeding import ClientSeed

ENTRIES = (("w", (40, 5)), ("b", (7,)), ("n.running_var", (7,)))
SIZE = 214


def codec(wire="int8"):
    return RingCodec(Schemas(Schema(ENTRIES), Schema(()), wire))


def numbers(weight=1.0, images=10, **metrics):
    return Numbers(weight, images, 0, metrics)


def added(parts):
    return [np.sum(arrays, axis=0, dtype=arrays[0].dtype) for arrays in zip(*parts, strict=True)]


def encoded(made, states, received, weights=None, clients=None, metrics=()):
    weights = weights or [1.0] * len(states)
    metrics = metrics or [{}] * len(states)
    return added([
        made.encode(state, Start(received, clients or len(states)), numbers(weight, **measures),
                    ClientSeed(0, 1, str(i)))
        for i, (state, weight, measures) in enumerate(zip(states, weights, metrics, strict=True))
    ])  # fmt: skip


@pytest.mark.parametrize(("wire", "layout"), [
    ("float32", ((32, 214), (64, 67))), ("int8", ((16, 200), (32, 14), (64, 67))),
    ("int4", ((16, 200), (32, 14), (64, 67))),
])  # fmt: skip
def test_matrices_have_half_the_bits_where_the_wire_rounds(wire, layout):
    assert codec(wire).layout == layout


@settings(max_examples=30, deadline=None)
@given(clients=st.integers(3, 1000), seed=st.integers(0, 100), size=st.floats(1e-6, 1e6))
def test_no_sum_overflows_whatever_is_sent(clients, seed, size):
    """All clients at the end of the range, and beyond it: the mean is that end."""
    received = np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)
    made = codec()
    far, start = received + np.float32(size) * np.float32(1e9), Start(received, clients)
    one = made.encode(far, start, numbers(), ClientSeed(0, 1, "a"))
    total = [part * part.dtype.type(clients) for part in one]
    mean, sums = made.decode(total, start, clients, ())
    assert np.all(mean > received) and sums.cut == sums.weight == clients
    largest = np.abs(received[:200]).max()
    assert np.allclose(mean[:200] - received[:200], largest, rtol=1e-4)


def test_the_mean_is_that_of_the_weighted_updates():
    rng = np.random.default_rng(0)
    received = rng.normal(size=SIZE).astype(np.float32)
    states = [received + rng.normal(size=SIZE).astype(np.float32) * 0.1 for _ in range(5)]
    weights = [0.2, 1.0, 0.5, 0.9, 0.01]
    expected = np.average(states, axis=0, weights=weights)
    for wire, apart in (("float32", 1e-5), ("int8", 2e-3)):
        made = codec(wire)
        metrics = [{"loss/a": i, "seconds": 2.0} for i in range(5)]
        total = encoded(made, states, received, weights, metrics=metrics)
        mean, sums = made.decode(total, Start(received, 5), 5, ["seconds", "loss/a"])
        assert np.abs(mean - expected).max() < apart and mean.dtype == np.float32
        assert sums.weight == pytest.approx(sum(weights)) and sums.images == 50 and not sums.cut
        assert sums.metrics["loss/a"] / sums.weight == pytest.approx(
            np.average(range(5), weights=weights), abs=1e-5
        )
        assert sums.metrics["seconds"] / sums.weight == pytest.approx(2)


def test_rounding_has_no_bias():
    """A thousandth of a level, a thousand times."""
    received = np.ones(SIZE, np.float32)
    made, clients = codec(), 1000
    step = 1 / ((2**15 - 1) // clients)
    states = [received + np.float32(step / 4)] * clients
    total = encoded(made, states, received)
    mean, _ = made.decode(total, Start(received, clients), clients, ())
    assert np.abs((mean - received)[:200].mean() / (step / 4) - 1) < 0.02


def test_one_that_cuts_is_counted():
    received = np.ones(SIZE, np.float32)
    far = received + np.float32(3)
    total = encoded(codec(), [received, far, received], received)
    assert codec().decode(total, Start(received, 3), 3, ())[1].cut == 1


@pytest.mark.parametrize("what", ["state", "metric", "many"])
def test_what_is_not_finite_is_not_sent(what):
    received = np.zeros(SIZE, np.float32)
    state = received + np.float32(np.nan if what == "state" else 0)
    metrics = (
        {"m": np.inf} if what == "metric" else {f"m{i}": 0.0 for i in range(65 * (what == "many"))}
    )
    with pytest.raises(ValueError, match="the update of w is not finite|measure is not|65 metrics"):
        codec().encode(state, Start(received, 3), numbers(**metrics), ClientSeed(0, 1, "a"))


@pytest.mark.parametrize("weights", [[0, 0, 0], [1, 1, 1.5], [1, -1, -0.5]])
def test_a_sum_whose_weights_cannot_be_is_none(weights):
    """A client that sends another weight than it has stalls the model, or turns it around."""
    received = np.zeros(SIZE, np.float32)
    total = encoded(codec(), [received] * 3, received, weights)
    with pytest.raises(ValueError, match="weights of all clients together are .*, they must be"):
        codec().decode(total, Start(received, 3), 3, ())


def test_where_all_count_alike_no_weight_that_is_sent_is_read():
    received = np.ones(SIZE, np.float32)
    state = received + np.float32(0.1)
    made = RingCodec(Schemas(Schema(ENTRIES), Schema(()), "int8"), uniform=True)
    honest = encoded(made, [state] * 3, received)
    lying = [*honest[:-1], honest[-1] + np.uint64(10**6 * 2**24)]
    means = [made.decode(total, Start(received, 3), 3, ())[0] for total in (honest, lying)]
    assert np.array_equal(*means) and np.allclose(means[0], state, atol=1e-3)
