import math

import numpy as np
import pytest
import torch

from orchestra_flwr.federation.messages.codec import (
    BLOCK,
    CHUNK,
    INT4_BLOCK,
    SMALL,
    BlockCodec,
    Codec,
)

MAX = np.finfo(np.float32).max
TINY = np.finfo(np.float32).tiny
KINDS = ("int8", "float16", "int4")
STEPS = {"int8": 1 / 127, "int4": (1 + 2.0**-7) / 6}  # of a block's largest magnitude, at most


def matrix(size):
    """The entries of a codec whose values are all one tensor's."""
    return [("w", (size, 1))]


def there_and_back(values, entries=None, kind="int8", generator=None):
    flat = np.asarray(values, np.float32)
    codec = BlockCodec(entries or matrix(len(flat)), kind)
    return codec.decode("x", codec.encode("x", flat, generator))


def drawn(size, seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).normal(size=size)).astype(np.float32)


def blocks(size, block=BLOCK):
    """The slices of the blocks of one tensor."""
    return [slice(start, min(start + block, size)) for start in range(0, size, block)]


def by_hand(values):
    """A slow oracle of int8: each block by itself, in double precision, to the nearest."""
    decoded = np.empty(len(values))
    for block in blocks(len(values)):
        scale = np.abs(values[block]).max() / np.float64(127)
        decoded[block] = np.rint(values[block] / scale) * scale
    return decoded


@pytest.mark.parametrize("size", [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK + 3 * BLOCK + 5])
def test_int8_is_rounding_by_hand(size):
    values = drawn(size)
    steps = np.abs(values).max() / 127
    # A value half-way between two codes may fall either way in single precision.
    np.testing.assert_allclose(there_and_back(values), by_hand(values), atol=1.01 * steps)
    assert np.mean(np.abs(there_and_back(values) - by_hand(values)) > 1e-6) < 1e-3


@pytest.mark.parametrize(("kind", "block"), [("int8", BLOCK), ("int4", INT4_BLOCK)])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e30])
@pytest.mark.parametrize("random", [False, True])
def test_a_value_is_off_by_half_a_step_or_one_at_random(kind, block, scale, random, generator):
    values = drawn(SMALL + 3 * block + 100, scale=scale)
    decoded = there_and_back(values, kind=kind, generator=generator if random else None)
    for span in blocks(len(values), block):
        step = np.abs(values[span]).max() * STEPS[kind]
        assert np.abs(decoded[span] - values[span]).max() <= (1.0 if random else 0.5001) * step


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_float16_value_keeps_eleven_bits_whatever_its_range(scale):
    values = drawn(2 * BLOCK + 9, scale=scale)
    error = np.abs(there_and_back(values, kind="float16") - values)
    bound = np.maximum(2.0**-11 * np.abs(values), 2.0**-25 * np.abs(values).max())
    assert (error <= 1.001 * bound).all()


@pytest.mark.parametrize("kind", STEPS)
def test_random_rounding_has_the_right_mean(kind):
    """A hundred thousand roundings: their mean is the value, as nearest rounding's is not."""
    values = np.array([1, 0.3, -0.77, 1e-3, -1e-4, 0], np.float32)
    many, step = 100_000, STEPS[kind]
    generator = torch.Generator().manual_seed(3)
    tiled = np.tile(values, many)
    decoded = there_and_back(tiled, kind=kind, generator=generator).reshape(many, -1)
    deviation = step / 2 / math.sqrt(many)  # at most half a step for one of them
    np.testing.assert_allclose(decoded.mean(0, np.float64), values, atol=5 * deviation)
    biased = there_and_back(tiled, kind=kind)[: len(values)]
    assert np.abs(biased - values).max() > 50 * deviation


def test_what_was_lost_is_added_the_next_time():
    """Error feedback: of a value that is sent again and again the mean converges as 1 / times."""
    values, codec = drawn(SMALL + 1000), BlockCodec(matrix(SMALL + 1000), "int4")
    residual, total, half = np.zeros_like(values), np.zeros(len(values)), 0.51 * STEPS["int4"]
    for times in range(1, 41):
        sent = values + residual
        decoded = codec.decode("x", codec.encode("x", sent))
        residual = sent - decoded
        total += decoded
        if times in (1, 10, 40):
            for block in blocks(len(values), INT4_BLOCK):
                largest = np.abs(values[block]).max()
                # By half a step it makes the largest value larger, and so the step; no more.
                assert np.abs(residual[block]).max() <= half / (1 - half) * largest
                error = np.abs(total[block] / times - values[block]).max()
                assert error <= half / (1 - half) * largest / times + 1e-5
    assert np.abs(there_and_back(values, kind="int4") - values).max() > 10 * error


