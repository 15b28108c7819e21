"""The progress of a run: a live display on a terminal, plain lines elsewhere."""

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from orchestra_flwr.config import LogFormat
from orchestra_flwr.console.json_lines import json_line
from orchestra_flwr.console.phases import phase
from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import duration, percent
from orchestra_flwr.files import finite
from orchestra_flwr.reporting.summary_table import print_summary

PLAIN_INTERVAL = 30  # seconds between lines within a round
SCORING = "scoring"  # the label of a round's last part, where clients score its average


class RoundOutcome(NamedTuple):
    """The facts that are shown when a round has ended.

    Attributes:
        round: its number.
        loss: the parts of the loss by name, and their `total`.
        scores: `knn` and `linear` as fractions; None where the round was not evaluated.
        seconds: how long it took.
        dropped: a line for every dropped client: its name and the reason.
        virtual_seconds: since the run began, on its virtual clock; None without one.
    """

    round: int
    loss: Mapping[str, float]
    scores: Mapping[str, float] | None
    seconds: float
    dropped: Sequence[str]
    virtual_seconds: float | None = None


def make_progress(
    mode: Literal["auto", "live", "plain", "off"],
    rounds: int,
    console: Console | None = None,
    *,
    timed: bool = False,
    format: LogFormat = "text",
) -> "Progress":
    """The display for `logging.progress` and `logging.format`.

    Args:
        mode: auto is live where stdout is a terminal and plain elsewhere.
        rounds: the number of the last round.
        console: where to write; stdout if None.
        timed: whether lines begin with the time of day, as those of a server do.
        format: json: lines for programs, whatever the mode.
    """
    if format == "json":
        return JsonProgress(rounds)
    if mode == "auto":
        terminal = sys.stdout.isatty() if console is None else console.is_terminal
        mode = "live" if terminal and os.environ.get("TERM") != "dumb" else "plain"
    if mode == "live":
        return LiveProgress(rounds, console or Console(force_terminal=True), timed=timed)
    if mode == "plain":
        return PlainProgress(rounds, console.file if console else None, timed=timed)
    return Progress(rounds)


class Progress:
    """Follows a run and shows nothing; the displays derive from it. A context manager."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.round = 0
        self.label = ""
        self.cohort = self.done = self.failed = 0
        self.knn: float | None = None
        self._began: float | None = None  # start of the first round that the time left is based on
        self._finished = 0
        self._phase = ExitStack()
        # Of the part before that one: label, cohort, done and failed.
        self._before_scoring: tuple[str, int, int, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.phase_ended()

    def round_started(self, round: int, cohort: int, label: str) -> None:
        """A round, or a part of it, begins; `label` says what it does in a word or two."""
        if label == SCORING and round == self.round and self.label:
            self._before_scoring = (self.label, self.cohort, self.done, self.failed)
        self.round, self.cohort, self.label = round, cohort, label
        self.done = self.failed = 0
        if self._began is None and round > 0:  # round 0 only clusters and is shorter
            self._began = time.monotonic()

    def client_asked(self, client: str) -> None:
        """A client is sent a model, and works until :meth:`client_done`."""

    def client_came(self, client: str, good: bool) -> None:
        """A client's reply has come, and waits until :meth:`client_done`; `good`: no error."""

    def client_done(self, client: str, ok: bool) -> None:
        """A client of the cohort has replied; `ok`: whether its reply is usable."""
        self.done += 1
        self.failed += not ok

    def images_evaluated(self, backbone: str, done: int, total: int) -> None:
        """The server has made features of `done` of `total` images with a backbone."""

    def round_finished(self, outcome: RoundOutcome) -> None:
        """A round has ended; its line shows what was done before its average was scored."""
        if self._before_scoring is not None:
            self.label, self.cohort, self.done, self.failed = self._before_scoring
            self._before_scoring = None
        self._finished += outcome.round > 0
        if outcome.scores and "knn" in outcome.scores:
            self.knn = outcome.scores["knn"]

    def message(self, text: str) -> None:
        """Shows a line of text."""

    def finished(self, summary: Mapping[str, Any], folder: Path) -> None:
        """The run and its display are over: prints the table."""
        print_summary(summary, folder)

    def phase(self, text: str) -> AbstractContextManager[None]:
        """Shows what happens in a block, such as "starting Ray", if that takes long."""
        return nullcontext()

    def phase_started(self, text: str) -> None:
        """Begins a :meth:`phase` that :meth:`phase_ended` ends, for events in another process."""
        self.phase_ended()
        self._phase.enter_context(self.phase(text))

    def phase_ended(self) -> None:
        """Ends what :meth:`phase_started` began."""
        self._phase.close()

    def _position(self, label: str | None = None) -> str:
        """The round (0 trains nothing) and what happens in it."""
        what = self.label if label is None else label
        if not self.round:
            return f"before training: {what}" if what else "before training"
        return f"round {self.round}/{self.rounds}" + (f" {what}" if what else "")

    def _clients(self) -> str:
        if not self.cohort:  # nobody was asked, as before training
            return ""
        return f"{self.done}/{self.cohort} clients" + (
            f" ({self.failed} failed)" if self.failed else ""
        )

    def _ended(self, outcome: RoundOutcome, *replies: str) -> Iterator[str]:
        """The results of a round, its seconds if it was timed, and its virtual time if any."""
        yield from (self._position(), *replies, _losses(outcome.loss), _scores(outcome.scores))
        if outcome.seconds:
            yield duration(outcome.seconds)
        if outcome.virtual_seconds is not None:
            yield f"virtual time {duration(outcome.virtual_seconds)}"

    def _time_left(self) -> str:
        if self._began is None or not self._finished:
            return ""
        # Wall-clock time, so that evaluation between the rounds counts.
        mean = (time.monotonic() - self._began) / self._finished
        left = mean * (self.rounds - self.round)
        return f"{duration(left)} left" if left > 0 else ""


