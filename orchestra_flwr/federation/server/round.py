"""A round as a value, and what stays the same from round to round.

A round is: who can be asked, who is, and what a message must know beside the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from orchestra_flwr.config import Config
from orchestra_flwr.federation.exchanges import Exchange
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.methods import Release
from orchestra_flwr.seeding import numpy_generator


@dataclass(frozen=True)
class Round:
    """One round of a run.

    Attributes:
        number: from 0. In round 0, which only some methods have, nothing is trained.
        nodes: node id of each client that could be asked.
        cohort: names of the clients that are asked, in the order of :func:`client_order`.
        indices: each client's number in the run, which never changes.
        exhausted: clients of the cohort that may not contribute, only train.
        place: for tasks: which run this is, and where clients on this machine keep their state.
        known: for each real client's task: what it was used for before, which it must remember.
        evaluated: whether the round's models are evaluated.
    """

    number: int
    nodes: Mapping[str, int]
    cohort: tuple[str, ...] = ()
    indices: Mapping[str, int] = field(default_factory=dict)
    exhausted: frozenset[str] = frozenset()
    place: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    evaluated: bool = False

    @property
    def trains(self) -> bool:
        """Whether clients train in it."""
        return self.number > 0


@dataclass(frozen=True)
class Federation:
    """What stays the same from round to round on the server.

    Attributes:
        config: the run's configuration.
        models: the server's models, which every stage changes.
        exchange: who talks with whom.
        release: what clients contribute beside their state; None: nothing.
        on_client: called with each client's name and whether its reply was used.
        key: the run's secret, from which noise and cohorts are drawn; only with
            `privacy.noise_multiplier`.

    Raises:
        ValueError: noise is asked for without a key to draw it from.
    """

    config: Config
    models: Models
    exchange: Exchange
    release: Release | None
    on_client: Callable[[str, bool], None] = lambda client, ok: None
    key: bytes | None = None

    def __post_init__(self) -> None:
        if self.config.privacy.noise_multiplier > 0 and self.key is None:
            raise ValueError("noise needs a secret key")

    @property
    def schemas(self) -> Schemas:
        """Of everything that travels."""
        return self.models.schemas


def client_order(name: str) -> tuple[int, str]:
    """Sorting key of clients: "2" comes before "10", and any names have one order."""
    return len(name), name


def cohort_seed(config: Config, key: bytes | None) -> int:
    """The seed of cohorts: the run's, which every client knows, or the run's secret.

    Where epsilon relies on nobody knowing who takes part, it comes from the secret.
    """
    return config.seed if key is None else int.from_bytes(key)


def draw_cohort(clients: Collection[str], size: int, seed: int, round_: int) -> tuple[str, ...]:
    """The round's clients, so many, in the order of :func:`client_order`.

    Depends on the seed and the round alone, so that a resumed run asks the same clients.
    """
    chosen = numpy_generator(seed, "cohort", round_).choice(len(clients), size, replace=False)
    ordered = sorted(clients, key=client_order)
    return tuple(ordered[i] for i in sorted(chosen))


def numbered(
    clients: Sequence[str], present: Collection[str], most: int | None = None
) -> list[str]:
    """The clients of a run in the order of their numbers: those that are new come last.

    Args:
        clients: those that have numbers already.
        present: that can be asked now.
        most: who would be one more than so many gets no number; None: everybody gets one.
    """
    return [*clients, *sorted(set(present) - set(clients), key=client_order)][:most]
