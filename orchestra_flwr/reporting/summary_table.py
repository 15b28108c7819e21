"""The table that is printed at the end of a run."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import (
    ACCURACIES,
    MORE_IS_BETTER,
    SCORE,
    counted,
    duration,
    lookup,
    percent,
    size,
)

ASKED_FOR = {  # of a summary, by key; shown where present
    "linear_10": "linear probe, 10 % of the labels",
    "linear_1": "linear probe, 1 % of the labels",
    "linear_labelled": "linear probe, clients' labels",
    "accuracy": "classifier itself",
}
TITLES = ACCURACIES | ASKED_FOR
LABEL_FREE = (  # names, short enough for a terminal, and their keys in a summary
    ("effective rank", ("effective_rank",)),
    (SCORE, ("score",)),
    ("effective rank, clients", ("unsupervised", "effective_rank")),
    (f"{SCORE}, clients", ("unsupervised", "score")),
)
MUCH = 0.02  # a difference of accuracies that is worth a line
STATISTICS = {  # by the key of scores before training that the table does not show
    "initial_statistics": "BatchNorm's initial statistics, which are of no images (no baseline)",
    "loaded_statistics": "BatchNorm's statistics as loaded",
    "recalibrated_statistics": "BatchNorm's statistics of the server's images",
}


def scores_table(untrained: Mapping[str, Any], trained: Mapping[str, Any]) -> Table:
    """Scores before and after training, accuracies in percent; missing ones are shown as "-".

    Both have the shape of `summary.json`: `knn` and `linear` of the saved `backbone`, and those of
    any other backbone under its name, as fractions. Scores without labels are of the saved one
    alone, if they were asked for. Of a run without a round there is a single column. The table is
    ASCII and valid Markdown.
    """
    columns = ["before training", "trained", "gain"][: 1 if trained.get("rounds") == 0 else 3]
    table = Table(box=box.MARKDOWN)
    table.add_column("score")
    for column in columns:
        table.add_column(column, justify="right")
    saved = trained.get("backbone", "target")
    others = [n for n, value in trained.items() if n != "untrained" and _is_scores(value)]
    standard = ("knn", "linear") if trained.get("map") is None else ("map",)  # several labels
    measured = [key for key in ASKED_FOR if trained.get(key) is not None]
    for key in (*standard, *measured) if _has_accuracies(trained) else ():
        for name, keys in ((saved, (key,)), *((other, (other, key)) for other in others)):
            pair = [(lookup(of, *keys), _error(of, *keys)) for of in (untrained, trained)]
            cells: list[str | Text] = [_cell(*of) for of in pair]
            cells.append(_gain(pair[0][0], pair[1][0]))
            table.add_row(f"{TITLES[key]}, {name}", *cells[: len(columns)])
    for title, keys in LABEL_FREE if _is_label_free(trained) else ():
        before, after = lookup(untrained, *keys), lookup(trained, *keys)
        if after is not None:
            figures = ["-", f"{after:.3g}", "-"]
            if before is not None:
                figures = [f"{before:.3g}", f"{after:.3g}", f"{after - before:+.3g}"]
            table.add_row(title, *figures[: len(columns)])
    return table


def _is_label_free(trained: Mapping[str, Any]) -> bool:
    """Whether scores without labels were asked for."""
    return "score" in trained or "unsupervised" in trained


def _error(scores: Mapping[str, Any], *keys: str) -> float | None:
    """The standard error of the score at a path of keys."""
    return lookup(scores, *keys[:-1], f"{keys[-1]}_standard_error")


def print_summary(
    summary: Mapping[str, Any], folder: str | Path, console: Console | None = None
) -> None:
    """Prints the table, the cost of the run, and on the last line its folder.

    Any key of `summary.json` may be missing.
    """
    console = console or Console()
    table = scores_table(summary.get("untrained") or {}, summary)
    if table.row_count:
        console.print(table)
        if _is_label_free(summary):
            console.print(MORE_IS_BETTER)
    if not _has_accuracies(summary):
        for line in _unscored(summary, folder):
            console.out(printable(line), highlight=False)
    if summary.get("not_private"):
        console.print(Text(f"NOT PRIVATE: {summary['not_private']}", style="bold red"))
    for warning in summary.get("warnings") or ():
        console.print(Text(f"WARNING: {printable(warning)}", style="bold yellow"), soft_wrap=True)
    clients = (_own_classes(summary), _drift(summary))
    last = (*privacy_lines(summary), f"run folder: {folder}")
    for line in (_other_statistics(summary), _kept(summary), *clients, _cost(summary), *last):
        if line:
            console.out(printable(line), highlight=False)


def print_so_far(
    records: Sequence[Mapping[str, Any]], continuing: str, folder: str | Path, console: Console
) -> None:
    """Prints the latest scores of a run that has not ended, its cost, and how it goes on.

    Args:
        records: the lines of `metrics.jsonl` so far; there may be none.
        continuing: a line with the command.
    """
    scored = [record for record in records if record.get("scores")]
    if scored:
        untrained = _saved_first(scored[0]) if scored[0]["round"] == 0 else {}
        console.print(scores_table(untrained, _saved_first(scored[-1])))
        console.out(f"evaluated last after round {scored[-1]['round']}", highlight=False)
    sums = ("seconds", "bytes_up", "bytes_down")
    cost = {key: sum(record.get(key) or 0 for record in records) for key in sums}
    rounds = {"rounds": records[-1]["round"] if records else 0}
    for line in (_cost(rounds | cost), continuing, f"run folder: {folder}"):
        console.out(printable(line), highlight=False)


def _saved_first(record: Mapping[str, Any]) -> dict[str, Any]:
    """A round's scores as :func:`scores_table` takes them."""
    (saved, scores), *others = record["scores"].items()
    of_saved = {key: value for key, value in scores.items() if key not in STATISTICS}
    return {**of_saved, **dict(others), "backbone": saved, "rounds": record["round"]}