class PlainProgress(Progress):
    """A line a round, and within long rounds one every half minute; for files and CI logs."""

    def __init__(self, rounds: int, file: IO[str] | None = None, *, timed: bool = False) -> None:
        super().__init__(rounds)
        self._file = file
        self._timed = timed
        self._round_began = self._last_line = time.monotonic()

    def round_started(self, round: int, cohort: int, label: str) -> None:
        """Says what begins, until a first round has ended and shown how long one takes."""
        super().round_started(round, cohort, label)
        self._round_began = self._last_line = time.monotonic()
        if not self._finished:  # nobody knows yet how long a round is
            self.phase_started(self._position())

    def client_done(self, client: str, ok: bool) -> None:
        """A line at most every half minute."""
        super().client_done(client, ok)
        if self.done < self.cohort:
            self._throttled(self._position(), self._clients())

    def images_evaluated(self, backbone: str, done: int, total: int) -> None:
        """A line at most every half minute."""
        place = self._position(f"evaluating {backbone}")
        self._throttled(place, f"{done:,}/{total:,} images")

    def _throttled(self, *facts: str) -> None:
        """Prints a line, unless there was one within the last half minute."""
        now = time.monotonic()
        if now - self._last_line >= PLAIN_INTERVAL:
            self._last_line = now
            self.message(_join(*facts, duration(now - self._round_began)))

    def round_finished(self, outcome: RoundOutcome) -> None:
        """One line with what is known about the round, if any; one for each dropped client."""
        super().round_finished(outcome)
        self.phase_ended()
        line = _join(*self._ended(outcome, self._clients()), self._time_left())
        if line != self._position():  # nothing was done before training, as without images
            self.message(line)
        for line in outcome.dropped:
            self.message(f"  dropped: {line}")

    def message(self, text: str) -> None:
        """One line, flushed."""
        print(_now(self._timed) + printable(text), file=self._file, flush=True)

    def phase(self, text: str) -> AbstractContextManager[None]:
        """Lines at growing intervals; ends the phase that a round began."""
        self.phase_ended()
        return phase(text, self.message)


