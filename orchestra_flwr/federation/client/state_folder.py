"""What clients keep between rounds, on their own disk."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from orchestra_flwr.files import write_atomically
from orchestra_flwr.merging import ClientState

SUFFIX = ".safetensors"


class ClientStateFolder:
    """A client's state after each of its last rounds: `<folder>/<run>/<round>.safetensors`.

    A round that is asked for once more, because the server was killed in it, starts from the state
    before that round. So the newest state from before the latest round is kept beside the latest,
    and everything older goes, as does the state of other runs.

    Args:
        folder: the client's own.
        run: differs between any two runs.

    Raises:
        ValueError: the run's name, which a server says, is no plain name: it might lead elsewhere.
    """

    def __init__(self, folder: Path, run: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", run):
            raise ValueError(f"run={run!r}: must be a name of letters, digits, - and _")
        self._others = folder
        self._folder = folder / run

    def before(self, round_: int) -> ClientState | None:
        """The state after the client's last round before this one; None if there is none.

        Raises:
            ValueError: the file is damaged.
        """
        earlier = [number for number in self._rounds() if number < round_]
        if not earlier:
            return None
        path = self._path(max(earlier))
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                metadata = file.metadata()  # "figures" until version 0.1
                values = json.loads(metadata.get("values") or metadata["figures"])
                return ClientState(tensors, values)
        except (OSError, SafetensorError, TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path}: this client's state is damaged: {error}") from error

    def save(self, round_: int, state: ClientState) -> None:
        """Writes the state after a round, whole or not at all, and drops what is not needed.

        Raises:
            OSError: names the file, which is as it was.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.cpu().contiguous() for name, tensor in state.tensors.items()}
        values = {"values": json.dumps(dict(state.values))}
        write_atomically(self._path(round_), save(tensors, values))
        earlier = [number for number in self._rounds() if number < round_]
        for number in self._rounds():
            if number not in (round_, max(earlier, default=None)):
                self._path(number).unlink()
        for other in self._others.iterdir():
            if other != self._folder:
                shutil.rmtree(other)

    def _rounds(self) -> list[int]:
        return [int(p.stem) for p in self._folder.glob(f"*{SUFFIX}") if p.stem.isdigit()]

    def _path(self, round_: int) -> Path:
        return self._folder / f"{round_}{SUFFIX}"
