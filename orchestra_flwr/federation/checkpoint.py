"""The one file from which a run goes on: written whole or not at all, read without pickle."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from orchestra_flwr.federation.strategy import FederationError
from orchestra_flwr.methods import Method, Role

FILE = "state.safetensors"
TRAVELLING = (Role.SHARED, Role.SERVER)


@dataclass(frozen=True)
class Position:
    """Where a run stands.

    Attributes:
        round: the last finished round; 0 after the first, clustering-only one.
        seconds: wall time spent so far, in all sessions.
        bytes_up: of arrays received so far.
        bytes_down: of arrays sent so far.
        smallest_cluster: the smallest that any client sent so far; None without any.
    """

    round: int
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    smallest_cluster: int | None = None


def save_checkpoint(folder: Path, method: Method, position: Position) -> None:
    """Replaces the folder's checkpoint atomically; on an error the old one stays.

    Raises:
        FederationError: the file cannot be written, for example on a full disk.
    """
    tensors = {
        name: tensor.cpu().contiguous()
        for role in TRAVELLING
        for name, tensor in method.state(role).items()
    }
    partial = folder / f"{FILE}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, metadata={"position": json.dumps(asdict(position))})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(folder / FILE)
    except Exception as error:  # safetensors raises its own type when a disk is full
        partial.unlink(missing_ok=True)
        raise FederationError(f"cannot write the checkpoint in {folder}: {error}") from error


def load_checkpoint(folder: Path, method: Method) -> Position | None:
    """Restores a method's shared and server state; None if there is no checkpoint yet.

    Raises:
        FederationError: the file is damaged or holds another model.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    state = {name: t for role in TRAVELLING for name, t in method.state(role).items()}
    try:
        with safe_open(path, framework="pt") as file:
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            position = Position(**json.loads(file.metadata()["position"]))
        if {n: t.shape for n, t in saved.items()} != {n: t.shape for n, t in state.items()}:
            raise ValueError("it holds another model")
    except Exception as error:
        raise FederationError(f"cannot resume from {path}: {error}") from error
    for name, tensor in state.items():
        tensor.copy_(saved[name])
    return position
