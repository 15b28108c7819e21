"""Flower's records as what a channel carries: a JSON header, and the arrays' bytes beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Encoded = tuple[dict[str, Any], list[bytes]]


def encode(content: RecordDict) -> Encoded:
    """The header and the bytes of a message's content."""
    blobs: list[bytes] = []
    arrays: dict[str, dict[str, dict[str, Any]]] = {}
    for key, record in content.array_records.items():
        arrays[key] = {}
        for name, array in record.items():
            arrays[key][name] = {
                "dtype": array.dtype,
                "shape": list(array.shape),
                "stype": array.stype,
            }
            blobs.append(array.data)
    return {
        "arrays": arrays,
        "config": {key: dict(record) for key, record in content.config_records.items()},
        "metrics": {key: dict(record) for key, record in content.metric_records.items()},
    }, blobs


def decode(header: dict[str, Any], blobs: Sequence[bytes]) -> RecordDict:
    """The content that :func:`encode` took apart."""
    remaining = iter(blobs)
    return RecordDict(
        {
            **{key: _arrays(metadata, remaining) for key, metadata in header["arrays"].items()},
            **{key: ConfigRecord(values) for key, values in header["config"].items()},
            **{key: MetricRecord(values) for key, values in header["metrics"].items()},
        }
    )


def _arrays(metadata: dict[str, dict[str, Any]], blobs: Iterator[bytes]) -> ArrayRecord:
    return ArrayRecord(
        {
            name: Array(array["dtype"], tuple(array["shape"]), array["stype"], next(blobs))
            for name, array in metadata.items()
        }
    )
