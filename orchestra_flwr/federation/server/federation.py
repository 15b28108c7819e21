"""What stays the same on the server from round to round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestra_flwr.config import Config
from orchestra_flwr.federation.exchanges import Exchange
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.models import Models
from orchestra_flwr.methods import Release


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
