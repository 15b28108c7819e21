"""What a run left behind, for Python: metrics, pictures, the encoder."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from orchestra_flwr.config import read_config_file
from orchestra_flwr.console.text import flat
from orchestra_flwr.files import read_json
from orchestra_flwr.models import Encoder, load_encoder
from orchestra_flwr.reporting.plots import curves_figure, partition_figure
from orchestra_flwr.reporting.run_folder import RunFolder
from orchestra_flwr.reporting.summary_table import print_so_far, print_summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

WIDTH = 100  # columns of the printed table


@dataclass(frozen=True)
class RoundMetrics:
    """One round of a run.

    Attributes:
        round: its number; 0 is before training.
        seconds: how long it took, without evaluation; None where nothing was exchanged.
        loss: parts of the loss by name, and their `total`; empty where nothing was trained.
        scores: by backbone (`target`, `online`) its `knn` and `linear` as fractions, and others;
            empty where the round was not evaluated.
        bytes_up: what all clients sent, in bytes.
        bytes_down: what was sent to them.
        record: all that the round's line of `metrics.jsonl` holds.
    """

    round: int
    seconds: float | None
    loss: Mapping[str, float]
    scores: Mapping[str, Mapping[str, Any]]
    bytes_up: int
    bytes_down: int
    record: Mapping[str, Any]


class Result:
    """A run folder, read on demand: each time anew, as the run may go on, but for the encoder.

    Args:
        folder: of any run, including runs started on a command line.

    Raises:
        FileNotFoundError: there is no run in it.

    Examples:
        >>> result = Result("outputs/orchestra-digits/2026-11-22_10-00-00")
        >>> result.summary["linear"], result.encoder.dim
        (0.992, 768)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()  # a notebook may change its folder
        if not (self.folder / "config.yaml").is_file():
            raise FileNotFoundError(f"{self.folder}: no run folder (it holds no config.yaml)")

    def __fspath__(self) -> str:
        """The folder: wherever a run folder is expected, `resume` and `init` included."""
        return str(self.folder)

    @property
    def summary(self) -> dict[str, Any]:
        """`summary.json`: `knn` and `linear` as fractions, `untrained`, `rounds`, bytes, ...

        Raises:
            FileNotFoundError: the run has not ended.
            ValueError: it is damaged.
        """
        file = self.folder / "summary.json"
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file (a finished run leaves it)")
        return read_json(file)

    @property
    def metrics(self) -> list[RoundMetrics]:
        """The rounds so far, in their order; round 0 is before training.

        Raises:
            ValueError: a line of `metrics.jsonl` is damaged.
        """
        return [
            RoundMetrics(
                record["round"],
                record.get("seconds"),
                record.get("loss") or {},
                record.get("scores") or {},
                record.get("bytes_up", 0),
                record.get("bytes_down", 0),
                record,
            )
            for record in self._records()
        ]

    def frame(self) -> "DataFrame":
        """The metrics as a pandas data frame: a row for each round, and a column for each number.

        Columns of nested values are named like `loss.total` and `scores.target.knn`.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError(
                "frame(): pandas is not installed; pip install 'orchestra-flwr[notebook]', "
                "or use metrics, which has the same numbers as objects"
            ) from None
        rounds: dict[int, dict[str, Any]] = {}
        for record in self._records():
            numbers = {k: v for k, v in flat(record).items() if not isinstance(v, list)}
            rounds.setdefault(record["round"], {}).update(numbers)
        # Without a record yet, the index is all that it has.
        columns = None if rounds else ["round"]
        return pandas.DataFrame(list(rounds.values()), columns=columns).set_index("round")

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder that the run has saved, frozen, on the CPU.

        Raises:
            FileNotFoundError: the run has not ended.
            ValueError: its files are damaged.
        """
        return load_encoder(self.folder)

    def plot_curves(self) -> "Figure":
        """Loss, accuracy, traffic and time over the rounds; a notebook shows it."""
        return curves_figure(self._records(), self.name)

    def plot_partition(self) -> "Figure":
        """How many images of each class each client holds; a notebook shows it.

        Raises:
            FileNotFoundError: the run's clients are real ones, whose images are not known.
        """
        facts = read_json(self.folder / "partition.json")
        counts = np.array(list(facts["clients"].values()))
        emd = facts.get("emd")  # images without labels have none
        names = None if emd is None else facts["classes"]
        clients = list(facts["clients"])
        return partition_figure(counts, names, clients=clients, emd=emd, name=self.name)

    @property
    def name(self) -> str:
        """The run's name in figures."""
        return RunFolder(self.folder).label

    def __str__(self) -> str:
        """The table that the command prints at the end of a run; before that, what there is."""
        text = io.StringIO()
        plain = Console(file=text, width=WIDTH, color_system=None, force_jupyter=False)
        if (self.folder / "summary.json").is_file():
            print_summary(self.summary, self.folder, plain)
        else:
            plugins = read_config_file(self.folder / "config.yaml").get("plugins") or ()
            how = RunFolder(self.folder, plugins=plugins).how_to_continue()
            line = f"The run has not ended. If it is not at work, {how}"
            print_so_far(self._records(), line, self.folder, plain)
        return text.getvalue().rstrip()

    def __repr__(self) -> str:
        return f"Result({str(self.folder)!r})"

    def _records(self) -> list[dict[str, Any]]:
        return RunFolder(self.folder).read_metrics()
