"""The messages of a round: tasks to clients, what comes of their replies, and whether it counts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from orchestra_flwr.console.text import listed
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges import Stage, Task
from orchestra_flwr.federation.exchanges.asynchronous import Asynchronous
from orchestra_flwr.federation.secure_aggregation.secure_strategy import SecureStrategy
from orchestra_flwr.federation.server.checkpoint import note_sum, noted_sum, run_id
from orchestra_flwr.federation.server.members import Members
from orchestra_flwr.federation.server.outstanding_work import OutstandingWork
from orchestra_flwr.federation.server.round import Federation, Round
from orchestra_flwr.federation.server.round_report import Dropped, RoundReport, reasons
from orchestra_flwr.federation.server.strategy import OrchestraStrategy
from orchestra_flwr.federation.server.timeline import Timeline
from orchestra_flwr.flower.streaming_grid import Arrival
from orchestra_flwr.reporting import Progress, RunFolder
from orchestra_flwr.reporting.kept_checkpoints import earlier_rounds
from orchestra_flwr.reporting.progress import SCORING

REVOKED = "its key was revoked"


@dataclass(frozen=True)
class RoundMessages:
    """Sends what a round asks of its clients, and updates the models by the replies."""

    grid: Grid  # yields replies in the order of the messages
    federation: Federation
    members: Members  # who did not answer, or was late, is noted there
    folder: RunFolder
    progress: Progress
    timeline: Timeline | None  # the virtual time of a simulation with a clock
    work: OutstandingWork | None  # of real clients that begin and end when they can
    _late: set[str] = field(default_factory=set, init=False)  # clients, until they are free again

    @property
    def ends_early(self) -> bool:
        """Whether a stage may end before all have answered; without a clock no simulated client
        is late."""
        early = self.federation.config.federation.ends_early and not self.members.is_simulated
        return self.timeline is not None or early

    def leaves_out(self, number: int) -> bool:
        """Whether a round is left out: its sum was begun before the run was stopped.

        Clients confirm one list of clients in a round. If another client is here now, or one is
        away, they would refuse to be in its sum for ever.
        """
        if noted_sum(self.folder.checkpoint) != number:
            return False
        self.progress.message(
            f"round {number} is left out: clients may have confirmed who is in its sum, which they "
            "do once in a round. The model stays as it is"
        )
        return True

    def exchange(self, round_: Round, report: RoundReport) -> None:
        """Runs all stages of a round.

        Raises:
            FederationError: too few clients answered well.
        """
        exchange, models = self.federation.exchange, self.federation.models
        release = self.federation.release
        label = "training" if round_.trains or not release else f"first {release.label}"
        if isinstance(exchange, Asynchronous) and round_.trains and self.work is None:
            exchange.remember(round_.number - 1, models.arrays(models.first))
        for client in self._late & round_.nodes.keys():  # it has ended what nobody waited for
            self._late.discard(client)
            self.federation.on_arrival(client, True)
        for number, stage in enumerate(self._stages(round_)):
            for target, source in stage.copies.items():
                models.copy(source, target)
            if not stage.tasks:
                continue
            if self.work is None or not round_.versions:  # else it was shown when it began
                self.progress.round_started(round_.number, len(stage.tasks), label)
            self._stage(round_, stage, report, number)
        self._after(round_, report)

    def _stages(self, round_: Round) -> Iterator[Stage]:
        """Those of the exchange, which may be of a user's package.

        Raises:
            FederationError: they are no stages, have tasks for others than the cohort, or are none
                that change anything: the run would report rounds in which nothing was trained.
        """
        called = f"exchange={self.federation.config.exchange.name}: stages"
        stages: Iterable[Any] = self.federation.exchange.stages(round_.number, round_.cohort)
        if not isinstance(stages, Iterable):
            raise FederationError(f"{called} must yield Stage objects, and returned {stages!r:.80}")
        clients, idle = set(round_.cohort), True
        for stage in stages:
            if not isinstance(stage, Stage):
                raise FederationError(f"{called} must yield Stage objects, and not {stage!r:.80}")
            for task in stage.tasks:
                if task.client not in clients:
                    raise FederationError(
                        f"{called} has a task for {task.client}, which is not in the round's cohort"
                    )
            idle = idle and not (stage.tasks or stage.copies or stage.mixing)
            yield stage
        if idle and clients:
            raise FederationError(
                f"{called} must give clients tasks, or copy or mix models, and did neither in "
                f"round {round_.number}"
            )

    def _stage(self, round_: Round, stage: Stage, report: RoundReport, number: int) -> None:
        config, timeout = self.federation.config, self.federation.timeout
        if config.privacy.secure_aggregation:
            secure = SecureStrategy(self.federation, round_, stage, report)
            run = run_id(self.folder.checkpoint)
            verify, note = self.members.verify, partial(self._note_sum, round_.number)
            secure.exchange(self.grid, timeout, run, verify, note)
            return
        if self.work is not None and round_.versions:
            self._arrived(round_, stage, report, self.work)
            return
        strategy = OrchestraStrategy(self.federation, round_, stage, report, number)
        messages = strategy.configure_train(round_.number)
        if self.ends_early and not round_.versions:
            strategy.aggregate_first(self._first_replies(round_, strategy, messages))
            return
        replies = strategy.replies(self.grid, messages)
        strategy.aggregate_train(round_.number, replies)

    def _note_sum(self, number: int) -> None:
        if not self.members.is_simulated:  # simulated clients remember no list
            note_sum(self.folder.checkpoint, number)

    def _arrived(
        self, round_: Round, stage: Stage, report: RoundReport, work: OutstandingWork
    ) -> None:
        """Updates the models by results that have come, and were shown when they came."""

        def unseen(client: str, ok: bool) -> None:
            pass

        shown = replace(self.federation, on_client=unseen, on_arrival=unseen)
        strategy = OrchestraStrategy(shown, round_, stage, report)
        strategy.began = work.since(round_.cohort)
        report.bytes_down += work.bytes_sent
        strategy.aggregate_train(round_.number, work.replies(round_.cohort))
        report.asked = min(report.asked, work.results)  # failed clients are not waited for

    def _after(self, round_: Round, report: RoundReport) -> None:
        """Says what a person should know of a round, and checks whether it may count."""
        notes = [*report.notes, *map(str, report.left_out)]
        if report.late:
            notes.append(
                f"{len(report.late)} of {len(round_.cohort)} clients were late, and their work "
                f"does not count: {listed(report.late)}"
            )
        for note in notes:
            self.progress.message(f"round {round_.number}: {note}")
        report.dropped = self._with_reasons(report.dropped)
        latest = round_.number - 1  # which may be kept under its number as well
        earlier = [number for number in earlier_rounds(self.folder.checkpoint) if number < latest]
        if self.federation.config.privacy.noise_multiplier > 0:  # such a run cannot go back
            earlier = []
        check_round(self.federation, round_, report, max(earlier, default=None))
        if report.server_state_kept and not round_.exhausted.issuperset(round_.cohort):
            why = missing_release_message(self.federation, round_, report)
            self.progress.message(f"{why}; the server's state stays as it is")
        self.members.mark_lost([failure.client for failure in report.dropped if failure.silent])
        self.members.mark_late(report.late)
        self._late.update(report.late)

    def _with_reasons(self, dropped: list[Dropped]) -> list[Dropped]:
        """Replaces the reason of silent clients that could not answer: their keys were revoked."""
        return [
            replace(failure, reason=REVOKED)
            if failure.silent and self.members.revoked(failure.client)
            else failure
            for failure in dropped
        ]

    def _first_replies(
        self, round_: Round, strategy: OrchestraStrategy, messages: Iterable[Message]
    ) -> Iterator[Arrival]:
        """The replies of a stage that does not wait for all."""
        limit = round_.limit or self.federation.config.federation.round_timeout
        if self.timeline is None:
            grid: Any = self.grid  # of real clients
            return iter(grid.receive_first(messages, strategy.needed, limit, came=strategy.came))
        tasks, needed = strategy.stage.tasks, strategy.needed
        return self.timeline.receive_first(
            self.grid, messages, tasks, needed, limit, trains=round_.trains
        )

    def ask_for_scores(self, round_: Round, report: RoundReport) -> None:
        """Asks clients for their scores of the round's average, on their own images."""
        model_of, first = self.federation.exchange.model_of, self.federation.models.first
        # Silent ones are not waited for twice.
        silent = {failure.client for failure in report.dropped if failure.silent}
        silent |= {*report.late}
        silent |= {*round_.cohort} - round_.nodes.keys()  # those that left, but had answered
        asked = [client for client in round_.cohort if client not in silent]
        stage = Stage(tuple(Task(client, (model_of(client) or first,)) for client in asked))
        now = replace(round_, versions={})
        strategy = OrchestraStrategy(self.federation, now, stage, report)
        messages = strategy.configure_evaluate(round_.number)
        self.progress.round_started(round_.number, len(asked), SCORING)
        replies = strategy.replies(self.grid, messages)
        strategy.aggregate_evaluate(round_.number, replies)
        report.unscored = self._with_reasons(report.unscored)
        for failure in report.unscored:
            self.progress.message(
                f"round {round_.number}: no score of client {failure.client}: {failure.reason}"
            )
        self.members.mark_lost([failure.client for failure in report.unscored if failure.silent])


