"""Who is asked in a round, and in which order."""

from __future__ import annotations

from collections.abc import Collection

from orchestra_flwr.seeding import numpy_generator


def client_order(name: str) -> tuple[int, str]:
    """Sorting key of clients: "2" comes before "10", and any names have one order."""
    return len(name), name


def draw_cohort(
    clients: Collection[str], participation: float, seed: int, round_: int
) -> list[str]:
    """The round's clients in the order of :func:`client_order`.

    They are round(participation * clients), at least one.

    Depends on the seed and the round alone, so that a resumed run asks the same clients.
    """
    size = max(1, round(participation * len(clients)))
    chosen = numpy_generator(seed, "cohort", round_).choice(len(clients), size, replace=False)
    ordered = sorted(clients, key=client_order)
    return [ordered[i] for i in sorted(chosen)]
