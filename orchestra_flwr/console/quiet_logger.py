"""Keeps back what others log while a block runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_logger(name: str | None, least: int) -> Iterator[None]:
    """Of the logger `name` (None: the root), only messages of level `least` or above pass."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(least)
    try:
        yield
    finally:
        logger.setLevel(level)