def check_round(
    federation: Federation, round_: Round, report: RoundReport, earlier: int | None = None
) -> None:
    """Checks, when all stages are over, whether the round's result may be kept.

    Args:
        earlier: a round before the last one, to which the run can go back; None: there is none.

    Raises:
        FederationError: fewer good replies than `federation.min_success` asks for, or no
            contribution at all to the first server state, without which nothing can be trained.
            If clients tried to train, and none could, it names the earlier round.
    """
    asked, answered = report.asked, report.answered
    needed = federation.config.federation.needed(asked)
    if asked and answered < needed:
        keys = "(federation.round_timeout, federation.deadline)"
        late = [f"{len(report.late)} were late {keys}"] * bool(report.late)
        why = (
            f"round {round_.number}: {answered} of {asked} clients answered well, "
            f"federation.min_success={federation.config.federation.min_success:g}, a share, "
            f"asks for {needed}; {listed([*late, *reasons(report.dropped)], separator='; ')}"
        )
        tried = not all(failure.silent for failure in report.dropped)
        if answered or not round_.trains or not tried or earlier is None:
            raise FederationError(why)
        why = f"{why}. Nobody could train the model of round {round_.number - 1}"
        raise FederationError(why, resume_round=earlier)
    release = federation.release
    due = release is not None and round_.number >= release.first_round
    report.server_state_kept = due and not report.contributed
    if report.server_state_kept and not round_.trains:
        raise FederationError(missing_release_message(federation, round_, report))


def missing_release_message(federation: Federation, round_: Round, report: RoundReport) -> str:
    """The message that no client's release was used in a round, and what can be done."""
    release, privacy = federation.release, federation.config.privacy
    assert release is not None
    if report.below_minimum:
        return (
            f"round {round_.number}: {report.answered} clients answered well, too few to use their "
            f"{release.label} (exchange.min_members={federation.exchange.min_results()})"
        )
    more = (
        "or have clients with more "
        f"(federation.min_images={federation.config.federation.min_images})"
    )
    why = f"all have fewer than privacy.k_min={privacy.k_min} images: lower it"
    if release.epsilon is not None:
        why = f"the noise of privacy.epsilon={release.epsilon:g} left none: raise it"
    return f"round {round_.number}: no client sent {release.label}, {why}, {more}"
