"""A round as a value, and what stays the same from round to round.

A round says who can be asked, who is asked, and what messages need beside the state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestra_flwr.config import Config
from orchestra_flwr.federation.exchanges import Exchange
from orchestra_flwr.federation.messages.frozen_weights import FrozenWeights
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.privacy.release import Release


@dataclass(frozen=True)
class Round:
    """One round of a run."""

    number: int  # from 0; in round 0, which only some methods have, nothing is trained
    nodes: Mapping[str, int]  # node id of each client that could be asked
    # Names of the clients that are asked, in the order of
    # :func:`orchestra_flwr.federation.exchanges.client_order`
    cohort: tuple[str, ...] = ()
    # Each client's number in the run, which never changes
    indices: Mapping[str, int] = field(default_factory=dict)
    exhausted: frozenset[str] = frozenset()  # of the cohort those that may not contribute
    # For tasks: which run this is, where clients of this machine keep their state, and which images
    # they have
    state_location: Mapping[str, str] = field(default_factory=dict)
    # For each real client's task: the rounds in which it was used last
    last_used: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    evaluated: bool = False  # whether the round's models are evaluated
    # That each client joined with; {}: unknown
    images: Mapping[str, int] = field(default_factory=dict)
    max_counted_images: int | None = None  # of a client that count in a mean; None: all do
    # How far replies moved the model before, see :class:`Plausibility`
    usual: Mapping[str, Sequence[float]] = field(default_factory=dict)
    # Seconds after which a stage waits no longer; None: `federation.round_timeout`
    limit: float | None = None
    busy: int = 0  # clients that are there, but at work on what is no longer awaited
    # For each client the round whose model it began with, in the order in which results came; {}:
    # all begin with the newest
    versions: Mapping[str, int] = field(default_factory=dict)

    @property
    def there(self) -> int:
        """How many clients are there, free or at work: a cohort is a share of them."""
        return len(self.nodes) + self.busy

    @property
    def trains(self) -> bool:
        """Whether clients train in it."""
        return self.number > 0

    def began_with(self, client: str) -> int:
        """The round whose model a client began with."""
        return self.versions.get(client, self.number - 1)

    def counted(self, images: int) -> int:
        """How many of a client's images count in a mean."""
        return images if self.max_counted_images is None else min(images, self.max_counted_images)


@dataclass(frozen=True)
class Federation:
    """What stays the same from round to round on the server.

    Raises:
        ValueError: noise is asked for without a key to draw it from.
    """

    config: Config  # the run's configuration
    models: Models  # the server's models, which every stage changes
    exchange: Exchange  # who talks with whom
    release: Release | None  # what clients contribute beside their state; None: nothing
    # Called with each client's name and whether its reply was used
    on_client: Callable[[str, bool], None] = lambda client, ok: None
    # The run's secret, from which noise and cohorts are drawn; only with
    # `privacy.noise_multiplier`, and not where clients add the noise to their sum
    key: bytes | None = None
    folder: Path | None = None  # for what does not fit into memory; None: the system's
    frozen: FrozenWeights | None = None  # which nobody trains; None: all is trained
    on_asked: Callable[[str], None] = lambda client: None  # called with each that is sent a model
    is_simulated: bool = False  # whether all clients are
    # Called with each client whose reply has come and waits to be taken, and whether it is no error
    on_arrival: Callable[[str, bool], None] = lambda client, good: None

    def __post_init__(self) -> None:
        privacy = self.config.privacy
        if privacy.noise_multiplier > 0 and not privacy.secure_aggregation and self.key is None:
            raise ValueError("noise needs a secret key")

    @property
    def timeout(self) -> float | None:
        """Seconds that a stage waits for replies; None: for all, since simulated clients are in
        time however long this machine takes (a clock knows better who is late)."""
        return None if self.is_simulated else self.config.federation.round_timeout

    @property
    def schemas(self) -> Schemas:
        """Of everything that travels."""
        return self.models.schemas
