"""Checks of what clients send back: a reply is taken whole or dropped with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from orchestra_flwr.federation.wire import ARRAYS, CONFIG, METRICS, SMALLEST_CLUSTER, Schemas
from orchestra_flwr.methods import Role

HEADER = 4096  # bytes that the serialisation of an array may add to its values


class BadReplyError(ValueError):
    """A reply that cannot be used; its text says why."""


@dataclass(frozen=True)
class Reply:
    """A checked reply.

    Attributes:
        shared: (size,) float32 shared state; None where nothing was trained.
        contributions: name to (rows, width) float32.
        examples: images that the client trained on, at least 1.
        metrics: all figures that the client told.
    """

    shared: np.ndarray | None
    contributions: dict[str, np.ndarray]
    examples: int
    metrics: dict[str, float]


def check_reply(
    message: Message,
    schemas: Schemas,
    limits: Mapping[str, tuple[int, int]],
    *,
    trained: bool,
    may_be_empty: bool = False,
    k_min: int = 1,
) -> Reply:
    """Turns a client's message into a :class:`Reply`.

    Args:
        message: as received.
        schemas: what shared state must look like.
        limits: for every contribution the most rows and the exact width.
        trained: whether shared state is expected.
        may_be_empty: whether contributions may have no rows.
        k_min: images that every contributed row must stand for, as the client tells it. Nobody
            but the client can know: a client that lies about it exposes its own images.

    Raises:
        BadReplyError: an error reply, another schema, missing or surplus arrays, wrong shapes or
            sizes, values that are not finite, no images, or rows of fewer than `k_min` images.
    """
    if message.has_error():
        raise BadReplyError(message.error.reason or f"error code {message.error.code}")
    content = message.content
    # Not by `array_records` and its like: those are cycles, which keep a reply's arrays for long.
    record, figures, told_of = (content.get(name) for name in (ARRAYS, METRICS, CONFIG))
    if not isinstance(record, ArrayRecord) or not isinstance(figures, MetricRecord):
        raise BadReplyError("the reply lacks its arrays or metrics")
    told = str(told_of.get("schema", "none")) if isinstance(told_of, ConfigRecord) else "none"
    if told != schemas.fingerprint:
        raise BadReplyError(
            f"schema {told} instead of {schemas.fingerprint}: another model or version"
        )
    metrics = _metrics(figures)
    examples = metrics.get("examples", 0)
    if examples < 1 or examples != int(examples):
        raise BadReplyError(f"trained on {examples:g} images")

    shared = {Role.SHARED.value} if trained else set()
    if record.keys() != shared | limits.keys():
        raise BadReplyError(f"arrays {sorted(record)} instead of {sorted(shared | limits.keys())}")
    state = _array(record, Role.SHARED.value, schemas.shared.size) if trained else None
    if state is not None and state.shape != (schemas.shared.size,):
        raise BadReplyError(
            f"shared state of shape {state.shape} instead of ({schemas.shared.size},)"
        )
    contributions = {}
    least = 0 if may_be_empty else 1
    for name, (rows, width) in limits.items():
        array = _array(record, name, rows * width)
        if array.ndim != 2 or not least <= array.shape[0] <= rows or array.shape[1] != width:
            raise BadReplyError(
                f"{name} of shape {array.shape} instead of ({least} to {rows}, {width})"
            )
        contributions[name] = array.copy()  # a view may keep the whole reply in Ray's store
    smallest = metrics.get(SMALLEST_CLUSTER, k_min)
    if smallest < k_min and any(map(len, contributions.values())):
        raise BadReplyError(f"rows of {smallest:g} images, privacy.k_min={k_min}")
    return Reply(state, contributions, int(examples), metrics)


def _metrics(record: Mapping[str, object]) -> dict[str, float]:
    metrics = {}
    for name, value in record.items():
        if not isinstance(value, int | float) or not np.isfinite(value):
            raise BadReplyError(f"metric {name} is {value}")
        metrics[name] = float(value)
    return metrics


def _array(record: ArrayRecord, name: str, size: int) -> np.ndarray:
    array = record[name]
    # Measured before it is decoded: a reply of a hundred times the size costs nothing more.
    if len(array.data) > 4 * size + HEADER:
        raise BadReplyError(
            f"{name} of {len(array.data)} bytes, at most {4 * size + HEADER} expected"
        )
    try:
        values = array.numpy()
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise BadReplyError(f"{name} cannot be decoded: {error}") from None
    if values.dtype != np.float32:
        raise BadReplyError(f"{name} is {values.dtype} instead of float32")
    if not np.isfinite(values).all():
        raise BadReplyError(f"{name} holds values that are not finite")
    return values
