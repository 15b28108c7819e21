"""What clients keep between rounds, on their own disk."""

import json
import re
import shutil
from pathlib import Path

from orchestra_flwr.config import KEPT_ROUNDS
from orchestra_flwr.files import PLAIN_NAME, make_private_folder
from orchestra_flwr.merging import ClientState
from orchestra_flwr.tensor_files import load_tensors, save_tensors

SUFFIX = ".safetensors"


class ClientStateFolder:
    """A client's state after each of its last rounds: `<folder>/<run>/<round>.safetensors`.

    A round that is repeated, because the server was killed in it or went back to one of its
    checkpoints, starts from the state before that round. So the states after the last rounds are
    kept, with the newest one from before them (or more, see :meth:`save`) and from before the
    newest of all; everything else is deleted, as is the state of other runs. After a round's later
    stages the file is `<round>-<stage>.safetensors`.

    Args:
        folder: the client's own.
        run: differs between any two runs.

    Raises:
        ValueError: the run's name, which a server sends, is not plain: it might lead elsewhere.
    """

    def __init__(self, folder: Path, run: str) -> None:
        if not PLAIN_NAME.fullmatch(run):
            raise ValueError(f"run={run!r}: must be a name of letters, digits, - and _")
        self._others = folder
        self._folder = folder / run

    def round_before(self, round_: int, stage: int = 0) -> int | None:
        """The round of the state that :meth:`before` returns; None if there is none."""
        earlier = self._earlier(round_, stage)
        return max(earlier)[0] if earlier else None

    def before(self, round_: int, stage: int = 0) -> ClientState | None:
        """The state after the client's last training before this stage; None if there is none.

        Raises:
            ValueError: the file is damaged.
        """
        earlier = self._earlier(round_, stage)
        if not earlier:
            return None
        path = self._path(max(earlier))
        try:
            tensors, texts = load_tensors(path)
            return ClientState(tensors, json.loads(texts["values"]))
        except (OSError, TypeError, KeyError, ValueError) as error:
            raise ValueError(
                f"{path}: this client's state is damaged: {error}; put back a copy of it, "
                "or remove it: then this client starts the run afresh"
            ) from error

    def save(
        self, round_: int, state: ClientState, stage: int = 0, *, from_before: int = 1
    ) -> None:
        """Writes the state after a stage, whole or not at all, and drops what is not needed.

        Args:
            from_before: how many of the newest from before the last rounds stay. Two where a result
                may be used rounds later than it was begun: if that is undone, the client begins
                once more with the state before it.

        Raises:
            OSError: names the file, which is unchanged.
        """
        for folder in (self._others, self._folder):
            make_private_folder(folder)
        values = {"values": json.dumps(dict(state.values))}
        save_tensors(self._path((round_, stage)), state.tensors, values, mode=0o600)
        earlier = sorted(self._earlier(round_, stage))
        last = [*dict(earlier).items()]  # the last stage of each round
        old = [when for when in last if when[0] <= round_ - KEPT_ROUNDS]
        needed = {(round_, stage), *last} - {*old[:-from_before]}
        for when in self._saved():
            if when not in needed:
                self._path(when).unlink()
        for other in self._others.iterdir():
            if other != self._folder and other.is_dir():  # a system may put files of its own there
                shutil.rmtree(other)

    def _earlier(self, round_: int, stage: int) -> list[tuple[int, int]]:
        return [when for when in self._saved() if when < (round_, stage)]

    def _saved(self) -> list[tuple[int, int]]:
        """Round and stage of every file."""
        paths = self._folder.glob(f"*{SUFFIX}")
        # A hostile server may ask for rounds before the first.
        names = (re.fullmatch(r"(-?\d+)(?:-(-?\d+))?", path.stem) for path in paths)
        return [(int(name[1]), int(name[2] or 0)) for name in names if name]

    def _path(self, when: tuple[int, int]) -> Path:
        round_, stage = when
        return self._folder / f"{round_}{f'-{stage}' if stage else ''}{SUFFIX}"
