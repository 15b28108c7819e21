"""Assigns points to groups of given sizes at the least cost: the transport problem, exactly."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-12  # of the largest cost: a detour that saves less saves nothing


def cheapest_assignment(cost: NDArray[np.float64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Gives every point a group, no group more than its places, at the least total cost.

    By successive shortest paths (Ahuja, Magnanti and Orlin, "Network Flows", 1993, chapter 9): one
    point after the other enters a group; a full group passes one of its members on to another
    group, along the cheapest chain that ends at a free place. A client needs no scipy for this.

    Args:
        cost: (n, groups), of each point in each group; inf: not allowed there.
        places: (groups,) how many points each group has room for; together at least n.

    Returns:
        (n,) the group of each point.

    Raises:
        ValueError: not every point can have a place.
    """
    count, groups = cost.shape
    if places.sum() < count:
        raise ValueError(f"{places.sum()} places for {count} points")
    group_of = np.full(count, -1)
    free = places.copy()
    # moves[a, b]: the cost of moving the cheapest member of a to b.
    moves = np.full((groups, groups), np.inf)
    finite = np.abs(cost[np.isfinite(cost)])
    min_saving = ROUNDING * finite.max() if finite.size else 0.0
    for point in range(count):
        total, predecessor = _shortest_chains(cost[point], moves, min_saving)
        end = int(np.where(free > 0, total, np.inf).argmin())
        if not (free[end] > 0 and np.isfinite(total[end])):
            raise ValueError("no group with a free place takes the points that are left")
        free[end] -= 1
        chain = [end]
        while predecessor[chain[-1]] >= 0:
            chain.append(int(predecessor[chain[-1]]))
        _move_along(chain, point, group_of, cost, moves)
    return group_of


def _shortest_chains(
    entry: NDArray[np.float64], moves: NDArray[np.float64], min_saving: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Bellman and Ford: (groups,) cost of a chain up to each group, and its predecessor or -1."""
    total, predecessor = entry.copy(), np.full(len(entry), -1)
    for _ in range(len(entry)):
        through = total[:, None] + moves
        best = through.argmin(axis=0)
        cheaper = through[best, np.arange(len(entry))]
        shorter = cheaper < total - min_saving
        if not shorter.any():
            break
        total[shorter], predecessor[shorter] = cheaper[shorter], best[shorter]
    return total, predecessor


def _move_along(
    chain: list[int],
    point: int,
    group_of: NDArray[np.int64],
    cost: NDArray[np.float64],
    moves: NDArray[np.float64],
) -> None:
    """Moves a member of each group of the chain into the one before it, the point into the last."""
    for to, source in pairwise(chain):
        members = np.flatnonzero(group_of == source)
        saved = cost[members, to] - cost[members, source]
        group_of[members[saved.argmin()]] = to
    group_of[point] = chain[-1]
    for group in chain:
        members = np.flatnonzero(group_of == group)
        moves[group] = (cost[members] - cost[members, group][:, None]).min(axis=0)
