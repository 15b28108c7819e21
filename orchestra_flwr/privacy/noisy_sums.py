"""Sums that are differentially private though nobody is trusted: each client adds a share of noise.

Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with
Secure Aggregation" (ICML 2021, arXiv 2102.06387). Each client clips its update, scales it, rounds
it at random until the norm of the integers is within a bound, and adds discrete Gaussian noise;
the server sees the sum of all, modulo 2^32. Their rotation, which spreads an update evenly so that
fewer bits suffice, is not needed: 32 bits hold every sum as it is.

**Whose noise counts.** A sum of secure aggregation has the vectors of at least two thirds of its
clients; fewer than a third of the clients may collude (:mod:`.secure_sums.cohort`). The accounting
relies on the noise of the others alone; that of all clients is more.

**What it costs.** A sum of discrete Gaussians is not one, but so near to it that the Renyi
divergence of order a is at most a D^2 / (2 n s^2) + t d for a change of norm D in d values and n
noises of deviation s, with t = 10 (sum over k < n of exp(-2 pi^2 s^2 k / (k + 1))) (Proposition
14). For deviations of 16 and more t is below 10^-1090. So the accounting is that of the Gaussian
mechanism. Exchanging one client's update for any other changes the sum by up to twice the bound.
The server sees which clients drop out; that is not covered.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from orchestra_flwr.privacy.discrete_gaussian import FARTHEST, MAX_BITS
from orchestra_flwr.privacy.secure_sums.cohort import colluding, quorum
from orchestra_flwr.privacy.updates import BLOCK, MIN_NOISE, composed_epsilon

MIN_BITS = 4  # of the deviation of a client's noise: see above
# The largest probability that rounding exceeds the bound on the norm; then it is tried again.
TRIED_AGAIN = 2.0**-10


@dataclass(frozen=True)
class NoisySum:
    """How the clients of one sum scale, bound and cover their updates.

    Raises:
        ValueError: the noise, or what it must cover, does not fit into 32 bits.
    """

    noise_multiplier: float  # deviation of the noise that is relied on, in units of the bound
    clients: int  # that the sum began with
    size: int  # values of an update

    def __post_init__(self) -> None:
        if not 2.0**-40 < self.noise_multiplier < 2.0**40 or self._largest >= 2**31:
            raise ValueError(
                f"privacy.noise_multiplier={self.noise_multiplier:g}: updates of {self.size} "
                f"values with that noise do not fit into a sum of {self.clients} clients' 32-bit "
                "integers, take a value nearer to 1"
            )

    @property
    def _largest(self) -> float:
        """The largest value of a sum; infinite where the noise cannot be drawn."""
        if self.bits > MAX_BITS:
            return math.inf
        return self.clients * (math.sqrt(self.bound) + FARTHEST * 2.0**self.bits)

    @property
    def noises(self) -> int:
        """The number of clients whose noise is in the sum, whoever drops out or colludes."""
        return quorum(self.clients) - colluding(self.clients)

    @property
    def bits(self) -> int:
        """The base-2 logarithm of the deviation of a client's noise.

        As small as possible with a bound so large that rounding adds less than two per cent to it.
        """
        coarse = 8 * (math.sqrt(self.size) + 16)
        deviation = self.noise_multiplier * coarse / math.sqrt(self.noises)
        return max(MIN_BITS, math.ceil(math.log2(deviation)))

    @property
    def bound(self) -> int:
        """The square of the L2 norm that a client's integers have at most."""
        return math.floor(self.noises * (2.0**self.bits / self.noise_multiplier) ** 2)

    def scale(self, clip: float) -> float:
        """The factor by which updates of a norm of at most `clip` are multiplied.

        The rounded norm's square exceeds x^2 + d / 4 + c (x + sqrt(d) / 2), c^2 = 2 log(1 / p),
        for a norm of x in d values, with probability p at most (as in their Theorem 1).
        """
        c, d = math.sqrt(2 * math.log(1 / TRIED_AGAIN)), self.size
        return (math.sqrt(c * c / 4 + self.bound - d / 4 - c * math.sqrt(d) / 2) - c / 2) / clip

    @np.errstate(over="ignore", invalid="ignore")  # refused below
    def rounded(self, scaled: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Rounds at random to (size,) int32, unbiased but for the few tries that exceed the bound.

        Args:
            scaled: (size,) float64 of a norm of at most :meth:`scale` times the clip.
            generator: need not be secret: the bound holds whatever it draws.

        Raises:
            ValueError: values that are too large: a server may choose clip and model to that end.
        """
        while True:
            integers, square = np.empty(len(scaled), np.int32), 0
            for start in range(0, len(scaled), BLOCK):
                part = slice(start, start + BLOCK)
                drawn = np.floor(scaled[part] + generator.random(len(scaled[part])))
                if not np.square(drawn).sum() < 2.0**62:  # below it integers of 64 bits are exact
                    raise ValueError("an update that its clip does not bound")
                integers[part] = drawn
                square += int(np.square(drawn.astype(np.int64)).sum())
            if square <= self.bound:
                return integers


def sums_epsilon(multipliers: Iterable[float], delta: float) -> float:
    """Epsilon at `delta` of sums of these noise multipliers together, for exchanging one client.

    The server knows whom it asked, so nothing is gained by drawing cohorts.

    Returns:
        0 without sums, infinite if one is without noise or with next to none.
    """
    precision = sum(1 / value**2 if value >= MIN_NOISE else math.inf for value in multipliers)
    if precision == 0:
        return 0.0
    return composed_epsilon(1 / math.sqrt(precision), [(2, 2, 1)], delta)