def _unscored(summary: Mapping[str, Any], folder: str | Path) -> tuple[str, ...]:
    """Why nothing was evaluated with labels, and what can be done with the encoder."""
    here = shlex.quote(str(folder))
    done = "saved" if summary.get("rounds") == 0 else "trained and saved"
    return (
        f"The encoder is {done}, but not evaluated with labels: {summary['not_evaluated']}.",
        "Next:",
        "  evaluate it with labelled images (train/<class>/ and test/<class>/ in a folder or zip):",
        f"    orchestra-evaluate run={here} data=image_folder data.root=<images>",
        "  look at images by it, and find similar ones:",
        f"    orchestra-embed run={here} images=<folder or zip>",
        "  see whether training helped:",
        f"    orchestra-compare after={here} images=<folder or zip>",
    )


def privacy_lines(summary: Mapping[str, Any]) -> list[str]:
    """The guarantees for what left the clients, a line for each kind of data."""
    lines = (_anonymity(summary), _releases(summary), _updates(summary))
    return [line for line in lines if line]


def _other_statistics(summary: Mapping[str, Any]) -> str:
    """The scores before training with other BatchNorm statistics, where these matter."""
    untrained = summary.get("untrained") or {}
    for kind, title in STATISTICS.items():
        others = untrained.get(kind) or {}
        scores = [(TITLES[k], untrained.get(k), others.get(k)) for k in ("knn", "linear")]
        measured = [(name, a, b) for name, a, b in scores if a is not None and b is not None]
        if any(abs(a - b) >= MUCH for _, a, b in measured):
            shown = ", ".join(f"{name} {percent(b)}" for name, _, b in measured)
            return f"before training, with {title}: {shown}"
    return ""


def _kept(summary: Mapping[str, Any]) -> str:
    """Which round's encoder is saved, if that need not be the last one's."""
    round_, rounds = summary.get("kept_round"), summary.get("rounds")
    if round_ is None:
        return ""
    key = str(summary.get("kept_by"))
    keys = (key,) if lookup(summary, key) is not None else ("unsupervised", key)  # of the clients
    scores = [lookup(of, *keys) for of in (summary.get("untrained") or {}, summary)]
    before, best = (
        v if v is None else percent(v) if key in ACCURACIES else f"{v:.3g}" for v in scores
    )
    if round_ == 0:
        than = f" than its {best}" if best else ""
        return f"kept: the encoder before training; by {key} no round's was better{than}"
    start = f", before training {before}" if before else ""
    scored = f" ({best}{start})" if best else ""
    return f"kept: the encoder after round {round_} of {rounds}, the best by {key}{scored}"


