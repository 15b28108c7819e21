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

    With another set for the same round a server could subtract one sum from the other. Since the
    server names runs as it likes, there is also one set for each round of all runs that have the
    same origin in it. The same set may be confirmed again, in another attempt. A set is on the disk
    before it is signed.

    Args:
        file: where it is kept; None: only in memory. Earlier versions wrote no origins.

    Raises:
        ValueError: the file is damaged.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._digests: dict[tuple[str, int], str] = {}  # by run or origin, and round
        if file is None:
            return
        try:
            for line in read_whole_lines(file):
                run, round_, digest, *origin = json.loads(line)
                keys = [(str(name), int(round_)) for name in (run, *origin)]
                self._digests |= dict.fromkeys(keys, str(digest))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{file}: this client's record of sums is damaged: {error}") from error

    def confirm(self, occasion: Occasion, survivors: Sequence[str], origin: str = "") -> None:
        """Records a set, unless it is there.

        Args:
            origin: as for :meth:`SumClient.mask`; "": nothing is known of it.

        Raises:
            SumRefusedError: another one is there.
            OSError: it cannot be written.
        """
        run, round_, digest = occasion.run, occasion.round, names_digest(survivors)
        why = "with other clients: the difference of the two would be a few clients' updates"
        if self._digests.get((run, round_), digest) != digest:
            raise SumRefusedError(f"the sum of round {round_} was confirmed {why}")
        if self._digests.get((origin, round_), digest) != digest:
            raise SumRefusedError(
                f"a sum of round {round_} from the same model was confirmed, in another run, {why}"
                "; a run with another seed= begins otherwise"
            )
        origins = [origin] if origin else []
        keys = [(name, round_) for name in (run, *origins)]
        if self._file is not None and not self._digests.keys() >= {*keys}:
            line = json.dumps([run, round_, digest, *origins])
            append_durably(self._file, f"{line}\n".encode())
        self._digests |= dict.fromkeys(keys, digest)
