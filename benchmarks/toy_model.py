"""The linear theory of Dec-SSL as a simulation: which axes do sources represent?

Wang et al., "Does Learning from Decentralized Non-IID Unlabeled Data Benefit from Self
Supervision?", ICLR 2023 (arXiv 2210.10947), section 4 and appendix E. There are K sources in d
dimensions. Source k has many points of two classes of its own, which differ along its axis e_k and
vary along the other sources' axes, and hardly any of the others' classes. Self-supervision finds
the axes along which points vary, so each source represents all axes; supervision finds those that
tell its classes apart, mostly its own.

Both objectives are solved in closed form, up to the solver of the support vector machine.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestra_flwr.seeding import numpy_generator

Array = NDArray[np.float64]
RANK = 1e-6  # of the largest singular value; those below are rounding


@dataclass(frozen=True)
class Setting:
    """A simulation.

    Attributes:
        dimensions: d.
        sources: K.
        frequent: points of each of a source's own two classes.
        rare: points of one class of each other source.
        seed: of the points.
    """

    dimensions: int = 256
    sources: int = 3
    frequent: int = 1000
    rare: int = 1
    seed: int = 0

    @property
    def tau(self) -> float:
        """How far points vary along the other sources' axes."""
        return float(self.dimensions**0.2)

    @property
    def mu(self) -> float:
        """Deviation of the noise in every dimension."""
        return float(self.dimensions**-0.2)

    @property
    def rows(self) -> int:
        """m, the width of the representation."""
        return 2 * self.sources


@dataclass(frozen=True)
class Outcome:
    """Means over the sources (and over the other axes).

    Representability is the squared length of an axis in the span of a representation's rows, 0 to
    1. Correlation is the sum of an axis' squared products with the rows.

    Attributes:
        ssl_others, ssl_own: representability of the other sources' axes, and of the source's own,
            of a source's self-supervised representation.
        ssl_global: of all axes, of that of all sources together.
        sl_others, sl_own: as above, of a source's supervised representation.
        sl_correlation: the others' mean correlation in it, divided by the own axis'.
        sl_own_correlation: of its own axis.
        eigenvalues: the largest of a source's second moments, descending, one more than rows count.
        ssl, sl: (K, K) representability of each axis (columns) by each source (rows).
        ssl_of_all: (K,) representability of each axis by that of all sources together.
    """

    ssl_others: float
    ssl_own: float
    ssl_global: float
    sl_others: float
    sl_own: float
    sl_correlation: float
    sl_own_correlation: float
    eigenvalues: tuple[float, ...]
    ssl: Array
    sl: Array
    ssl_of_all: Array


def source_points(setting: Setting, source: int) -> tuple[Array, NDArray[np.int64]]:
    """(n, d) points of a source, from 0, and their (n,) classes from 0."""
    draw = numpy_generator(setting.seed, "theory", source)
    axes = np.delete(np.arange(setting.sources), source)
    parts, classes = [], []
    for sign, label in ((1.0, 2 * source), (-1.0, 2 * source + 1)):
        points = setting.mu * draw.standard_normal((setting.frequent, setting.dimensions))
        points[:, source] += sign
        points[:, axes] -= setting.tau * draw.integers(0, 2, (setting.frequent, len(axes)))
        parts.append(points)
        classes += [label] * setting.frequent
    for axis in axes:
        points = setting.mu * draw.standard_normal((setting.rare, setting.dimensions))
        points[:, axis] += 1
        parts.append(points)
        classes += [2 * int(axis)] * setting.rare
    return np.concatenate(parts), np.array(classes)


def second_moments(points: Array) -> Array:
    """(d, d) mean of x x^T, not centred."""
    moments: Array = points.T @ points / len(points)
    return moments


def ssl_span(moments: Array, rows: int) -> Array:
    """(rows, d) orthonormal rows that span the self-supervised optimum.

    The loss -E[(w x')^T (w x'')] + |w^T w|^2 / 2 of two noisy copies of a point is, up to a
    constant, |X - w^T w|^2 / 2 with the second moments X: its optimum has the span of the top
    eigenvectors.
    """
    _, vectors = np.linalg.eigh(moments)
    top: Array = vectors[:, -rows:].T
    return top


def sl_representation(points: Array, classes: NDArray[np.int64]) -> Array:
    """(rank, d) first layer of the two-layer linear network of maximal margin.

    With |u|^2 + |v|^2 least under a margin of 1, v u is the multi-class support vector machine's W
    (Crammer and Singer, 2001), and u = sqrt(S) V^T of its singular value decomposition.
    """
    from sklearn.svm import LinearSVC

    machine = LinearSVC(
        multi_class="crammer_singer", C=100, fit_intercept=False, tol=1e-4, max_iter=10_000,
        random_state=0,
    )  # fmt: skip
    machine.fit(points, classes)
    _, sizes, vectors = np.linalg.svd(machine.coef_, full_matrices=False)
    kept = sizes > RANK * sizes[0]
    rows: Array = np.sqrt(sizes[kept])[:, None] * vectors[kept]
    return rows


def representability(rows: Array, axes: int) -> Array:
    """(axes,) squared lengths of the first unit vectors in the span of (m, d) rows."""
    _, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    basis = basis[sizes > RANK * sizes[0]]
    lengths: Array = np.square(basis[:, :axes]).sum(0)
    return lengths


def simulate(setting: Setting) -> Outcome:
    """Solves both objectives on every source, and self-supervision on all together."""
    count = setting.sources
    diagonal = np.eye(count, dtype=bool)
    ssl, sl, correlation = (np.zeros((count, count)) for _ in range(3))
    mean = np.zeros((setting.dimensions, setting.dimensions))
    spectra = []
    for source in range(count):
        points, classes = source_points(setting, source)
        moments = second_moments(points)
        mean += moments / count
        spectra.append(np.linalg.eigvalsh(moments)[::-1][: setting.rows + 1])
        ssl[source] = representability(ssl_span(moments, setting.rows), count)
        first_layer = sl_representation(points, classes)
        sl[source] = representability(first_layer, count)
        correlation[source] = np.square(first_layer[:, :count]).sum(0)
    of_all = representability(ssl_span(mean, setting.rows), count)
    relative = correlation / correlation[diagonal][:, None]
    return Outcome(
        ssl_others=float(ssl[~diagonal].mean()),
        ssl_own=float(ssl[diagonal].mean()),
        ssl_global=float(of_all.mean()),
        sl_others=float(sl[~diagonal].mean()),
        sl_own=float(sl[diagonal].mean()),
        sl_correlation=float(relative[~diagonal].mean()),
        sl_own_correlation=float(correlation[diagonal].mean()),
        eigenvalues=tuple(np.mean(spectra, axis=0).tolist()),
        ssl=ssl,
        sl=sl,
        ssl_of_all=of_all,
    )