def _own_classes(summary: Mapping[str, Any]) -> str:
    """Each client's own model on the client's own classes."""
    parts = [
        f"{TITLES.get(name, name)} {percent(spread['mean'])}, "
        f"{_worst(spread)} {percent(spread['worst_tenth'])}{_deviation(spread)}"
        for name, spread in (summary.get("clients_own") or {}).items()
    ]
    return f"clients' own models on their own classes: {'; '.join(parts)}" if parts else ""


def _worst(of_clients: Mapping[str, Any]) -> str:
    """The worst tenth of fewer than twenty clients is one; old summaries lack the number."""
    return "worst client" if of_clients.get("clients", 20) < 20 else "worst tenth"


def _deviation(of_clients: Mapping[str, Any]) -> str:
    """The deviation between clients; summaries of earlier versions have none."""
    return f", deviation {percent(of_clients['std'])}" if "std" in of_clients else ""


def _drift(summary: Mapping[str, Any]) -> str:
    drift = summary.get("drift")
    if not drift:
        return ""
    return f"drift: {drift['mean']:.3g} from the mean, {drift['pairs']:.3g} between two clients"


def _has_accuracies(summary: Mapping[str, Any]) -> bool:
    """Whether the run has accuracies, or at least could have had some."""
    scored = any(_is_scores(value) for value in (summary, *summary.values()))
    return scored or not summary.get("not_evaluated")


def _is_scores(value: Any) -> bool:
    """Whether these are a backbone's scores; those of clients' own models are not numbers."""
    scores = [value.get(key) for key in ACCURACIES] if isinstance(value, Mapping) else []
    return any(isinstance(score, float) for score in scores)


def _cost(summary: Mapping[str, Any]) -> str:
    facts = []
    if summary.get("rounds") is not None:
        facts.append(counted(summary["rounds"], "round"))
    if summary.get("seconds") is not None:
        facts.append(duration(summary["seconds"]))
    for direction in ("up", "down"):
        if summary.get(f"bytes_{direction}") is not None:
            facts.append(f"{size(summary[f'bytes_{direction}'])} {direction}")
    return ", ".join(facts)


def _released(summary: Mapping[str, Any]) -> str:
    """What clients sent beside their encoders; in version 0.1 it was always centroids."""
    return str(summary.get("released", "centroids"))


def _anonymity(summary: Mapping[str, Any]) -> str:
    k = summary.get("k_anonymity")
    if k is None or summary.get("not_private"):
        return ""
    return f"all {_released(summary)} that left a client stand for {k} different images or more"


def _releases(summary: Mapping[str, Any]) -> str:
    label = _released(summary)
    ledger = (summary.get("privacy") or {}).get(label)
    if not ledger:
        return ""
    most = max(ledger["releases"].values(), default=0)
    spent = f"epsilon {ledger['epsilon']:.3g} at delta {ledger['delta']:g}"
    repeated = f"{most} times {ledger['epsilon_each']:g}"
    return f"{label}: {spent} for an image of the client that released most ({repeated})"


def _updates(summary: Mapping[str, Any]) -> str:
    updates = (summary.get("privacy") or {}).get("updates")
    if not isinstance(updates, Mapping):
        return f"averaged encoders: {updates}" if updates else ""
    epsilon = updates["epsilon"]
    spent = "infinite" if epsilon is None else f"{epsilon:.3g}"
    whom = updates.get("protects", "a whole client")  # summaries of earlier versions do not say
    return f"averaged encoders: epsilon {spent} at delta {updates['delta']:g} for {whom}"


def _cell(score: float | None, error: float | None = None) -> str:
    """A score with its standard error: "41.5 +- 1.1 %"."""
    if score is None or error is None:
        return "-" if score is None else percent(score)
    return f"{100 * score:.1f} +- {100 * error:.1f} %"


def _gain(before: float | None, after: float | None) -> Text:
    if before is None or after is None:
        return Text("-")
    gain = 100 * (after - before)
    return Text(f"{gain:+.1f}", style="green" if gain > 0 else "red" if gain < 0 else "")
