"""The federation's rounds on the server: one loop for every engine."""

from __future__ import annotations

import time
from typing import Any

from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from safetensors import SafetensorError

from orchestra_flwr.config import Config
from orchestra_flwr.data import Dataset
from orchestra_flwr.federation.checkpoint import (
    Position,
    forget_noise_key,
    load_checkpoint,
    noise_key,
    run_id,
    save_checkpoint,
)
from orchestra_flwr.federation.figures import (
    final_figures,
    overhead,
    round_record,
    update_privacy,
)
from orchestra_flwr.federation.judge import Judge
from orchestra_flwr.federation.members import Members
from orchestra_flwr.federation.releases import Releases
from orchestra_flwr.federation.report import FederationError, RoundReport
from orchestra_flwr.federation.strategy import OrchestraStrategy
from orchestra_flwr.federation.wire import CLIENTS, RUN, pack_state
from orchestra_flwr.merging import keeps_state
from orchestra_flwr.methods import build_method, kept_first
from orchestra_flwr.models import save_encoder
from orchestra_flwr.privacy.updates import drawn_once_more
from orchestra_flwr.reporting import (
    Progress,
    RunFolder,
    TensorboardLog,
    environment,
    plot_curves,
)


def run_federation(
    grid: Grid,
    config: Config,
    members: Members,
    *,
    dataset: Dataset | None,
    folder: RunFolder,
    progress: Progress,
    workers: int | None = None,
) -> dict[str, Any]:
    """Runs or resumes a whole federation and leaves a complete run folder.

    Args:
        grid: yields replies in the order of the messages.
        config: the run's configuration.
        members: the clients; gathered before every round.
        dataset: the server's own images, to judge the encoders with; None if it has none.
        folder: where everything is written; a checkpoint in it is continued.
        progress: what a person sees.
        workers: clients that are trained at the same time, where that is known.

    Returns:
        The summary, as it stands in `summary.json`.

    Raises:
        FederationError: too few clients answered well, or the run cannot be stored or resumed.
    """
    try:
        run = _Run(
            grid,
            config,
            members,
            dataset=dataset,
            folder=folder,
            progress=progress,
            workers=workers,
        )
        return run.run()
    except (OSError, SafetensorError) as error:
        raise FederationError(f"cannot write the run folder {folder.path}: {error}") from error