def test_rounding_follows_from_the_generator_alone():
    values = drawn(2 * BLOCK)

    def rounded(seed):
        return there_and_back(values, generator=torch.Generator().manual_seed(seed))

    np.testing.assert_array_equal(rounded(1), rounded(1))
    assert (rounded(1) != rounded(2)).any()
    np.testing.assert_array_equal(there_and_back(values), there_and_back(values))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("value", [0.0, 1.0, -3.7, 1e-20, 1e20, TINY * 127, MAX, -MAX])
def test_constant_tensors_come_back(value, kind, random, generator):
    generator = generator if random else None
    decoded = there_and_back(np.full(SMALL + 5, value), kind=kind, generator=generator)
    # The largest magnitude has the code 127, and just below it a rounding by one quotient's error.
    # In int4 the scale is rounded, too.
    exact = {"int4": 2.0**-7}.get(kind, 1e-6)
    away = {"int4": 0.2}.get(kind, 1e-2)
    np.testing.assert_allclose(decoded, np.float32(value), rtol=away if random else exact)
    assert np.isfinite(decoded).all() and (value != 0 or not decoded.any())


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_zeros_among_others(kind, generator):
    values = drawn(2 * SMALL)
    values[::2] = 0
    assert not there_and_back(values, kind=kind, generator=generator)[::2].any()


