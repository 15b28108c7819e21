"""A virtual clock: devices from a table, or drawn from the seed."""

import csv
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from orchestra_flwr.config import Config, ConfigError, OptionalPathText, Section, parse
from orchestra_flwr.federation.clocks import Clock, Device
from orchestra_flwr.seeding import numpy_generator

MEGABIT = 125_000  # bytes
MIN_SPEED = 1e-6  # of a speed: times stay finite


class _Row(Section):
    """A row of the table; units as above."""

    client: str
    images_per_second: float = Field(ge=MIN_SPEED)
    down_mbit: float = Field(ge=MIN_SPEED)
    up_mbit: float = Field(ge=MIN_SPEED)
    leaves: float = Field(0.0, ge=0, lt=24)
    hours_away: float = Field(0.0, ge=0, lt=24)

    def device(self) -> Device:
        return Device(
            self.images_per_second,
            self.down_mbit * MEGABIT,
            self.up_mbit * MEGABIT,
            self.leaves,
            self.hours_away,
        )


class Virtual(Clock):
    """Seconds of a round follow from images, bytes and devices, not from this machine."""

    class Settings(Section):
        devices: OptionalPathText = None  # a csv table; None: drawn from what follows
        images_per_second: float = Field(100.0, ge=MIN_SPEED)
        spread: float = Field(0.0, ge=0, le=5)  # standard deviation of the logarithm of the speed
        down_mbit: float = Field(20.0, ge=MIN_SPEED)
        up_mbit: float = Field(5.0, ge=MIN_SPEED)
        slow: float = Field(0.0, ge=0, le=1)  # share of clients that are slow
        slower: float = Field(10.0, ge=1, le=1e6)  # by this factor, in training and on the link
        hours_away: float = Field(0.0, ge=0, lt=24)  # of each day, from an hour that is drawn

    settings: Settings

    @classmethod
    def check(cls, config: Config) -> None:
        """Refuses secure sums, whose stages have no virtual time."""
        if config.privacy.secure_aggregation:
            raise ValueError(
                "clock=virtual: must be none with privacy.secure_aggregation=true, whose six "
                "stages have no virtual time"
            )

    @classmethod
    def unread(cls, config: Config) -> dict[str, str]:
        """With a table, no device is drawn."""
        if config.clock.settings.devices is None:
            return {}
        drawn = (name for name in cls.Settings.model_fields if name != "devices")
        return {f"clock.{name}": "with clock.devices" for name in drawn}

    def devices(self, clients: Sequence[str], seed: int) -> dict[str, Device] | None:
        """The rows of the table, or drawn from the seed."""
        if self.settings.devices is not None:
            return self._table(Path(self.settings.devices), clients)
        order = numpy_generator(seed, "slow devices").permutation(len(clients))
        slow = {clients[i] for i in order[: round(self.settings.slow * len(clients))]}
        return {client: self._drawn(client, client in slow, seed) for client in clients}

    def _drawn(self, client: str, slow: bool, seed: int) -> Device:
        settings = self.settings
        generator = numpy_generator(seed, "device", client)
        factor = math.exp(settings.spread * generator.standard_normal())
        leaves = generator.uniform(0, 24)
        if slow:
            factor /= settings.slower
        link = MEGABIT / (settings.slower if slow else 1)
        return Device(
            settings.images_per_second * factor,
            settings.down_mbit * link,
            settings.up_mbit * link,
            leaves,
            settings.hours_away,
        )

    def _table(self, path: Path, clients: Sequence[str]) -> dict[str, Device]:
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                rows = [self._row(path, row) for row in csv.DictReader(file)]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise ConfigError(f"clock.devices={path}: cannot be read: {error}") from None
        devices = {row.client: row.device() for row in rows}
        if len(devices) < len(rows):
            twice, _ = Counter(row.client for row in rows).most_common(1)[0]
            raise ConfigError(f"clock.devices={path}: has two rows for client {twice}")
        if missing := [client for client in clients if client not in devices]:
            raise ConfigError(
                f"clock.devices={path}: has no row for client {missing[0]} "
                f"({len(missing)} of {len(clients)} are missing)"
            )
        return {client: devices[client] for client in clients}

    @staticmethod
    def _row(path: Path, values: dict[Any, Any]) -> _Row:
        if None in values:
            raise ConfigError(f"clock.devices={path}: a row has more values than columns")
        try:
            return parse(_Row, {name: value for name, value in values.items() if value})
        except ConfigError as error:
            raise ConfigError(
                f"clock.devices={path}: {error}; its columns are "
                f"{', '.join(_Row.model_fields)}, the last two may be missing"
            ) from None
