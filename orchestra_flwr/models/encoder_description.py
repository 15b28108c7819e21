"""`encoder.json`, the description beside an encoder's weights: written, checked and read."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestra_flwr.files import encoder_file, read_json, sync_folder, write_atomically
from orchestra_flwr.fingerprints import file_sha256

MAX_DESCRIPTION = 2**20  # bytes; a run writes some 2,000
REMEDY = "copy it again, or write it anew with resume=<its run folder>"


def write_description(file: Path, described: Mapping[str, Any]) -> None:
    """Writes a description with its checksum.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    checked = {**described, "sha256": _digest_of(described)}
    write_atomically(file, (json.dumps(checked, indent=2) + "\n").encode())


def upcoming(file: Path) -> Path:
    """Where the new description lies while its weights take the place of the old ones.

    Two files cannot be replaced in one step: whoever is killed between them would leave weights
    that no description fits. So the new one is written first, here, and given its name last, by
    :func:`take_upcoming`; in between, :func:`read_description` reads the one that fits.
    """
    return file.with_name(f"{file.name}.next")


def take_upcoming(file: Path) -> None:
    """Gives the new description its name, once its weights have theirs.

    Raises:
        OSError: it cannot be renamed; it is read where it is.
    """
    upcoming(file).replace(file)
    sync_folder(file.parent)


def read_description(file: Path) -> dict[str, Any]:
    """The `spec` and `about` of an encoder; a description of version 0.1 has no checksums.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    if (new := upcoming(file)).is_file():
        with suppress(OSError, ValueError):
            described = _read(new)
            if described.get("weights_sha256") == file_sha256(file.with_suffix(".safetensors")):
                return described
    return _read(file)


def _read(file: Path) -> dict[str, Any]:
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
