"""Keys of earlier versions, on command lines and in run folders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

RENAMED = {
    "federation.merge": "merging",
    "federation.fedu_threshold": "merging.threshold",
    "federation.fedema_lambda": "merging.scale",
    "federation.fedema_mu": "merging.first_mu",
    "training.momentum": "optimizer.momentum",
    "training.weight_decay": "optimizer.weight_decay",
    "ray.workers": "engine.workers",
    "ray.gpus_per_client": "engine.gpus_per_client",
    "ray.address": "engine.address",
}
MERGING_OPTIONS = {
    "fedu": {"fedu_threshold": "threshold"},
    "fedema": {"fedema_lambda": "scale", "fedema_mu": "first_mu"},
}


def renamed(overrides: Sequence[str]) -> list[str]:
    """Overrides with today's keys."""
    return [_renamed(override) for override in overrides]


def _renamed(override: str) -> str:
    key, equals, value = override.partition("=")
    name = key.lstrip("+~")
    return key[: len(key) - len(name)] + RENAMED.get(name, name) + equals + value


def migrated(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration that version 0.1 saved, as today's version would have saved it."""
    values = {section: dict(v) if isinstance(v, dict) else v for section, v in values.items()}
    federation, training = values.get("federation", {}), values.get("training", {})
    if "merge" in federation:
        name = federation.pop("merge")
        old = {k: federation.pop(k) for k in list(federation) if k.startswith("fed")}
        options = {new: old[k] for k, new in MERGING_OPTIONS.get(name, {}).items() if k in old}
        values["merging"] = {"name": name, **options}
    if "momentum" in training:
        options = {key: training.pop(key) for key in ("momentum", "weight_decay")}
        values["optimizer"] = {"name": "sgd", **options}
    if isinstance(values.get("engine"), str):
        ray = values.pop("ray", {})
        options = ray if values["engine"] == "ray" else {}
        values["engine"] = {"name": values["engine"], **options}
    if values.get("data", {}).get("name") == "digits":
        for key in ("root", "cache"):
            values["data"].pop(key, None)
    if values.get("partition", {}).get("name") in ("iid", "by_class"):
        values["partition"].pop("alpha", None)
    if values.get("method", {}).get("name") == "specloss" and "clustering" in values:
        values["method"].setdefault("outputs", values["clustering"].get("global_clusters"))
    return values
