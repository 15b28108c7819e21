"""How many clients a sum needs, and how many neighbours each of them.

A client draws its neighbours with its own randomness after it has seen everybody's keys (as in
Bell et al., section 4), so that no server can choose them. What must not happen, whatever the
server does with fewer than a third of the clients on its side:

* the colluding ones among a client's neighbours hold enough shares to open its secrets;
* those whose vectors arrived fall into two groups without a mask between them, whose sums could be
  told apart.
"""

import math
from functools import cache

LEAST_COHORT = 3  # of two, each learns the other's vector from the sum
MOST_CLIENTS = 1000
COMPLETE = 32  # up to so many, all are neighbours: then any quorum of them can end the sum
SECURITY_BITS = 40  # the probability that one of the two happens is at most 2^-40 a sum


def quorum(count: int) -> int:
    """Two thirds, rounded up: of two such groups some common member is honest."""
    return -(-2 * count // 3)


def colluding(count: int) -> int:
    """The most clients that may collude: fewer than a third."""
    return (count - 1) // 3


@cache
def degree(count: int) -> int:
    """How many neighbours each of `count` clients draws."""
    if count <= COMPLETE:
        return count - 1
    return next(k for k in range(1, count) if failure_probability(count, k) <= 2.0**-SECURITY_BITS)


def failure_probability(count: int, neighbours: int) -> float:
    """An upper bound of the probability that one of the two things happens.

    The first by the hypergeometric tail and a union bound. The second by one over all groups: each
    member of a group of whom enough share holders answer has an honest neighbour in its own group,
    so both have two members at least; members of both together are at least the honest part of a
    quorum; and no member of one may have drawn any of the other.
    """
    bad, needed = colluding(count), quorum(neighbours + 1)
    opened = sum(
        math.exp(
            _log_choices(bad, found)
            + _log_choices(count - 1 - bad, neighbours - found)
            - _log_choices(count - 1, neighbours)
        )
        for found in range(needed, min(bad, neighbours) + 1)
    )
    if neighbours >= count - 1:
        return count * opened
    honest, apart = quorum(count) - bad, math.log1p(-neighbours / (count - 1))
    divided = sum(
        math.exp(
            _log_choices(count, one)
            + _log_choices(count - one, honest - one)
            + 2 * one * (honest - one) * apart
        )
        for one in range(2, honest // 2 + 1)
    )
    return count * opened + divided


def _log_choices(count: int, chosen: int) -> float:
    """The logarithm of the number of ways to choose some of `count`."""
    if not 0 <= chosen <= count:
        return -math.inf
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)
