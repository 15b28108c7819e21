"""The measures of experiments: where a run stores them, and how a report shows them."""

from dataclasses import dataclass
from typing import Literal

FINETUNING = "finetuning"  # the evaluation that experiments make by a run's own images
TRANSFER = "transfer"  # stands for the evaluation by other images, whose name a plan has

FEW, RECALIBRATED = "evaluation.few_labels=true", "evaluation.recalibrated=true"
DRIFT, CLIENTS = "evaluation.drift=true", "evaluation.clients=true"


@dataclass(frozen=True)
class MeasureFacts:
    """Where a measure is stored, and its meaning."""

    title: str  # in a report
    place: tuple[str, ...] = ()  # its path of keys in a file; (): its own name
    needs: str = ""  # the override with which a run takes it; "": every run does
    # The evaluation of a saved encoder whose file has it; "": `summary.json` has it.
    evaluation: str = ""
    factor: float = 100  # of the value that is shown
    more_is_better: bool = True  # whether that can be said

    @property
    def is_accuracy(self) -> bool:
        """Whether it is shown in per cent."""
        return self.factor == 100


def _plain(title: str, *place: str, needs: str = "") -> MeasureFacts:
    """A number that is neither an accuracy nor better or worse."""
    return MeasureFacts(title, place, needs, factor=1, more_is_better=False)


MEASURES = {
    "knn": MeasureFacts("kNN, %"),
    "linear": MeasureFacts("linear probe, %"),
    "map": MeasureFacts("mAP, %"),
    "linear_10": MeasureFacts("probe, 10 % of the labels, %", needs=FEW),
    "linear_1": MeasureFacts("probe, 1 % of the labels, %", needs=FEW),
    "linear_labelled": MeasureFacts("probe, clients' labels, %"),
    "linear_recalibrated": MeasureFacts(
        "linear probe, norms recalibrated, %", ("recalibrated", "linear"), RECALIBRATED
    ),
    "accuracy": MeasureFacts("classifier, %"),
    "accuracy_recalibrated": MeasureFacts(
        "classifier, norms recalibrated, %", ("recalibrated", "accuracy"), RECALIBRATED
    ),
    "own_linear": MeasureFacts(
        "clients' own models, probe, %", ("clients_own", "linear", "mean"), CLIENTS
    ),
    "own_linear_worst": MeasureFacts(
        "worst tenth of clients, probe, %", ("clients_own", "linear", "worst_tenth"), CLIENTS
    ),
    "own_accuracy": MeasureFacts(
        "clients' own models, classifier, %", ("clients_own", "accuracy", "mean"), CLIENTS
    ),
    "own_accuracy_worst": MeasureFacts(
        "worst tenth of clients, classifier, %", ("clients_own", "accuracy", "worst_tenth"), CLIENTS
    ),
    "drift": _plain("drift from the mean", "drift", "mean", needs=DRIFT),
    "drift_pairs": _plain("drift between clients", "drift", "pairs", needs=DRIFT),
    "finetune_1": MeasureFacts("1 % labels, %", ("finetune", "0.01", "mean"), "", FINETUNING),
    "finetune_10": MeasureFacts("10 % labels, %", ("finetune", "0.1", "mean"), "", FINETUNING),
    "transfer": MeasureFacts("probe on other images, %", ("linear",), "", TRANSFER),
    "transfer_10": MeasureFacts(
        "probe on other images, 10 % of the labels, %", ("linear_10", "mean"), "", TRANSFER
    ),
    "transfer_1": MeasureFacts(
        "probe on other images, 1 % of the labels, %", ("linear_1", "mean"), "", TRANSFER
    ),
    "unsupervised": MeasureFacts(
        "score", ("unsupervised", "score"), "evaluation.unsupervised=true", factor=1
    ),
    "classes": _plain("classes with an image", "classes", "any"),
    "classes_1": _plain("classes with 1 % of the images", "classes", "one_percent"),
    "emd": _plain("earth mover's distance of classes", "classes", "emd"),
}
Measure = Literal[*MEASURES]  # type: ignore[valid-type]
