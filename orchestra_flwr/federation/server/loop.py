"""The federation's rounds on the server: one loop for every engine."""

import time
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from typing import Any

from flwr.serverapp import Grid

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.console.text import counted, listed
from orchestra_flwr.federation.aggregations import held_memory
from orchestra_flwr.federation.attacks import attackers
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges import Exchange
from orchestra_flwr.federation.server.checkpoint import (
    Position,
    forget_noise_key,
    load_checkpoint,
    run_id,
    save_checkpoint,
)
from orchestra_flwr.federation.server.cohorts import Cohorts
from orchestra_flwr.federation.server.encoder_delivery import EncoderDelivery
from orchestra_flwr.federation.server.evaluator import Evaluator, Scores
from orchestra_flwr.federation.server.members import Members
from orchestra_flwr.federation.server.outstanding_work import OutstandingWork
from orchestra_flwr.federation.server.round import Federation, Round
from orchestra_flwr.federation.server.round_messages import RoundMessages
from orchestra_flwr.federation.server.round_report import RoundReport
from orchestra_flwr.federation.server.run_encoders import (
    NOT_EVALUATED,
    BestEncoder,
    Evaluated,
    RunEncoders,
    statistics_of,
)
from orchestra_flwr.federation.server.run_privacy import RunPrivacy
from orchestra_flwr.federation.server.run_records import (
    chance_losses,
    overhead,
    round_record,
    run_summary,
    usual_steps,
)
from orchestra_flwr.federation.server.starting_models import frozen_weights, starting_models
from orchestra_flwr.federation.server.timeline import Timeline
from orchestra_flwr.fingerprints import fingerprint_of
from orchestra_flwr.methods import ordered_backbones, release_of
from orchestra_flwr.models import Backbone, tensors_sha256
from orchestra_flwr.process_memory import used_memory
from orchestra_flwr.reporting import (
    Progress,
    RoundOutcome,
    RunFolder,
    TrackedRun,
    Trackers,
    environment,
)
from orchestra_flwr.reporting.folder_record import FolderRecord, notes_of_other_code
from orchestra_flwr.reporting.run_estimate import RunEstimate
from orchestra_flwr.reporting.run_warnings import early_round, losses_at_chance, run_warnings
from orchestra_flwr.reporting.start_notes import start_notes
from orchestra_flwr.training import cores_for_clients, first_weights


