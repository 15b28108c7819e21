import numpy as np

from orchestra_flwr.clustering.sketch import sketch


def test_short_vectors_keep_their_direction():
    values = np.array([3, 0, -4], np.float32)
    np.testing.assert_allclose(sketch(values, 3), [0.6, 0, -0.8], atol=1e-3)
    assert sketch(values * 1e-20, 3).tolist() == sketch(values, 3).tolist()
    assert sketch(values, 3).dtype == np.float16
    assert not sketch(np.zeros(10, np.float32), 4).any()


def test_cosines_of_long_vectors_are_kept():
    draw = np.random.default_rng(0)
    common, *parts = draw.normal(size=(7, 600_000)).astype(np.float32)
    vectors = [
        common * share + part for share, part in zip((0, 0.5, 1, 2, -1, 3), parts, strict=True)
    ]
    sketches = [sketch(vector, 4096).astype(float) for vector in vectors]
    for a, x in zip(vectors, sketches, strict=True):
        assert x.shape == (4096,) and abs(np.linalg.norm(x) - 1) < 1e-3
        for b, y in zip(vectors, sketches, strict=True):
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            assert abs(x @ y - cosine) < 4 / 64  # four deviations


def test_the_same_vector_has_the_same_sketch():
    values = np.random.default_rng(1).normal(size=5000).astype(np.float32)
    np.testing.assert_array_equal(sketch(values, 64), sketch(values.copy(), 64))
