"""Checks of what clients send back: a reply is taken whole or dropped with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from orchestra_flwr.evaluation.similarity import TEMPERATURE, Similarities
from orchestra_flwr.federation.codec import Form
from orchestra_flwr.federation.wire import ARRAYS, CONFIG, METRICS, SMALLEST_CLUSTER, Schemas

HEADER = 4096  # bytes that the serialisation of an array may add to its values
ROUNDING = 1e-4  # by which float32 may exceed a limit


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
    received: np.ndarray | None = None,
    may_be_empty: bool = False,
    k_min: int = 1,
) -> Reply:
    """Turns a client's message into a :class:`Reply`.

    Args:
        message: as received.
        schemas: what shared state must look like, and how it is encoded.
        limits: for every contribution the most rows and the exact width.
        trained: whether shared state is expected.
        received: (size,) state as the client received it, if clients send updates of it.
        may_be_empty: whether contributions may have no rows.
        k_min: images that every contributed row must stand for, as the client tells it. Nobody
            but the client can know: a client that lies about it exposes its own images.

    Raises:
        BadReplyError: an error reply, another schema, missing or surplus arrays, wrong shapes or
            sizes, values that are not finite, no images, or rows of fewer than `k_min` images.
    """
    content, metrics = _told(message, schemas)
    record = content.get(ARRAYS)
    if not isinstance(record, ArrayRecord):
        raise BadReplyError("the reply lacks its arrays")
    form = schemas.codec.form(schemas.reply) if trained else {}
    if record.keys() != form.keys() | limits.keys():
        wanted = sorted(form.keys() | limits.keys())
        raise BadReplyError(f"arrays {sorted(record)} instead of {wanted}")
    state = _shared(record, schemas, form, received) if trained else None
    contributions = {}
    least = 0 if may_be_empty else 1
    for name, (rows, width) in limits.items():
        array = _array(record, name, np.dtype(np.float32), rows * width)
        if array.ndim != 2 or not least <= array.shape[0] <= rows or array.shape[1] != width:
            raise BadReplyError(
                f"{name} of shape {array.shape} instead of ({least} to {rows}, {width})"
            )
        contributions[name] = array.copy()  # a view may keep the whole reply in Ray's store
    smallest = metrics.get(SMALLEST_CLUSTER, k_min)
    if smallest < k_min and any(map(len, contributions.values())):
        raise BadReplyError(f"rows of {smallest:g} images, privacy.k_min={k_min}")
    return Reply(state, contributions, int(metrics["examples"]), metrics)


def check_similarities(message: Message, schemas: Schemas) -> tuple[int, Similarities]:
    """Turns a client's answer to an evaluation into its number of images and its scores.

    Raises:
        BadReplyError: an error reply, another schema, no images, any array or other figure than
            alignment and uniformity, or one that is out of its range or not finite.
    """
    content, metrics = _told(message, schemas)
    if content.array_records:
        raise BadReplyError(f"arrays {sorted(content.array_records)} in answer to an evaluation")
    limits = {"alignment": 1.0, "uniformity": 1 / TEMPERATURE}
    if metrics.keys() != {"examples", *limits}:
        raise BadReplyError(f"figures {sorted(metrics)} instead of {sorted({'examples', *limits})}")
    for name, limit in limits.items():
        if abs(metrics[name]) > limit * (1 + ROUNDING):
            raise BadReplyError(f"{name} is {metrics[name]:g}, at most {limit:g} in size expected")
    told = Similarities(metrics["alignment"], metrics["uniformity"])
    return int(metrics["examples"]), told


def _told(message: Message, schemas: Schemas) -> tuple[RecordDict, dict[str, float]]:
    """A reply's content and figures, with a number of images that can be."""
    if message.has_error():
        raise BadReplyError(message.error.reason or f"error code {message.error.code}")
    content = message.content
    # Not by `metric_records` and its like: those are cycles, which keep a reply's arrays for long.
    figures, told_of = content.get(METRICS), content.get(CONFIG)
    if not isinstance(figures, MetricRecord):
        raise BadReplyError("the reply lacks its metrics")
    told = str(told_of.get("schema", "none")) if isinstance(told_of, ConfigRecord) else "none"
    if told != schemas.fingerprint:
        raise BadReplyError(
            f"schema {told} instead of {schemas.fingerprint}: another model or version"
        )
    metrics = _metrics(figures)
    examples = metrics.get("examples", 0)
    if examples < 1 or examples != int(examples):
        raise BadReplyError(f"it tells of {examples:g} images")
    return content, metrics


def _metrics(record: Mapping[str, object]) -> dict[str, float]:
    metrics = {}
    for name, value in record.items():
        if not isinstance(value, int | float) or not np.isfinite(value):
            raise BadReplyError(f"metric {name} is {value}")
        metrics[name] = float(value)
    return metrics


def _shared(
    record: ArrayRecord, schemas: Schemas, form: Form, received: np.ndarray | None
) -> np.ndarray:
    arrays = {}
    for name, (dtype, size) in form.items():
        arrays[name] = _array(record, name, dtype, size)
        if arrays[name].shape != (size,):
            raise BadReplyError(f"{name} of shape {arrays[name].shape} instead of ({size},)")
    state = schemas.unpack_trained(arrays, received)
    if schemas.sends_updates:  # codes and scales that are finite may come to values that are not
        _demand_finite(schemas.reply, state)
    return state


def _array(record: ArrayRecord, name: str, dtype: np.dtype, size: int) -> np.ndarray:
    array = record[name]
    # Measured before it is decoded: a reply of a hundred times the size costs nothing more.
    most = dtype.itemsize * size + HEADER
    if len(array.data) > most:
        raise BadReplyError(f"{name} of {len(array.data)} bytes, at most {most} expected")
    try:
        values = array.numpy()
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise BadReplyError(f"{name} cannot be decoded: {error}") from None
    if values.dtype != dtype:
        raise BadReplyError(f"{name} is {values.dtype} instead of {dtype}")
    _demand_finite(name, values)
    return values


def _demand_finite(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise BadReplyError(f"{name} holds values that are not finite")
