"""Run folders, read back for a report."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestra_flwr.config import Config, parse, read_config_file
from orchestra_flwr.config.user_packages import check_named
from orchestra_flwr.console.text import lookup
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.experiments.planning.measure_table import MEASURES, TRANSFER
from orchestra_flwr.files import read_json
from orchestra_flwr.methods import sees_labels
from orchestra_flwr.reporting.run_folder import RunFolder

EVALUATIONS = "evaluation"  # folder in a run folder: a file for every evaluation of its encoder
ENCODER = "encoder.json"  # in a run folder: the description of the saved encoder
LOGS = "logs"  # folder beside the runs of an experiment: their output
STARTED = "=== started "  # begins the line that each start of a run writes into its log


@dataclass(frozen=True)
class Run:
    """A run folder."""

    folder: Path  # where it is
    summary: dict[str, Any]  # `summary.json`; empty where the run has not ended
    # `evaluation/<name>.json` by name, of the weights that the run saves. An experiment's
    # evaluations have names that no other command writes. Damaged ones count as missing.
    evaluations: dict[str, dict[str, Any]]
    # What is wrong with its records, if anything; then there is no summary.
    damage: str | None = None

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @cached_property
    def config(self) -> Config:
        """The run's configuration; of this version or of 0.2.

        Raises:
            ConfigError: it is damaged, or names a missing plug-in, an unknown option, or packages
                that this command does not name.
        """
        file = self.folder / "config.yaml"
        values = read_config_file(file)
        check_named(file, values.get("plugins") or ())
        return parse(ServerConfig if "host" in values else Config, values)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of the rounds."""
        return RunFolder(self.folder).read_metrics()

    @cached_property
    def saved_backbone(self) -> str:
        """The name of the backbone that the run saves, whose scores count as the run's.

        It is read from `encoder.json`; while the run goes on, it is the first in the scores.
        """
        about = _read_json(self.folder / ENCODER).get("about") or {}
        scores: dict[str, Any] = next((r["scores"] for r in self.metrics if r.get("scores")), {})
        return str(about.get("backbone") or next(iter(scores), "target"))

    def measure(self, name: str, transfer: str | None = None) -> float | None:
        """A measure by the name that experiments use; None where the run does not have it.

        Args:
            transfer: the name of the evaluation that `transfer`, `transfer_10` and `transfer_1`
                come from.

        Accuracies are fractions, `unsupervised` is the score without labels, `drift` a distance,
        `classes` and `classes_1` are numbers of classes, `emd` a distance of class shares.
        """
        return lookup(self._file(name, transfer), *MEASURES[name].place or (name,))

    def _file(self, name: str, transfer: str | None) -> dict[str, Any]:
        """What holds a measure: an evaluation of the saved encoder, or the summary."""
        by = MEASURES[name].evaluation
        if not by:
            return self.summary
        return self.evaluations.get(transfer or "" if by == TRANSFER else by, {})

    @property
    def seconds(self) -> float | None:
        """How long its rounds took; None where that is not known."""
        return lookup(self.summary, "seconds")

    @property
    def sent(self) -> float:
        """Bytes up and down, as far as they are known."""
        return sum(lookup(self.summary, f"bytes_{way}") or 0 for way in ("up", "down"))

    @cached_property
    def curve(self) -> str:
        """The score of a curve over the rounds: kNN, or `map` for images with several labels."""
        places = (lookup(record, "scores", self.saved_backbone, "map") for record in self.metrics)
        return "knn" if all(value is None for value in places) else "map"

    def score(self, record: Mapping[str, Any]) -> float | None:
        """The score of :attr:`curve` in a round's record; None where it was not evaluated."""
        return lookup(record, "scores", self.saved_backbone, self.curve)

    def before(self, name: str) -> float | None:
        """A measure of the encoder before training, where `summary.json` has it."""
        facts = MEASURES[name]
        if facts.evaluation:
            return None
        return lookup(self.summary, "untrained", *facts.place or (name,))

    def is_missing(self, name: str, transfer: str | None = None) -> bool:
        """Whether a measure is missing that the run should have: only methods that see labels
        have a classifier whose accuracy can be taken, and images with several labels have `map`
        in place of all accuracies.
        """
        facts = MEASURES[name]
        images = self._file(name, transfer) if facts.evaluation == TRANSFER else self.summary
        others = ("knn", "linear") if name == "map" else ("map",) if facts.is_accuracy else ()
        if any(lookup(images, other) is not None for other in others):
            return False
        if "accuracy" in name and not sees_labels(self.config):
            return False
        return self.measure(name, transfer) is None


def curve_title(runs: Iterable[Run]) -> str:
    """The title of :attr:`Run.curve` of these runs."""
    return "mAP" if any(run.curve == "map" for run in runs) else "kNN accuracy"


def read_run(folder: Path) -> Run | None:
    """The run in a folder, complete or not, damaged or not; None if there is none."""
    if not (folder / "config.yaml").is_file():
        return None
    try:
        summary = _read_json(folder / "summary.json")
        parts = summary.get("versions"), _read_json(folder / ENCODER).get("about")
        if not all(isinstance(part, dict | None) for part in parts):
            raise ValueError(f"{folder}: versions in summary.json or about in {ENCODER} is damaged")
    except ValueError as error:
        return Run(folder, {}, {}, str(error))
    evaluations = {}
    for file in sorted((folder / EVALUATIONS).glob("*.json")):
        with suppress(ValueError):
            stored = _read_json(file)
            if is_of_saved_weights(file, stored, folder):
                evaluations[file.stem] = stored
    return Run(folder, summary, evaluations)


def saved_weights(folder: Path) -> str | None:
    """The SHA-256 of the encoder that a run saves; None: none, or one of version 0.1."""
    digest: str | None = _read_json(folder / ENCODER).get("weights_sha256")
    return digest


def is_of_saved_weights(file: Path, stored: Mapping[str, Any], folder: Path) -> bool:
    """Whether what a file holds was computed with the weights that a run saves now.

    A run that is resumed with more rounds saves other weights. Files of earlier versions do not
    name their weights (`weights_sha256`): they count unless they are older than the encoder. If the
    encoder is gone, every file counts.
    """
    now, then = saved_weights(folder), stored.get("weights_sha256")
    if now is not None and then is not None:
        return bool(now == then)
    encoder = folder / ENCODER
    return not encoder.is_file() or file.stat().st_mtime >= encoder.stat().st_mtime


def find_runs(folder: Path) -> list[Run]:
    """All runs in a folder, in folders of it, and in folders of those (`outputs/<name>/<time>`)."""
    candidates = [folder, *sorted(folder.glob("*/")), *sorted(folder.glob("*/*/"))]
    return [run for run in map(read_run, candidates) if run is not None]


def last_error(log: Path) -> str | None:
    """The last error that a run printed since it was last started, in one line."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if line.startswith(STARTED):
            break
        if "rror: " in line:
            return line.removeprefix("error: ")
    return None


def unreadable(runs: Sequence[Run]) -> dict[Path, str]:
    """The folders of runs that this version cannot read, or that are damaged, with the error."""
    wrong = {}
    for run in runs:
        try:
            _ = run.config, run.metrics
        except ValueError as error:  # ConfigError among them
            wrong[run.folder] = str(error)
        if run.damage:
            wrong[run.folder] = run.damage
    return wrong


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    return read_json(file)
