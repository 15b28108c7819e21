"""`encoder.json`, the description beside an encoder's weights: written, checked and read."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestra_flwr.files import encoder_file, read_json, write_atomically

MAX_DESCRIPTION = 2**20  # bytes; a run writes some 2,000
REMEDY = "copy it again, or write it anew with resume=<its run folder>"


def write_description(file: Path, described: Mapping[str, Any]) -> None:
    """Writes a description with its checksum.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    checked = {**described, "sha256": _digest_of(described)}
    write_atomically(file, (json.dumps(checked, indent=2) + "\n").encode())


def read_description(file: Path) -> dict[str, Any]:
    """The `spec` and `about` of an encoder; a description of version 0.1 has no checksums.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    try:
        described = read_json(file, MAX_DESCRIPTION)
        spec, digest = described["spec"], described.pop("sha256", None)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{file} is damaged: it describes no encoder; {REMEDY}") from error
    checked = digest is not None or "weights_sha256" in described
    if checked and digest != _digest_of(described):
        raise ValueError(f"{file} is damaged: its checksum is wrong; {REMEDY}")
    if not (isinstance(spec, dict) and isinstance(described.setdefault("about", {}), dict)):
        raise ValueError(f"{file} is damaged: it describes no encoder; {REMEDY}")
    return described


def has_frozen_norms(path: str | Path) -> bool:
    """Whether BatchNorm's statistics stayed as they were in the run of a saved encoder.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    described = read_description(encoder_file(path).with_suffix(".json"))
    model = described["spec"].get("model")
    return isinstance(model, dict) and model.get("batch_norm") == "frozen"


def _digest_of(description: Mapping[str, Any]) -> str:
    """The digest of the values, whatever the layout of the file."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