@pytest.mark.parametrize("kind", KINDS)
def test_denormals_become_zeros_and_never_anything_large(kind):
    values = np.array([1e-45, -1e-40, 5e-39, 0], np.float32)
    values = np.tile(values, 1 + SMALL // 4)
    assert not there_and_back(values, kind=kind).any()
    mixed = np.concatenate([values, [1.0]])
    decoded = there_and_back(mixed, kind=kind)
    assert not decoded[:-1].any() and decoded[-1] == pytest.approx(1, rel=2.0**-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["w", "b", "n.running_var"])
def test_what_is_not_finite_is_refused_wherever_it_is(kind, bad, name):
    entries = [("w", (100, 200)), ("b", (5,)), ("n.running_var", (5,))]
    at = {"w": 17000, "b": 20003, "n.running_var": 20009}
    values = drawn(20010)
    values[at[name]] = bad
    with pytest.raises(ValueError, match="not finite cannot be encoded"):
        BlockCodec(entries, kind).encode("x", values)


def test_tensors_share_no_scale():
    """A kernel of small values beside large ones, and vectors, keep their own precision."""
    entries = [("a", (10, 10)), ("b", (10, 10)), ("n.weight", (10,)), ("n.running_mean", (10,))]
    values = np.concatenate([drawn(100), drawn(100, 1, 1e-6), drawn(10, 2), drawn(10, 3, 1e-6)])
    decoded = there_and_back(values, entries)
    for part, bound in ((slice(100, 200), 1 / 127), (slice(210, 220), 2**-11)):
        error = np.abs(decoded[part] - values[part]).max()
        assert error <= bound * np.abs(values[part]).max()


def test_variances_travel_as_they_are():
    """One that falls from 1 to 1e-5 is what it became, not what rounding leaves of the change."""
    entries = [("w", (3, 2)), ("n.running_var", (4,))]
    before = np.concatenate([drawn(6), np.float32([1, 1, 1, 300])])
    after = np.concatenate([drawn(6, 1), np.float32([1e-5, 2e-4, 1.5, 1e-3])])
    again = before + there_and_back(after - before, entries)
    np.testing.assert_allclose(again[6:], after[6:], rtol=0, atol=300 * 2.0**-23)
    np.testing.assert_allclose(again[6:9], after[6:9], rtol=0, atol=2.0**-23)


def test_bytes_of_int4_by_the_formula():
    """Eight bytes for seventeen values of a block, two for its scale; int8 for small matrices."""
    shapes = {"w": (64, 64, 3, 3), "v": (5000, 1), "b": (64,), "n.running_var": (64,)}
    codec = BlockCodec(list(shapes.items()), "int4")
    arrays = codec.encode("x", drawn(sum(math.prod(shape) for shape in shapes.values())))
    full, rest = divmod(36864, INT4_BLOCK)
    words = full * INT4_BLOCK // 17 + math.ceil(rest / 17)
    expected = 8 * words + 2 * (full + 1) + 5000 + 4 * 2 + 2 * 64 + 4 + 4 * 64
    assert sum(a.nbytes for a in arrays.values()) == expected
    assert {n: (a.dtype, len(a)) for n, a in arrays.items()} == codec.form("x")


def test_a_small_matrix_travels_in_int8_instead_of_int4():
    assert set(BlockCodec(matrix(SMALL), "int4").form("x")) == {"x.int8", "x.scales"}
    assert set(BlockCodec(matrix(SMALL + 1), "int4").form("x")) == {"x.int4", "x.int4_scales"}


@pytest.mark.parametrize("kind", ["int8", "float16"])
def test_bytes_by_the_formula(kind):
    """A byte or two a value, two for vectors, four for variances, and four for each scale."""
    shapes = {"w": (64, 64, 3, 3), "b": (64,), "n.running_var": (64,), "v": (5000, 1), "u": (3,)}
    codec = BlockCodec(list(shapes.items()), kind)
    count = sum(math.prod(shape) for shape in shapes.values())
    arrays = codec.encode("x", drawn(count))
    width = {"int8": 1, "float16": 2}[kind]
    scales = 9 + 1 + 2 + 1  # of w's 36864 values, b, v's 5000 and u; variances have none
    expected = width * (36864 + 5000) + 2 * (64 + 3) + 4 * 64 + 4 * scales
    assert sum(a.nbytes for a in arrays.values()) == expected
    assert {n: (a.dtype, len(a)) for n, a in arrays.items()} == codec.form("x")
    assert set(arrays) == {f"x.{part}" for part in {kind, "float16", "float32", "scales"}}


@pytest.mark.parametrize("kind", KINDS)
def test_without_values_there_is_nothing(kind):
    codec = BlockCodec([("w", (0, 3))], kind)
    assert codec.form("x") == {} == codec.encode("x", np.zeros(0, np.float32))
    assert codec.decode("x", {}).shape == (0,)
    beside = [("w", (0, 3)), ("v", (2, 1)), ("b", (0,))]
    np.testing.assert_array_equal(there_and_back([1, 0], beside, kind), [1, 0])
    # The parts of a message that is not small; nothing is where a tensor has no values.
    large = np.concatenate([np.ones(SMALL + 1), [0.5]])
    entries = [("w", (0, 3)), ("v", (SMALL + 1, 1)), ("b", (1,))]
    np.testing.assert_allclose(there_and_back(large, entries, kind), large, rtol=2.0**-7)


def test_the_plain_codec_changes_and_copies_nothing():
    codec, values = Codec(5), drawn(5)
    arrays = codec.encode("x", values)
    assert arrays["x"] is values and codec.decode("x", arrays) is values
    assert codec.form("x") == {"x": (np.float32, 5)}


@pytest.mark.parametrize(
    ("codec", "size"),
    [
        (Codec(5), 5),
        (BlockCodec(matrix(5), "int8"), 5),
        (BlockCodec(matrix(SMALL + 5), "int4"), SMALL + 5),
    ],
)
def test_arrays_that_do_not_fit_are_refused(codec, size):
    arrays = codec.encode("x", drawn(size))
    for name, array in arrays.items():
        with pytest.raises(ValueError, match=f"holds no {name}"):
            codec.decode("x", {n: a for n, a in arrays.items() if n != name})
        with pytest.raises(ValueError, match="expected"):
            codec.decode("x", {**arrays, name: np.concatenate([array, array])})
        with pytest.raises(ValueError, match="expected"):
            codec.decode("x", {**arrays, name: array.astype(np.float64)})


def test_read_only_arrays_are_decoded_and_encoded():
    values = drawn(9)
    values.flags.writeable = False
    np.testing.assert_allclose(there_and_back(values, kind="float16"), values, rtol=1e-3)