class LiveProgress(Progress):
    """Bars for rounds and clients with the latest metrics; evaluated rounds remain as lines."""

    def __init__(self, rounds: int, console: Console, *, timed: bool = False) -> None:
        super().__init__(rounds)
        self._timed = timed
        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            _Facts(),
            console=console,
        )
        self._rounds_bar = self._bars.add_task("rounds", total=rounds, facts="")
        self._clients_bar = self._bars.add_task("clients", total=None, facts="")
        self._streams: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    def __enter__(self) -> Self:
        streams = {sys.stdout: "stdout", sys.stderr: "stderr"}
        self._bars.start()  # from here on sys.stdout and sys.stderr write above the bars ...
        for handler in _stream_handlers():
            if handler.stream in streams:  # ... and handlers that hold the old ones are redirected
                self._streams.append((handler, handler.stream))
                handler.setStream(getattr(sys, streams[handler.stream]))
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for handler, stream in self._streams:
            handler.setStream(stream)
        self._streams.clear()
        self._bars.stop()

    def round_started(self, round: int, cohort: int, label: str) -> None:
        """Sets both bars."""
        super().round_started(round, cohort, label)
        # After a resume the first round to start is not the run's first.
        self._bars.update(self._rounds_bar, completed=max(0, round - 1))
        self._bars.reset(self._clients_bar, total=cohort)
        self._bars.update(self._clients_bar, description=escape(label) or "clients", facts="")

    def client_done(self, client: str, ok: bool) -> None:
        """Moves the bar of the clients."""
        super().client_done(client, ok)
        failed = f"[red]{self.failed} failed[/]" if self.failed else ""
        self._bars.update(self._clients_bar, completed=self.done, facts=failed)

    def images_evaluated(self, backbone: str, done: int, total: int) -> None:
        """The bar of the clients counts images meanwhile."""
        text = escape(f"evaluating {backbone}")
        self._bars.update(
            self._clients_bar, description=text, completed=done, total=total, facts="images"
        )

    def round_finished(self, outcome: RoundOutcome) -> None:
        """Moves the bar of the rounds; a line where the round was evaluated."""
        super().round_finished(outcome)
        knn = "" if self.knn is None else f"kNN {percent(self.knn)}"
        facts = _join(self._time_left(), _losses(outcome.loss), knn)
        self._bars.update(self._rounds_bar, completed=outcome.round, facts=escape(facts))
        if outcome.scores:
            self.message(_join(*self._ended(outcome)))
        for line in outcome.dropped:
            self.message(f"{self._position()}  dropped: {line}")

    def message(self, text: str) -> None:
        """A line above the bars."""
        line = _now(self._timed) + printable(text)
        self._bars.console.out(line, highlight=False)

    @contextmanager
    def phase(self, text: str) -> Iterator[None]:
        """A bar of its own."""
        bar = self._bars.add_task(escape(text), total=None, facts="")
        try:
            yield
        finally:
            self._bars.remove_task(bar)
            self._bars.refresh()  # otherwise it is drawn once more below the next line


class _Facts(ProgressColumn):
    """The rest of a bar's line: what is cut off first where a terminal is narrow."""

    def render(self, task: Task) -> Text:
        """One line."""
        facts = Text.from_markup(task.fields["facts"], overflow="ellipsis")
        facts.no_wrap = True
        return facts


class JsonProgress(Progress):
    """For programs that collect logs: `logging.format=json`."""

    def round_started(self, round: int, cohort: int, label: str) -> None:
        """A line with the cohort."""
        super().round_started(round, cohort, label)
        self._print("round_started", round=round, cohort=cohort, label=label)

    def round_finished(self, outcome: RoundOutcome) -> None:
        """A line with loss, scores, seconds, and how many clients answered."""
        super().round_finished(outcome)
        replies = {"cohort": self.cohort, "replies": self.done, "failed": self.failed}
        self._print("round_finished", **replies, **outcome._asdict())

    def message(self, text: str) -> None:
        """A line with the text that a person would read."""
        self._print("message", message=text)

    def phase(self, text: str) -> AbstractContextManager[None]:
        """A line; there is none at the end of a phase."""
        self._print("phase_started", phase=text)
        return nullcontext()

    def finished(self, summary: Mapping[str, Any], folder: Path) -> None:
        """A line with the summary."""
        self._print("finished", run_folder=str(folder), summary=summary)

    @staticmethod
    def _print(event: str, **values: Any) -> None:
        print(json_line(event, **finite(values)), flush=True)


def _now(timed: bool) -> str:
    """The beginning of a line: the time of day, or nothing."""
    return time.strftime("%H:%M:%S ") if timed else ""


def _join(*facts: str) -> str:
    return "  ".join(fact for fact in facts if fact)


def _losses(losses: Mapping[str, float]) -> str:
    parts = ", ".join(f"{k} {v:.3f}" for k, v in losses.items() if k != "total")
    if "total" not in losses:
        return parts
    return f"loss {losses['total']:.3f}" + (f" ({parts})" if parts else "")


def _scores(scores: Mapping[str, float] | None) -> str:
    names = {"knn": "kNN", "linear": "linear", "map": "mAP", "accuracy": "classifier"}
    return _join(*(f"{names[k]} {percent(v)}" for k, v in (scores or {}).items() if k in names))


def _stream_handlers() -> list[logging.StreamHandler[TextIO]]:
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict)]
    handlers = (handler for logger in [logging.root, *loggers] for handler in logger.handlers)
    return [h for h in dict.fromkeys(handlers) if isinstance(h, logging.StreamHandler)]
