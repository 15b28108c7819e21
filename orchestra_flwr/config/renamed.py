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
    federation, training = _section(values, "federation"), _section(values, "training")
    if "merge" in federation:
        name = federation.pop("merge")
        old = {k: federation.pop(k) for k in list(federation) if k.startswith("fed")}
        known = MERGING_OPTIONS.get(str(name), {})
        options = {new: old[k] for k, new in known.items() if k in old}
        values["merging"] = {"name": name, **options}
    if "momentum" in training:
        names = ("momentum", "weight_decay")
        options = {name: training.pop(name) for name in names if name in training}
        values["optimizer"] = {"name": "sgd", **options}
    if isinstance(values.get("engine"), str):
        ray = _section(values, "ray")
        values.pop("ray", None)
        options = ray if values["engine"] == "ray" else {}
        values["engine"] = {"name": values["engine"], **options}
    if _section(values, "data").get("name") == "digits":
        for key in ("root", "cache"):
            values["data"].pop(key, None)
    if _section(values, "partition").get("name") in ("iid", "by_class"):
        values["partition"].pop("alpha", None)
    clustering = _section(values, "clustering")
    if _section(values, "method").get("name") == "specloss" and clustering:
        values["method"].setdefault("outputs", clustering.get("global_clusters"))
    return values


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    """A section as it stands; what is none is refused when the configuration is checked."""
    section = values.get(name)
    return section if isinstance(section, dict) else {}
