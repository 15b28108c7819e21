"""Which list of clients a client confirmed in each round, once and for all."""

import json
from collections.abc import Sequence
from pathlib import Path

from orchestra_flwr.files import append_durably, read_whole_lines
from orchestra_flwr.privacy.secure_sums.transcript import Occasion, names_digest


class SumRefusedError(ValueError):
    """A client does not do what the server asks for; its text, for the client alone, says why."""


class Confirmations:
    """Whose vectors a client confirmed: for each round of each run one set, once and for all.

    With another set for the same round a server could subtract one sum from the other. The same
    set may be confirmed again, in another attempt. A set is on the disk before it is signed.

    Args:
        file: where it is kept; None: only in memory.

    Raises:
        ValueError: the file is damaged.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._digests: dict[tuple[str, int], str] = {}
        if file is None:
            return
        try:
            for line in read_whole_lines(file):
                run, round_, digest = json.loads(line)
                self._digests[str(run), int(round_)] = str(digest)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{file}: this client's record of sums is damaged: {error}") from error

    def confirm(self, occasion: Occasion, survivors: Sequence[str]) -> None:
        """Records a set, unless it is there.

        Raises:
            SumRefusedError: another one is there.
            OSError: it cannot be written.
        """
        when, digest = (occasion.run, occasion.round), names_digest(survivors)
        recorded = self._digests.get(when)
        if recorded is None and self._file is not None:
            append_durably(self._file, (json.dumps([*when, digest]) + "\n").encode())
        if self._digests.setdefault(when, digest) != digest:
            raise SumRefusedError(
                f"the sum of round {occasion.round} was confirmed with other clients: the "
                "difference of the two would be a few clients' updates"
            )
