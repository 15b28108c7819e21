"""The one file from which a run goes on: written whole or not at all, read without pickle."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from orchestra_flwr.federation.report import FederationError
from orchestra_flwr.files import replacing, write_atomically
from orchestra_flwr.methods import Method, Role

FILE = "state.safetensors"
KEY_FILE = "noise.key"
RUN_FILE = "run.id"
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
        drawn: [clients, cohort, rounds] of the rounds so far that ended with noise.
    """

    round: int
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    smallest_cluster: int | None = None
    drawn: list[list[int]] = field(default_factory=list)


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / FILE) as temporary:
            save_file(tensors, temporary, metadata={"position": json.dumps(asdict(position))})
    except Exception as error:  # safetensors raises its own type when a disk is full
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


def run_id(folder: Path) -> str:
    """What tells this run from all others, however often it is resumed; made when first asked.

    Raises:
        FederationError: the file cannot be written or read.
    """
    path = folder / RUN_FILE
    try:
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, secrets.token_hex(8).encode())
        return path.read_text()
    except OSError as error:
        raise FederationError(f"cannot use the run's id in {path}: {error}") from error


def noise_key(folder: Path) -> bytes:
    """The run's secret key, from which its noise and its cohorts are drawn; made when first asked.

    It comes from the operating system, stands in a file of this folder that only its owner may
    read, and nowhere else: whoever has it can take the noise off again. A resumed run finds it
    there and ends in the same bits; :func:`forget_noise_key` removes it when the run is over.

    Raises:
        FederationError: the file cannot be written or read, or is damaged.
    """
    path = folder / KEY_FILE
    try:
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, secrets.token_hex(32).encode(), mode=0o600)
        key = bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise FederationError(f"cannot use the key of the noise in {path}: {error}") from error
    if len(key) != 32:
        raise FederationError(f"cannot use the key of the noise in {path}: it is damaged")
    return key


def forget_noise_key(folder: Path) -> None:
    """Removes the run's key: nobody can take the noise off any more."""
    (folder / KEY_FILE).unlink(missing_ok=True)
