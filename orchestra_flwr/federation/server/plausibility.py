"""Whether a reply is plausible: how far it moved the model, compared with the others.

A reply's change of the model that was sent is measured by two L2 norms: one of BatchNorm's running
statistics, with variances as standard deviations, and one of all else. Each may be
`federation.max_update` times what is usual, or as large as the model's own. Usual is the median of
the stage's other replies and of the medians of the last stages, or the median of the latter alone,
whichever is more; where there is neither, the model's own norm.

So the bound depends neither on the order of replies nor on the reply that is judged, and fewer than
half of a cohort cannot move it beyond what the others do. The model's own norm is there because
clients that change nothing could otherwise make all others look too large.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np

from orchestra_flwr.federation.exchanges import Task
from orchestra_flwr.federation.messages.replies import BadReplyError, Reply
from orchestra_flwr.federation.messages.schema import Schema
from orchestra_flwr.federation.server.round_report import Moved
from orchestra_flwr.federation.vector_blocks import blocks_of

LAST = 5  # stages whose medians are remembered
WEIGHTS, STATISTICS = "weights", "statistics"

Norms = dict[str, float]  # by WEIGHTS and STATISTICS
Usual = Mapping[str, Sequence[float]]  # the medians of the last stages, by the same


def with_last(usual: Usual, stages: Sequence[Mapping[str, Moved]]) -> dict[str, list[float]]:
    """What is usual after more stages."""
    latest = {kind: [*medians] for kind, medians in usual.items()}
    for moved in stages:
        for kind, norms in moved.items():
            latest[kind] = [*latest.get(kind, ()), norms.median][-LAST:]
    return latest


@dataclass
class Plausibility:
    """Judges the replies of a stage, most of them as they come.

    A reply that exceeds the bound of the model and of the last stages waits in an unnamed file
    until all are there. Memory is a few numbers for each reply.
    """

    schema: Schema  # of the shared state
    times: float | None  # `federation.max_update`; None: all is plausible
    usual: Usual  # medians of the last stages
    sent: Callable[[str], np.ndarray]  # makes the (size,) float32 state as clients received it
    folder: Path | None = None  # for the file; None: the system's

    def __post_init__(self) -> None:
        spans = [span for span, _ in self.schema.statistics]
        starts = [0, *(span.stop for span in spans)]
        ends = [*(span.start for span in spans), self.schema.size]
        self._weights = [*blocks_of(map(slice, starts, ends))]
        self._models: dict[str, Norms] = {}  # what was sent
        self._moved: dict[str, Norms] = {}  # by client
        self._refused: set[str] = set()
        self._waiting: list[tuple[Task, Reply]] = []  # their states are in the file
        self._file: IO[bytes] | None = None

    def is_plausible(self, task: Task, reply: Reply) -> bool:
        """Whether a reply is plausible, whatever the others are; if not, it waits for them.

        Raises:
            OSError: it cannot be written to the file.
        """
        if self.times is None or reply.shared is None:
            return True
        sent = self.sent(reply.model)
        if reply.model not in self._models:
            self._models[reply.model] = self._norms(sent)
        moved = self._moved[task.client] = self._norms(reply.shared, sent)
        if all(norm <= self._bound(reply.model, kind) for kind, norm in moved.items()):
            return True
        if self._file is None:
            self._file = TemporaryFile(dir=self.folder)  # noqa: SIM115 (closed by `late`)
        self._file.write(reply.shared.data)
        self._waiting.append((task, replace(reply, shared=None)))
        return False

    def late(self) -> Iterator[tuple[Task, Reply, BadReplyError | None]]:
        """The replies that waited, in the order of the tasks, and why one is not plausible."""
        if self._file is not None:
            self._file.seek(0)
            for task, reply in self._waiting:
                state = np.frombuffer(self._file.read(4 * self.schema.size), np.float32)
                reason = self._reason(task.client, reply.model)
                if reason is not None:
                    self._refused.add(task.client)
                yield task, replace(reply, shared=state), reason
            self._file.close()

    def moved(self) -> dict[str, Moved]:
        """How far the plausible replies moved the model; {} without any."""
        moved = [norms for client, norms in self._moved.items() if client not in self._refused]
        by_kind = {kind: [norms[kind] for norms in moved] for kind in (moved[0] if moved else ())}
        return {k: Moved(statistics.median(norms), max(norms)) for k, norms in by_kind.items()}

    def _reason(self, client: str, model: str) -> BadReplyError | None:
        for kind, norm in self._moved[client].items():
            others = [norms[kind] for name, norms in self._moved.items() if name != client]
            if not norm <= (bound := self._bound(model, kind, others)):
                return BadReplyError(
                    f"it changed the model's {kind} by {norm:.3g} (L2 norm), at most {bound:.3g} "
                    f"is plausible (federation.max_update={self.times:g})"
                )
        return None

    def _bound(self, model: str, kind: str, others: Sequence[float] | None = None) -> float:
        """The most that a norm may be; without `others`, as far as that is known without them."""
        assert self.times is not None
        own = self._models[model][kind] or self.schema.size**0.5  # a model of zeros has no size
        last = self.usual.get(kind, ())
        usual = [statistics.median(last)] if last else []
        if others is not None:
            usual.append(statistics.median([*last, *others] or [own]))
        return max(own, self.times * max(usual, default=0))

    def _norms(self, state: np.ndarray, before: np.ndarray | None = None) -> Norms:
        """The norms of the difference of two states, or of one state alone."""

        def squared(span: slice, scale: Callable[[np.ndarray], np.ndarray] = np.asarray) -> float:
            other = np.float32(0) if before is None else scale(before[span])
            return _squared_norm(scale(state[span]), other)

        norms = {WEIGHTS: math.sqrt(sum(map(squared, self._weights)))}
        if self.schema.statistics:
            deviations = (
                squared(span, np.sqrt) if is_variance else squared(span)
                for span, is_variance in self.schema.statistics
            )
            norms[STATISTICS] = math.sqrt(sum(deviations))
        return norms


def _squared_norm(values: np.ndarray, others: np.ndarray | np.float32) -> float:
    """Of the difference of float32 vectors; in float64 only where that of float32 is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = values - others
        square = float(np.einsum("i,i->", difference, difference))  # BLAS: bits vary by threads
    if math.isfinite(square):
        return square
    return float(np.square(np.subtract(values, others, dtype=np.float64)).sum())
