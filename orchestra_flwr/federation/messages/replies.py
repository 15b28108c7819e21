"""Checks of what clients send back: a reply is taken whole or dropped with a reason."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from orchestra_flwr.config import Config
from orchestra_flwr.evaluation import LabelFreeScores
from orchestra_flwr.federation.messages import fields
from orchestra_flwr.federation.messages.codec import Form
from orchestra_flwr.federation.messages.failures import as_shown, describe_error
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.flower.arrays import all_finite, size_in_bytes
from orchestra_flwr.methods import Method, classification_head_of, ordered_backbones, release_of
from orchestra_flwr.privacy.release import Release

SLACK = 1 << 20  # bytes of a reply beside its arrays
HEADER = 4096  # bytes that the serialisation of an array may add to its values
MAX_IMAGES = 10**8  # of a client: no machine's memory holds more
MAX_METRIC = float(np.finfo(np.float32).max)  # no client measures more, and sums stay finite
ROUNDING = 1e-4  # by which float32 may exceed a limit
LONGER = 0.1  # by which rows of low precision may exceed their length


class BadReplyError(ValueError):
    """A reply that cannot be used; its text, which may hold some of the reply's, says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(as_shown(reason))


@dataclass(frozen=True)
class Reply:
    """A checked reply."""

    shared: np.ndarray | None  # (size,) float32 shared state; None where nothing was trained
    contributions: dict[str, np.ndarray]  # name to (rows, width) float32
    examples: int  # images that the client trained on, at least 1; no more than it joined with
    metrics: dict[str, float]  # all numbers that the client reported
    model: str  # that the client trained, one of those that it was sent


def check_reply(
    message: Message,
    schemas: Schemas,
    release: Release | None,
    *,
    models: Sequence[str],
    trained: bool,
    images: int | None = None,
    received: Callable[[str], np.ndarray] | None = None,
) -> Reply:
    """Turns a client's message into a :class:`Reply`.

    Args:
        schemas: what shared state must look like, and how it is encoded.
        release: what clients contribute beside it. The client alone says how many images a row
            stands for: nobody else can know, and one that lies exposes its own images.
        trained: whether shared state is expected.
        images: that the client joined with; None: that is not known.
        received: (size,) state of a model as the client received it, if clients send updates.

    Raises:
        BadReplyError: an error reply, another schema, a model that was not sent, missing or unknown
            arrays, wrong shapes or sizes, values that are not finite, variances below 0, no
            images, too long rows, or rows of fewer images than the release allows.
    """
    content, metrics, examples = _content(message, schemas, images)
    model = _model(content, models)
    record = content.get(fields.ARRAYS)
    if not isinstance(record, ArrayRecord):
        raise BadReplyError("the reply lacks its arrays")
    form = schemas.codec.form(schemas.reply) if trained else {}
    rows = release.rows if release else {}
    if record.keys() != form.keys() | rows.keys():
        wanted = sorted(form.keys() | rows.keys())
        raise BadReplyError(f"arrays {sorted(record)} instead of {wanted}")
    state = None
    if trained:
        before = received(model) if received and schemas.sends_updates else None
        state = _shared(record, schemas, form, before)
    contributions = checked_contributions(record, release, examples) if release else {}
    least = release.min_images if release else None
    smallest = metrics.get(fields.SMALLEST_GROUP)
    sent = any(map(len, contributions.values()))
    if least is not None and smallest is not None and smallest < least and sent:
        raise BadReplyError(f"rows of {smallest:g} images, privacy.k_min={least}")
    if smallest is not None and (smallest != int(smallest) or not 0 <= smallest <= MAX_IMAGES):
        raise BadReplyError(f"rows of {smallest:g} images")
    return Reply(state, contributions, examples, metrics, model)


def reply_limit(config: Config, schemas: Schemas) -> int:
    """Bytes that an honest reply cannot exceed: all arrays in float32, and what surrounds them."""
    release = release_of(config)
    rows = sum(most * width for most, width in release.rows.values()) if release else 0
    return 4 * (schemas.shared.size + rows) * 2 + SLACK


def _model(content: RecordDict, models: Sequence[str]) -> str:
    """Which model was trained; the reply says so only where several were sent."""
    about = content[fields.CONFIG]
    model = str(about.get(fields.MODEL, models[0] if len(models) == 1 else ""))
    if model not in models:
        raise BadReplyError(f"it trained the model {model!r}, and was sent {', '.join(models)}")
    return model


def checked_contributions(
    record: ArrayRecord, release: Release, images: int
) -> dict[str, np.ndarray]:
    """What a client contributes beside its state, by name.

    Raises:
        BadReplyError: an array of another shape or size, not finite, or with too long rows.
    """
    contributions = {}
    longest = release.max_norm
    if longest is not None and release.norm_per_image:
        longest *= images
    least = 0 if release.may_be_empty else 1
    for name, (rows, width) in release.rows.items():
        array = checked_array(record, name, np.dtype(np.float32), rows * width)
        if array.ndim != 2 or not least <= array.shape[0] <= rows or array.shape[1] != width:
            raise BadReplyError(
                f"{name} of shape {array.shape} instead of ({least} to {rows}, {width})"
            )
        length = float(np.sqrt(np.square(array, dtype=np.float64).sum(1)).max(initial=0))
        if longest is not None and length > longest * (1 + LONGER):
            raise BadReplyError(f"{name} holds a row of length {length:g}, at most {longest:g}")
        contributions[name] = array.copy()  # a view may keep the whole reply in Ray's store
    return contributions


