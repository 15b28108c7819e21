"""The metrics of a run for TensorBoard, which is an optional dependency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestra_flwr.config import ConfigError


def summary_writer() -> type[Any]:
    """torch's SummaryWriter.

    Raises:
        ConfigError: tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "logging.tensorboard=true: tensorboard is not installed; "
            "pip install 'orchestra-flwr[tensorboard]'"
        ) from None
    return SummaryWriter


class TensorboardLog:
    """Writes the numbers of metrics records as event files into a folder.

    Raises:
        ConfigError: tensorboard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._writer = summary_writer()(str(folder))

    def add(self, round: int, record: Mapping[str, Any]) -> None:
        """Writes a record's numbers at step `round`, tagged by their path, e.g. `loss/total`."""
        for tag, value in _numbers(record):
            if tag != "round":
                self._writer.add_scalar(tag, value, round)
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


def _numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + key, value
