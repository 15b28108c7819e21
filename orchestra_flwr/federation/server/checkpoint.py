"""The file from which a run goes on: written whole or not at all, read without pickle."""

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from orchestra_flwr.config.sections import FederationConfig
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import with_prefix
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.federation.server.plausibility import LAST, with_last
from orchestra_flwr.federation.server.round_report import RoundReport
from orchestra_flwr.federation.server.run_encoders import BEST, BestEncoder
from orchestra_flwr.files import make_private_folder, write_atomically
from orchestra_flwr.reporting import folder_record
from orchestra_flwr.reporting.kept_checkpoints import LATEST, drop_old, keep_latest
from orchestra_flwr.tensor_files import load_tensors, save_tensors

EXCHANGE = "exchange/"  # what the names of an exchange's arrays in a checkpoint begin with
KEY_FILE = "noise.key"
RUN_FILE = "run.id"
SUM_FILE = "sum.round"
LEARNED_ROUNDS = 3  # before there is a deadline: one alone may have asked only quick clients


@dataclass(frozen=True)
class Position:
    """Where a run stands."""

    round: int  # the last finished one; 0 after the first, which trains nothing
    seconds: float = 0.0  # wall time spent so far, in all sessions
    bytes_up: int = 0  # of arrays received so far
    bytes_down: int = 0  # of arrays sent so far
    smallest_cluster: int | None = None  # images behind the smallest row so far; None without any
    # [clients, cohort, rounds] of the rounds so far that ended with noise
    drawn: list[list[int]] = field(default_factory=list)
    # All that were ever there, in the order of their numbers
    clients: list[str] = field(default_factory=list)
    # What the exchange remembers; arrays only in dictionaries, by names
    exchange: dict[str, Any] = field(default_factory=dict)
    # Of real clients: the latest rounds in which their replies and their rows were used
    last_used: dict[str, dict[str, int]] = field(default_factory=dict)
    # How far replies moved the model in the last stages
    usual: dict[str, list[float]] = field(default_factory=dict)
    # Round and score of the best encoder so far, and whether clients gave it; empty without any
    best: dict[str, float] = field(default_factory=dict)
    # Clients of a simulation that have had the frozen weights
    holders: list[str] = field(default_factory=list)
    # Seconds of the slowest good replies of the last rounds
    slowest: list[float] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)  # clients whose work has counted so far
    clock: dict[str, Any] = field(default_factory=dict)  # the virtual time, where there is one

    def after(self, number: int, report: RoundReport, seconds: float) -> Self:
        """The position after one more round.

        Args:
            seconds: that it took, with its evaluation.
        """
        smallest = (self.smallest_cluster, report.smallest_group)
        # Clients that do not train, as in round 0, are faster than any that do.
        slowest = [] if report.slowest is None or number == 0 else [report.slowest]
        return replace(
            self,
            round=number,
            seconds=self.seconds + seconds,
            bytes_up=self.bytes_up + report.bytes_up,
            bytes_down=self.bytes_down + report.bytes_down,
            usual=with_last(self.usual, report.moved),
            slowest=[*self.slowest, *slowest][-LAST:],
            smallest_cluster=min((size for size in smallest if size is not None), default=None),
        )

    def with_counted(self, report: RoundReport) -> Self:
        """With the clients whose work has counted in one more round."""
        counted = {*self.counted, *report.trained}
        return replace(self, counted=[client for client in self.clients if client in counted])

    def limit(self, federation: FederationConfig) -> float:
        """Seconds after which a stage of the next round waits no longer."""
        if federation.deadline is None or len(self.slowest) < LEARNED_ROUNDS:
            return federation.round_timeout
        return min(federation.round_timeout, federation.deadline * max(self.slowest))


