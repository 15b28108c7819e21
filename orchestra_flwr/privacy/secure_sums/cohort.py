"""How many clients a sum needs, and how many neighbours each of them has.

A client draws its neighbours with its own randomness after it has seen everybody's keys (as in
Bell et al., section 4), so that no server can choose them. What must not happen, whatever the
server does with fewer than a third of the clients on its side:

* the colluding ones among a client's neighbours hold enough shares to open its secrets;
* those whose vectors arrived fall into two groups without a mask between them, whose sums could be
  told apart. A mask is between two if either has drawn the other: each compares who drew it with
  what all on the list have signed, so no server can withhold that.
"""

import math
from bisect import bisect_left
from functools import cache

MIN_COHORT = 3  # of two, each learns the other's vector from the sum
MAX_CLIENTS = 1000
COMPLETE = 32  # up to so many, all are neighbours: then any quorum of them can end the sum
SECURITY_BITS = 40  # the probability that one of the two happens is at most 2^-40 per sum


def quorum(count: int) -> int:
    """Two thirds, rounded up: any two such groups have an honest member in common.

    So more than half of the honest clients on a list confirm it, and each of them confirms one list
    of a round. Then no sums of a round, however many, combine to one client's vector: that would
    need everybody else on two lists or more, and there are too few clients to confirm those.
    """
    return -(-2 * count // 3)


def colluding(count: int) -> int:
    """The most clients that may collude: fewer than a third."""
    return (count - 1) // 3


@cache
def degree(count: int) -> int:
    """How many neighbours each of `count` clients draws."""
    if count <= COMPLETE:
        return count - 1
    allowed, drawn = 2.0**-SECURITY_BITS, range(1, count - 1)
    fewest = bisect_left(drawn, True, key=lambda k: failure_probability(count, k) <= allowed)
    return 1 + fewest


def failure_probability(count: int, neighbours: int) -> float:
    """An upper bound of the probability that one of the two things happens.

    A hypergeometric tail and a union bound give the first. A union bound over all pairs of groups
    gives the second: together they are at least the honest part of a quorum, and no member of one
    has drawn any of the other. To open a secret of one group, its own members must hold enough
    shares together with colluding clients, since the holders in the other group are not there.
    """
    bad, needed = colluding(count), quorum(neighbours + 1)
    honest, least = count - bad, quorum(count) - bad
    failure = honest * _colluding_drawn(count - 1, bad, neighbours, needed)
    for opened in range(1, honest):
        other = max(1, least - opened)
        apart = [_log_undrawn(count, neighbours, group) for group in (other, opened)]
        if -math.inf in apart:
            continue
        enough = _colluding_drawn(count - 1 - other, bad, neighbours, needed - opened)
        if enough == 0:
            continue
        choices = _log_choices(honest, opened) + _log_choices(honest - opened, other)
        exponent = choices + opened * (apart[0] + math.log(enough)) + other * apart[1]
        failure += math.exp(min(exponent, 0))
    return min(failure, 1.0)


def _colluding_drawn(others: int, bad: int, drawn: int, least: int) -> float:
    """The probability of drawing `least` of the colluding or more: a hypergeometric tail."""
    if least <= 0:
        return 1.0
    return sum(
        math.exp(
            _log_choices(bad, number)
            + _log_choices(others - bad, drawn - number)
            - _log_choices(others, drawn)
        )
        for number in range(least, min(bad, drawn) + 1)
    )


def _log_undrawn(count: int, neighbours: int, group: int) -> float:
    """The logarithm of the probability that a client draws nobody of a group."""
    others = count - 1
    return _log_choices(others - group, neighbours) - _log_choices(others, neighbours)


def _log_choices(count: int, chosen: int) -> float:
    """The logarithm of the number of ways to choose some of `count`."""
    if not 0 <= chosen <= count:
        return -math.inf
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)