class _Run:
    def __init__(
        self,
        grid: Grid,
        config: Config,
        members: Members,
        *,
        dataset: Dataset | None,
        folder: RunFolder,
        progress: Progress,
        workers: int | None,
    ) -> None:
        self.grid = grid
        self.config = config
        self.members = members
        self.folder = folder
        self.progress = progress
        self.workers = workers
        self.method = build_method(config, config.data.channels)
        self.backbones = kept_first(self.method, config.evaluation.backbone)
        self.noisy = config.privacy.noise_multiplier > 0
        self.releases: Releases | None = None
        if config.clustering.name == "private":
            file = folder.checkpoint / "releases.jsonl"
            self.releases = Releases(file, config.privacy, replays=members.replays)
        self.judge = Judge(config, dataset)
        self.skipped = len(dataset.skipped) if dataset else 0
        self.versions = environment()  # of the code that runs, whatever is committed meanwhile
        self.log = (
            TensorboardLog(folder.path / "tensorboard") if config.logging.tensorboard else None
        )

    def run(self) -> dict[str, Any]:
        position = load_checkpoint(self.folder.checkpoint, self.method)
        self.folder.truncate_after(-1 if position is None else position.round)
        if position is not None:
            self.progress.message(f"resumed after round {position.round}")
        if self.skipped:
            self.progress.message(f"{self.skipped} image files could not be read and are left out")
        if self.judge.why_not:
            self.progress.message(f"no evaluation: {self.judge.why_not}")
        position = position or Position(round=-1)
        key = noise_key(self.folder.checkpoint) if self.noisy else None
        strategy = OrchestraStrategy(self.config, self.method, self.progress.client_done, key)
        for number in range(position.round + 1, self.config.federation.rounds + 1):
            position = self._round(number, strategy, position)
        return self._finish(position)

    def _round(self, number: int, strategy: OrchestraStrategy, position: Position) -> Position:
        """One round, its record and its checkpoint. Round 0 trains nothing."""
        exchanged = number > 0 or self.method.needs_first_round
        scored = self.config.evaluation.unsupervised and self._is_judged(number)
        if exchanged or scored:
            strategy.nodes = self.members.gather()
        started = time.perf_counter()  # waiting for clients to come is no part of a round
        strategy.report = RoundReport(())
        if exchanged:
            self._exchange(number, strategy)
        seconds = time.perf_counter() - started
        if scored:
            self._ask_for_scores(number, strategy)
        report = strategy.report
        scores = self.judge.scores(self.method) if self._is_judged(number) else None
        drawn = position.drawn
        if self.noisy and number > 0:
            drawn = drawn_once_more(drawn, report.population, len(report.cohort))
        record = round_record(number, report, seconds, scores)
        if self.workers and exchanged:
            record["overhead"] = overhead(report, seconds, self.workers)
        record |= self._privacy(drawn) if drawn or self.releases else {}
        self.folder.append_metrics(record)
        position = Position(
            round=number,
            seconds=position.seconds + time.perf_counter() - started,
            bytes_up=position.bytes_up + report.bytes_up,
            bytes_down=position.bytes_down + report.bytes_down,
            smallest_cluster=min(
                (s for s in (position.smallest_cluster, report.smallest_cluster) if s is not None),
                default=None,
            ),
            drawn=drawn,
        )
        save_checkpoint(self.folder.checkpoint, self.method, position)
        if self.log:
            self.log.add(number, record)
        kept = next(iter(self.backbones))
        dropped = [f"client {d.client}: {d.reason}" for d in report.dropped]
        shown = scores[kept] if scores else None
        self.progress.round_finished(number, record["loss"], shown, seconds, dropped)
        return position

    def _exchange(self, number: int, strategy: OrchestraStrategy) -> None:
        arrays = pack_state(self.method, strategy.schemas)
        if self.releases:
            strategy.silent = self.releases.exhausted(strategy.nodes, number)
        messages = strategy.configure_train(number, arrays, self._place(), self.grid)
        self._check_delta(number, strategy.report.population)
        if self.releases:
            self._count_releases(number, strategy, self.releases)
        label = "training" if number > 0 else "first clustering"
        self.progress.round_started(number, len(strategy.report.cohort), label)
        timeout = self.config.federation.round_timeout
        strategy.take(number, self.grid.send_and_receive(messages, timeout=timeout))
        if strategy.report.server_state_kept:
            self.progress.message(
                f"round {number}: no client sent centroids: the global ones stay as they are"
            )
        self.members.lost([each.client for each in strategy.report.dropped if each.silent])

    def _ask_for_scores(self, number: int, strategy: OrchestraStrategy) -> None:
        """Alignment and uniformity of the round's average, on the clients' own images."""
        arrays = pack_state(self.method, strategy.schemas)
        messages = list(strategy.configure_evaluate(number, arrays, ConfigRecord(), self.grid))
        self.progress.round_started(number, len(messages), "scoring")
        timeout = self.config.federation.round_timeout
        strategy.aggregate_evaluate(number, self.grid.send_and_receive(messages, timeout=timeout))
        for each in strategy.report.unscored:
            self.progress.message(
                f"round {number}: no score of client {each.client}: {each.reason}"
            )
        self.members.lost([each.client for each in strategy.report.unscored if each.silent])

    def _check_delta(self, number: int, clients: int) -> None:
        """Real clients come and go: the configuration knows the least of them only."""
        delta = self.config.privacy.delta
        if self.noisy and delta >= 1 / clients:
            self.progress.message(
                f"round {number}: privacy.delta={delta:g} protects none of {clients} clients, "
                f"it must be below {1 / clients:.3g}: this run is not covered by "
                "differential privacy any more"
            )

    def _place(self) -> ConfigRecord:
        """For tasks: which run this is, and where clients on this machine keep their state."""
        if not keeps_state(self.config, self.method):
            return ConfigRecord()
        place = ConfigRecord({RUN: run_id(self.folder.checkpoint)})
        if self.members.share_disk:
            place[CLIENTS] = str(self.folder.clients.resolve())
        return place

    def _count_releases(self, number: int, strategy: OrchestraStrategy, releases: Releases) -> None:
        """Before anybody is asked: what may have left a client is never missing in the ledger."""
        cohort = strategy.report.cohort
        releases.ask(number, [client for client in cohort if client not in strategy.silent])
        spent = [client for client in cohort if client in strategy.silent]
        if spent:
            self.progress.message(
                f"round {number}: {len(spent)} of {len(cohort)} clients have spent "
                "privacy.total_epsilon and send no centroids"
            )

    def _privacy(self, drawn: list[list[int]]) -> dict[str, Any]:
        """What is known about privacy after a round."""
        told: dict[str, Any] = {"updates": update_privacy(self.config, drawn)}
        if self.releases:
            told["centroids"] = self.releases.told()
        return {"privacy": told}

    def _is_judged(self, number: int) -> bool:
        last = number == self.config.federation.rounds
        return last or number % self.config.evaluation.every == 0

    def _finish(self, position: Position) -> dict[str, Any]:
        metrics = self.folder.read_metrics()
        judged = [record["scores"] for record in metrics if record.get("scores")]
        summary = {
            **final_figures(position, judged, list(self.backbones)),
            **self._privacy(position.drawn),
            "versions": self.versions,
        }
        told = [record["unsupervised"] for record in metrics if record.get("unsupervised")]
        if told:
            summary["unsupervised"] = told[-1]
        if self.config.clustering.name == "features":
            summary["not_private"] = "the features of single images left the clients"
        if self.releases:
            summary["epsilon_spent"] = self.releases.spent()
        kept, backbone = next(iter(self.backbones.items()))
        save_encoder(
            self.folder.encoder,
            self.judge.encoder(backbone),
            method=self.config.method.name,
            backbone=kept,
            rounds=position.round,
            data=self.config.data.name,
        )
        plot_curves(metrics, self.folder.path / "curves.png")
        self.folder.write_summary(summary)
        forget_noise_key(self.folder.checkpoint)
        if self.log:
            self.log.close()
        return summary
