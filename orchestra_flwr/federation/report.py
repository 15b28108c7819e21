"""What happened in a round, and the error that ends a federation."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestra_flwr.evaluation import Similarities


class FederationError(RuntimeError):
    """A federation that cannot go on; its text says why."""


@dataclass(frozen=True)
class Dropped:
    """A client whose reply was not used, and why."""

    client: str
    reason: str
    silent: bool = False  # it did not answer itself: too late, or its node is gone


@dataclass
class RoundReport:
    """What happened in a round, for the metrics.

    Attributes:
        cohort: names of the clients that were asked, in the order of `client_order`.
        population: number of clients that could have been asked.
        dropped: those whose replies were not used.
        examples: images of the others.
        metrics: means of the clients' figures, weighted as the average is.
        smallest_clusters: images in the smallest cluster of each client that told it, 0 for one
            that sent none. They are what clients say: the server sees no images.
        server_state_kept: no client contributed anything, so the server's state is the old one.
        similarities: means of the clients' alignment and uniformity on the average, weighted by
            images; None where they were not asked or none answered.
        unscored: clients whose answer to that was not used.
        bytes_down: of arrays sent to clients.
        bytes_up: of arrays received.
        server_seconds: spent on the server's state.
        client_seconds: of all clients together, as they tell them.
    """

    cohort: tuple[str, ...]
    population: int = 0
    dropped: list[Dropped] = field(default_factory=list)
    examples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    smallest_clusters: dict[str, int] = field(default_factory=dict)
    server_state_kept: bool = False
    similarities: Similarities | None = None
    unscored: list[Dropped] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    server_seconds: float = 0.0
    client_seconds: float = 0.0

    @property
    def smallest_cluster(self) -> int | None:
        """Images in the smallest cluster that any client sent; None without any."""
        return min((size for size in self.smallest_clusters.values() if size), default=None)