@dataclass
class FederationRun:
    """A whole federation, run or resumed, that leaves a complete run folder."""

    grid: Grid  # yields replies in the order of the messages
    config: Config
    members: Members  # the clients; asked for before every round
    _: KW_ONLY
    evaluator: Evaluator  # of the run, with the server's own images if it has any
    folder: RunFolder  # where everything is written; a checkpoint in it is continued
    progress: Progress
    workers: int | None = None  # clients trained at the same time, where that is known
    delivery: EncoderDelivery | None = None  # sends the encoder to the clients; None: nobody does

    def run(self) -> dict[str, Any]:
        """Runs all rounds that are left.

        Returns:
            The summary, as it stands in `summary.json`.

        Raises:
            FederationError: too few clients answered well, or the run cannot be stored or resumed.
        """
        try:
            self._prepare()
            with self._trackers() as self.trackers:
                try:
                    return self._run()
                except FederationError:
                    if self.work is not None:
                        self.work.give_up()
                    raise
        except OSError as error:
            raise FederationError(
                f"cannot write the run folder {self.folder.path}: {error}"
            ) from error

    def _prepare(self) -> None:
        config, members, folder, progress = self.config, self.members, self.folder, self.progress
        exchange: Exchange = config.exchange.build()
        self.models = starting_models(config, exchange, members, folder)
        self.learner = self.models.learner
        self.release = release_of(config)
        self.privacy = RunPrivacy(
            config,
            self.release,
            folder.checkpoint,
            made_with=self._made_with if members.is_simulated else None,
            signed=members.verify is not None,
            message=progress.message,
        )
        places = {"init": None, "resume_round": None, "model": config.model.without_folders()}
        client_config = config.model_copy(update=places)
        self.federation = Federation(
            client_config,
            self.models,
            exchange,
            self.release,
            self._client_done,
            self.privacy.key,
            folder.path,
            frozen_weights(self.models, members, folder),
            progress.client_asked,
            members.is_simulated,
            progress.client_came,
        )
        self.timeline = Timeline.of(config, members.images, self.models.schemas)
        self.work = OutstandingWork.of(self.grid, self.federation, members, progress.round_started)
        self.cohorts = Cohorts(
            self.federation, members, self.privacy, folder, self.timeline, self.work,
            progress.message,
        )  # fmt: skip
        self.encoders = RunEncoders(config, self.evaluator, self.models, exchange)
        self.best = BestEncoder(self.evaluator)
        self.skipped = len(self.evaluator.dataset.skipped) if self.evaluator.dataset else 0
        self.record = FolderRecord(folder.path, config.plugins)
        self.versions = environment(
            config.plugins
        )  # of the code that runs, whatever is committed meanwhile
        self.messages = RoundMessages(
            self.grid, self.federation, members, folder, progress, self.timeline, self.work
        )

    def _made_with(self) -> str:
        """The model that clients are sent, and the device on which they make features by it."""
        state = self.models.shared(self.models.first)
        return f"{fingerprint_of(state.tobytes())} on {self.config.device}"

    def _trackers(self) -> Trackers:
        identity = run_id(self.folder.checkpoint) if self.config.logging.trackers else ""
        run = TrackedRun(
            self.folder.path, self.folder.label, identity, self.config.model_dump(mode="json")
        )
        try:
            return Trackers(self.config, run, self.progress.message)
        except ConfigError as error:
            raise FederationError(str(error)) from error

    @cached_property
    def _estimate(self) -> RunEstimate:
        here = self.workers is not None  # whether clients are trained on this machine
        return RunEstimate(
            self.config,
            cores=cores_for_clients(self.config.training.threads) if here else 0,
            workers=self.workers,
            memory=used_memory if here else None,
            message=self.progress.message,
        )

    def _run(self) -> dict[str, Any]:
        position = load_checkpoint(self.folder.checkpoint, self.models, self.best)
        self.folder.truncate_after(-1 if position is None else position.round)
        if position is not None:
            self.progress.message(f"resumed after round {position.round}")
            self.federation.exchange.load_state(position.exchange)
            self.members.holders.update(position.holders)
            if self.timeline is not None:
                self.timeline.load_state(position.clock)
        elif self.config.init is not None:
            self.progress.message(f"begins with the encoder of {self.config.init}")
        for note in self._notes():
            self.progress.message(note)
        position = position or Position(round=-1)
        for number in range(position.round + 1, self.config.federation.rounds + 1):
            position = self._round(number, position)
            self._warn_early(number)
            self.folder.summary.unlink(missing_ok=True)  # of a finished run that gets more rounds
        metrics = self.folder.read_metrics()
        self._evaluate_last(metrics[-1])
        with self.progress.phase("saving the encoder and the summary"):
            return self._finish(position, metrics)

    def _notes(self) -> Iterator[str]:
        """What a person should know before the first round."""
        evaluator = self.evaluator
        yield from start_notes(self.config, evaluator.dataset, evaluator.batch_norm)
        yield from notes_of_other_code(self.folder.path, self.config.plugins)
        if self.skipped:
            yield f"{self.skipped} image files could not be read and are left out"
        if attacking := attackers(self.config, self.members.names):
            names = listed([name for name in self.members.names if name in attacking])
            count = counted(len(attacking), "client")
            yield f"attack={self.config.attack.name}: by {count}: {names}"
        clients = len(self.members.names) or self.config.federation.clients
        memory = held_memory(self.config, self.models.schemas.shared.size, clients)
        self.best.check()
        why = evaluator.why_not and f"no evaluation with labels: {evaluator.why_not}"
        yield from filter(None, (memory, why, evaluator.fewer_voters))

    def _round(self, number: int, position: Position) -> Position:
        """One round, its record and its checkpoint. Round 0 trains nothing."""
        first = self.release is not None and self.release.first_round == 0
        exchanged = (number > 0 or first) and not self.messages.leaves_out(number)
        evaluated = self.encoders.is_due(number)
        scored = evaluated and self.config.evaluation.asks_clients
        began, evaluation = time.perf_counter(), NOT_EVALUATED
        if self.encoders.is_before(number):
            evaluation = self._evaluate(number)
        evaluated_in = time.perf_counter() - began
        round_ = Round(number, {})
        if exchanged or scored:
            round_, position = self.cohorts.draw(number, position, evaluated=evaluated)
        started = time.perf_counter()  # waiting for clients to come is no part of a round
        if self.work is not None and round_.versions:
            started = self.work.began
        report = RoundReport()
        if number > 0:
            rounds = range(number, self.config.federation.rounds + 1)
            images = [round_.images[client] for client in round_.cohort]  # some may have left
            in_one_stage = images if self.federation.exchange.private else None
            self._estimate.round_started(
                len(rounds), sum(map(self.encoders.is_due, rounds)), in_one_stage
            )
        if exchanged:
            self.privacy.before(round_)
            self.messages.exchange(round_, report)
            report.seconds = time.perf_counter() - started
        if number > 0:
            self._estimate.round_ended(report.seconds)
        if scored:
            self.messages.ask_for_scores(round_, report)
        if evaluated and not self.encoders.is_before(number):
            evaluation = self._evaluate(number)
        self.models.load(self.models.first)
        drawn = self.privacy.drawn(position.drawn, round_)
        position = replace(position.with_counted(report), drawn=drawn)
        record = self._record(round_, report, evaluation, position, exchanged)
        self.folder.append_metrics(record)
        self.best.consider(record, *self._kept_backbone())
        spent = evaluated_in + time.perf_counter() - started
        position = self._after(position.after(number, report, spent), report, round_)
        record_json = self.record.to_json()
        save_checkpoint(self.folder.checkpoint, self.models, position, record_json, self.best)
        self._show(record, report, evaluation[0])
        self._share(number)
        return position

    def _warn_early(self, number: int) -> None:
        """Says once, while there is time to stop the run, which losses are still at chance."""
        rounds = self.config.federation.rounds
        if number == early_round(rounds):
            metrics = self.folder.read_metrics()
            chance = chance_losses(self.config, self.learner.method, metrics)
            for line in losses_at_chance(metrics, chance):
                self.progress.message(f"WARNING: after {number} of {rounds} rounds {line}")

    def _after(self, position: Position, report: RoundReport, round_: Round) -> Position:
        """The position, with what is remembered of the round that has just ended."""
        state = self.federation.exchange.state()
        remembered: dict[str, Any] = {"exchange": state, "best": self.best.position()}
        if self.timeline:
            remembered["clock"] = self.timeline.state()
        if not self.members.is_simulated:  # simulated clients' own records are this run's
            last_used = report.last_used(position.last_used, position.round, round_.versions)
            remembered["last_used"] = last_used
        elif self.federation.frozen:
            remembered["holders"] = sorted(self.members.holders)
        return replace(position, **remembered)

    def _share(self, number: int) -> None:
        """Sends the clients the encoder after a round, where that is asked for."""
        rounds = self.config.federation.rounds
        place = self.delivery.place(number, rounds) if self.delivery else None
        if self.delivery and place is not None:
            kept = number if self.best.round is None else self.best.round
            self.encoders.save(place, self.best.encoder, kept)
            self.models.load(self.models.first)
            self.delivery.during(place.encoder, {*self.work.images} if self.work else set())

    def _record(
        self,
        round_: Round,
        report: RoundReport,
        evaluation: Evaluated,
        position: Position,
        exchanged: bool,
    ) -> dict[str, Any]:
        """A round's line of `metrics.jsonl`."""
        scores, by_model = evaluation
        record = {**round_record(round_, report, scores), **by_model}
        if exchanged and (exchange := self.federation.exchange.metrics()):
            record["exchange"] = exchange
        if self.workers and exchanged and report.client_seconds:  # no noisy sum holds them
            record["overhead"] = overhead(report, self.workers)
        if self.messages.ends_early and exchanged:
            share = len(position.counted) / len(position.clients)
            record["clients"] |= {"late": report.late, "counted_so_far": share}
        if self.timeline:
            record["virtual_seconds"] = self.timeline.now
        if position.drawn or self.privacy.is_accounted:
            record["privacy"] = self.privacy.metrics(position.drawn)
        if not round_.number and first_weights(self.config):
            record["start_sha256"] = tensors_sha256(self._kept_backbone()[1])
        return record

    def _client_done(self, client: str, ok: bool) -> None:
        self.progress.client_done(client, ok)
        self._estimate.client_done(self.members.images.get(client, 0))  # it may have left

    def _evaluate(self, number: int) -> Evaluated:
        began = time.perf_counter()
        when = f"after round {number}" if number else "before training"
        with self.progress.phase(f"evaluating the encoder {when}"):
            evaluated = self.encoders.evaluate(number)
        self._estimate.evaluation = time.perf_counter() - began
        return evaluated

    def _show(self, record: dict[str, Any], report: RoundReport, scores: Scores | None) -> None:
        self.trackers.add(record["round"], record)
        shown = scores[self._kept_backbone()[0]] if scores else None
        dropped = [f"client {d.client}: {d.reason}" for d in report.dropped]
        self.progress.round_finished(
            RoundOutcome(
                record["round"],
                record["loss"],
                shown,
                report.seconds,
                dropped,
                self.timeline.now if self.timeline else None,
            )
        )

    def _finish(self, position: Position, metrics: list[dict[str, Any]]) -> dict[str, Any]:
        kept = position.round if self.best.round is None else self.best.round
        method = self.models.load(self.models.first).method
        summary = {
            **run_summary(
                self.config, method, position, metrics, evaluator=self.evaluator, best=self.best
            ),
            **self.privacy.summary(position.drawn),
            "versions": self.versions,
        }
        chance = chance_losses(self.config, method, metrics)
        steps = usual_steps(self.config, metrics)
        if warnings := run_warnings(summary, metrics, chance, steps, position.counted):
            summary["warnings"] = warnings
        if self.work is not None:
            self.work.give_up()
        # Where nothing was trained: with the statistics with which it was scored.
        statistics = statistics_of(metrics[-1], self._kept_backbone()[0])
        encoder_of = partial(self.best.encoder, statistics=statistics)
        chosen = self.encoders.save(self.folder, encoder_of, kept)
        if len(self.federation.exchange.evaluated()) > 1:
            summary["model"] = chosen
        from orchestra_flwr.reporting import plots  # a second of imports, which only the end needs

        curves = plots.curves_figure(metrics, self.folder.label)
        plots.save_png(curves, self.folder.path / "curves.png")
        if self.delivery and self.delivery.before:
            summary["encoder_sent"] = self.delivery.before
        self.folder.write_summary(summary)
        if self.delivery:
            summary["encoder_sent"] = self.delivery.at_the_end()
            self.folder.write_summary(summary)
        forget_noise_key(self.folder.checkpoint)
        self.trackers.finish(position.round, summary, self.folder.path)
        return summary

    def _evaluate_last(self, record: dict[str, Any]) -> None:
        """Adds an evaluation to the last round's record if it lacks one: the run ended early."""
        evaluated = (record.get("scores") or {}).keys()
        if evaluated >= self.learner.method.backbones().keys():
            return
        scores, by_model = self._evaluate(record["round"])
        record |= {**by_model, **({"scores": scores} if scores else {})}
        self.models.load(self.models.first)
        self.best.consider(record, *self._kept_backbone())

    def _kept_backbone(self) -> tuple[str, Backbone]:
        """The name and the module of the backbone that is saved."""
        backbones = ordered_backbones(self.learner.method, self.config.evaluation.backbone)
        return next(iter(backbones.items()))