def score_ranges(config: Config, method: Method) -> dict[str, tuple[float, float]]:
    """The smallest and largest value of each score that a run asks its clients for, by name."""
    ranges: dict[str, tuple[float, float]] = {}
    backbone, *_ = ordered_backbones(method, config.evaluation.backbone).values()
    if config.evaluation.unsupervised:
        ranges |= LabelFreeScores.ranges(backbone.dim)
    if config.evaluation.clients:
        classifies = classification_head_of(method, backbone) is not None
        personal = config.evaluation.personal_labels is not None  # by everybody's test images
        names = ("linear", *["personal"] * personal, *["accuracy"] * classifies)
        ranges |= {fields.LOCAL_SCORES + name: (0.0, 1.0) for name in names}
    if config.evaluation.personal_by_clients:
        ranges[fields.PERSONAL] = (0.0, 1.0)
    return ranges


def check_scores(
    message: Message,
    schemas: Schemas,
    ranges: Mapping[str, tuple[float, float]],
    optional: Set[str] = frozenset(),
    images: int | None = None,
) -> tuple[int, dict[str, float]]:
    """Turns a client's answer to an evaluation into its number of images and its scores.

    Args:
        ranges: as :func:`score_ranges` gives them.
        optional: names of scores that the client may keep to itself.
        images: that the client joined with; None: that is not known.

    Raises:
        BadReplyError: an error reply, another schema, no images, any array, other metrics than
            were asked for, or one that is out of its range or not finite.
    """
    content, metrics, examples = _content(message, schemas, images)
    if content.array_records:
        raise BadReplyError(f"arrays {sorted(content.array_records)} in answer to an evaluation")
    if metrics.keys() | optional != {"examples", *ranges}:
        raise BadReplyError(f"metrics {sorted(metrics)} instead of {sorted({'examples', *ranges})}")
    for name, (least, most) in ranges.items():
        slack = ROUNDING * most
        if name in metrics and not least - slack <= metrics[name] <= most + slack:
            raise BadReplyError(f"{name} is {metrics[name]:g}, {least:g} to {most:g} expected")
    del metrics["examples"]
    return examples, metrics


def _content(
    message: Message, schemas: Schemas, images: int | None
) -> tuple[RecordDict, dict[str, float], int]:
    """A reply's content, metrics and images, no more than `images`; its schema was checked."""
    if message.has_error():
        raise BadReplyError(describe_error(message.error))
    content = message.content
    # Not by `metric_records` and its like: their reference cycles keep a reply's arrays for long.
    record, about = content.get(fields.METRICS), content.get(fields.CONFIG)
    if not isinstance(record, MetricRecord):
        raise BadReplyError("the reply lacks its metrics")
    schema = str(about.get("schema", "none")) if isinstance(about, ConfigRecord) else "none"
    if schema != schemas.fingerprint:
        raise BadReplyError(
            f"schema {schema} instead of {schemas.fingerprint}: another model or version"
        )
    metrics = _metrics(record)
    examples = metrics.get("examples", 0)
    if not 1 <= examples <= MAX_IMAGES or examples != int(examples):
        raise BadReplyError(f"it reports {examples:g} images")
    return content, metrics, int(examples) if images is None else min(int(examples), images)


def _metrics(record: Mapping[str, object]) -> dict[str, float]:
    metrics = {}
    for name, value in record.items():
        try:
            metrics[name] = float(value) if isinstance(value, int | float) else math.nan
        except OverflowError:
            metrics[name] = math.inf
        if not abs(metrics[name]) <= MAX_METRIC:
            raise BadReplyError(f"metric {name} is {str(value)[:100]}")
    return metrics


def _shared(
    record: ArrayRecord, schemas: Schemas, form: Form, received: np.ndarray | None
) -> np.ndarray:
    arrays = {}
    for name, (dtype, size) in form.items():
        arrays[name] = checked_array(record, name, dtype, size)
        if arrays[name].shape != (size,):
            raise BadReplyError(f"{name} of shape {arrays[name].shape} instead of ({size},)")
    state = schemas.unpack_trained(arrays, received)
    if schemas.sends_updates:  # finite codes and scales may decode to values that are not
        _demand_finite(schemas.reply, state)
    for span, is_variance in schemas.shared.statistics:
        if is_variance and state[span].min(initial=0) < 0:
            raise BadReplyError(f"{schemas.reply} holds variances below 0")
    return state


def checked_array(record: ArrayRecord, name: str, dtype: np.dtype, size: int) -> np.ndarray:
    """One array of a reply.

    Args:
        size: values that it may have at most.

    Raises:
        BadReplyError: it is larger, cannot be decoded, has another type, or is not finite.
    """
    array = record[name]
    # Measured before it is decoded: a reply of a hundred times the size is not unpacked.
    most = dtype.itemsize * size + HEADER
    if size_in_bytes(array) > most:
        raise BadReplyError(f"{name} of {size_in_bytes(array)} bytes, at most {most} expected")
    try:
        values = array.numpy()
    except Exception as error:  # whatever numpy raises at a stranger's bytes
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BadReplyError(f"{name} cannot be decoded: {why}") from None
    if not isinstance(values, np.ndarray):  # numpy makes something else of a zip
        raise BadReplyError(f"{name} cannot be decoded: it is no array")
    if values.dtype != dtype:
        raise BadReplyError(f"{name} is {values.dtype} instead of {dtype}")
    if dtype.kind == "f":
        _demand_finite(name, values)
    return values


def _demand_finite(name: str, values: np.ndarray) -> None:
    if not all_finite(values):
        raise BadReplyError(f"{name} holds values that are not finite")