def save_checkpoint(
    folder: Path,
    models: Models,
    position: Position,
    record: str | None = None,
    best: BestEncoder | None = None,
) -> None:
    """Replaces the folder's latest checkpoint atomically; on an error it stays.

    The checkpoints of the round before, and of some before that, are kept under their numbers.

    Args:
        record: what :class:`orchestra_flwr.reporting.folder_record.FolderRecord` says of the other
            files of the run; None: nothing is known of them.
        best: the best encoder so far, that of `position.best`; None: the run keeps the last one.

    Raises:
        FederationError: the file cannot be written, for example on a full disk.
    """
    exchange, arrays = _without_arrays(position.exchange)
    values = {"position": json.dumps(asdict(replace(position, exchange=exchange)))}
    if record is not None:
        values[folder_record.VALUE] = record
    kept = best.tensors() if best else {}
    kept |= arrays
    try:
        make_private_folder(folder)
        keep_latest(folder, position.round - 1)
        save_tensors(folder / LATEST, models.tensors() | kept, values)
        drop_old(folder, position.round)
        (folder / SUM_FILE).unlink(missing_ok=True)
    except Exception as error:  # safetensors raises its own type when a disk is full
        raise FederationError(f"cannot write the checkpoint in {folder}: {error}") from error


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint from which the run goes on."""
    return (folder / LATEST).is_file()


def load_checkpoint(
    folder: Path, models: Models, best: BestEncoder | None = None
) -> Position | None:
    """Restores the server's models and the best encoder; None if there is no checkpoint yet.

    Raises:
        FederationError: the file is damaged or holds other models.
    """
    path = folder / LATEST
    if not has_checkpoint(folder):
        return None
    try:
        saved, values = load_tensors(path)
        position = _position(json.loads(values["position"]))
        beside = (BEST, EXCHANGE)
        models.load_tensors({n: t for n, t in saved.items() if not n.startswith(beside)})
        _put_arrays_back(position.exchange, saved)
        if best:
            best.load(position.best, saved)
    except Exception as error:
        raise FederationError(f"cannot resume from {path}: {error}") from error
    return position


def _without_arrays(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An exchange's state with null in place of the arrays in its dictionaries, and these as
    tensors, whose order a file does not keep."""
    plain = dict(state)
    arrays: dict[str, Tensor] = {}
    for key, value in state.items():
        entries = value if isinstance(value, dict) else {}
        held = {name: value for name, value in entries.items() if isinstance(value, np.ndarray)}
        if held:
            plain[key] = {name: None if name in held else value for name, value in entries.items()}
        arrays |= {f"{EXCHANGE}{key}/{name}": torch.from_numpy(a) for name, a in held.items()}
    return plain, arrays


def _put_arrays_back(state: dict[str, Any], saved: Mapping[str, Tensor]) -> None:
    for name, tensor in with_prefix(saved, EXCHANGE).items():
        key, _, inner = name.partition("/")
        state[key][inner] = tensor.numpy()


def _position(values: dict[str, Any]) -> Position:
    last_used = values.pop("known", {})  # its name until version 0.3
    position = Position(**{"last_used": last_used, **values})
    if position.round > 0 and not position.counted:
        # Until version 0.4 they were noted only where rounds end early: nobody must be blamed.
        return replace(position, counted=list(position.clients))
    return position


def note_sum(folder: Path, round_: int) -> None:
    """Notes that clients are about to confirm the list of a round's sum, until it is over.

    Raises:
        FederationError: the file cannot be written.
    """
    try:
        write_atomically(folder / SUM_FILE, str(round_).encode())
    except OSError as error:
        raise FederationError(f"cannot note the sum of round {round_}: {error}") from error


def noted_sum(folder: Path) -> int | None:
    """The round whose list clients may have confirmed, and which has no checkpoint; None: none."""
    try:
        return int((folder / SUM_FILE).read_text())
    except (OSError, ValueError):
        return None


def run_id(folder: Path) -> str:
    """An id that tells this run from all others, and stays when it is resumed; made at first use.

    Raises:
        FederationError: the file cannot be written or read.
    """
    return _drawn_once(folder / RUN_FILE, 8, "the run's id")


def noise_key(folder: Path) -> bytes:
    """The run's secret key, from which its noise and its cohorts are drawn; made when first asked.

    It comes from the operating system, stands in a file of this folder that only its owner may
    read, and nowhere else: with it the noise can be subtracted again. A resumed run finds it
    there and ends in the same bits; :func:`forget_noise_key` removes it when the run is over.

    Raises:
        FederationError: the file cannot be written or read, or is damaged.
    """
    path = folder / KEY_FILE
    text = _drawn_once(path, 32, "the key of the noise")
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise FederationError(f"cannot use the key of the noise in {path}: it is damaged")
    return bytes.fromhex(text)


def _drawn_once(path: Path, size: int, what: str) -> str:
    """So many of the system's random bytes, in hexadecimal; a file keeps them for later calls."""
    try:
        if not path.is_file():
            make_private_folder(path.parent)
            write_atomically(path, secrets.token_hex(size).encode(), mode=0o600)
        return path.read_text()
    except (OSError, ValueError) as error:
        raise FederationError(f"cannot use {what} in {path}: {error}") from error


def forget_noise_key(folder: Path) -> None:
    """Removes the run's key: nobody can take the noise off any more."""
    (folder / KEY_FILE).unlink(missing_ok=True)
