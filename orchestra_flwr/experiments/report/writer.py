"""The report of a folder of runs: `report.md`, a self-contained `report.html`, and figures."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestra_flwr.config import ConfigError, why_unread
from orchestra_flwr.console.text import duration, size
from orchestra_flwr.experiments.planning.plan import Plan, read_plans
from orchestra_flwr.experiments.report.html import to_html
from orchestra_flwr.experiments.report.markdown import (
    FIGURES,
    Table,
    code,
    escape,
    folded,
    heading,
    items,
    quiet,
    warning,
)
from orchestra_flwr.experiments.report.presentations import PRESENTERS, show_progress, show_runs
from orchestra_flwr.experiments.report.tables import (
    WORSE,
    lines_table,
    provenance,
    results_table,
    runs_table,
)
from orchestra_flwr.experiments.results.comparison import Results, read_results
from orchestra_flwr.experiments.results.paper import paper_source
from orchestra_flwr.experiments.results.runs import Run, find_runs, unreadable
from orchestra_flwr.files import write_atomically


def write_report(folder: str | Path) -> Path:
    """Writes `report.html`, which it returns, `report.md` and `figures/` into a folder of runs.

    Args:
        folder: holds run folders, of experiments (listed in `plans/`) or of none. Runs may be
            missing, unfinished, failed or damaged.

    Raises:
        ConfigError: no such folder, or no run in it.
        OSError: a file cannot be written.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    (plans, damaged), runs = read_plans(folder), find_runs(folder)
    if not plans and not runs:
        raise ConfigError(f"{folder}: holds no runs")
    title = "Experiments" if plans else f"Runs in {folder.resolve().name}"
    parts = [heading(1, title)]
    if plans:
        sources = dict.fromkeys(paper_source(plan.name) for plan in plans)
        parts += [quiet(f"The paper: {source}") for source in sources if source]
        parts += _scale_warning(plans)
    parts += [
        warning(f"{file} cannot be read, its experiment is left out: {why}")
        for file, why in damaged.items()
    ]
    for plan in plans:
        parts += _experiment(read_results(plan, folder), folder)
    planned = {folder / row.run for plan in plans for row in plan.rows}
    parts += _other_runs([run for run in runs if run.folder not in planned], folder, bool(plans))
    page = folder / "report.html"
    text = "\n\n".join(parts) + "\n"
    write_atomically(folder / "report.md", text.encode())
    write_atomically(page, to_html(title, text, folder).encode())
    return page


def _scale_warning(plans: Sequence[Plan]) -> Iterator[str]:
    small = {p.settings.title for p in plans if not p.settings.comparable and p.scale != "paper"}
    if small:
        yield warning(
            f"Experiments at {' and '.join(sorted(small))} use other images, a smaller network and "
            "far fewer rounds than the paper. Their results must NOT be compared with the paper's "
            "in absolute value; only the order of the methods, and how far apart they are, can be."
        )


def _experiment(results: Results, folder: Path) -> Iterator[str]:
    plan, experiment = results.plan, results.plan.experiment
    yield heading(2, f"{experiment.reference}: {experiment.title} ({plan.settings.title})")
    yield escape(experiment.about)
    if not plan.settings.comparable:
        changed = " ".join(plan.changes or ())
        beside = f" with {changed}" if changed and plan.scale == "paper" else ""
        title = plan.settings.title + beside
        yield warning(
            f"{title[0].upper()}{title[1:]}: not comparable with the paper in absolute value."
        )
    settings = dict.fromkeys(_images_and_model(run) for run in results.runs)
    if settings:
        yield quiet(f"Images: {'; '.join(settings)}.")
    figures = folder / FIGURES / f"{plan.name}-{plan.scale}"
    if presenter := PRESENTERS.get(experiment.show.kind):
        yield from presenter(results, figures)
    for section, rows in results.sections(experiment.show.row_axes).items():
        if section:
            yield heading(3, section)
        by_axis = experiment.show.kind == "lines"
        table = lines_table(rows, plan) if by_axis else results_table(rows, plan)
        yield table.markdown()
        yield from _worse_legend(table)
    if results.incomplete:
        lines = [f"{name}: {reason}" for name, reason in results.incomplete.items()]
        expected = len({row.run for row in plan.rows})
        yield warning(f"{len(lines)} of {expected} runs are not complete:")
        yield items(lines) if len(lines) <= 5 else folded("Which", items(lines))
    if results.runs:
        yield from show_progress(results, figures)
    yield folded("How these results were made", *_reproduction(results))


def _worse_legend(table: Table) -> Iterator[str]:
    if any(WORSE in cell for row in table.rows for cell in row):
        yield quiet(f"{WORSE}: worse than the same encoder before training.")


def _images_and_model(run: Run) -> str:
    config = run.config
    limited = f", {config.data.train_limit:,} of its images" if config.data.train_limit else ""
    root = config.data.model_dump().get("root")
    source = Path(root).name if root else config.data.name
    if "classes" in run.summary:
        return f"{source}{limited}"
    has_width = why_unread("model.width", config.unread()) is None
    width = f" of width {config.model.width}" if has_width else ""
    return f"{source}{limited} ({config.model.name}{width}, {config.federation.rounds} rounds)"


def _reproduction(results: Results) -> Iterator[str]:
    yield code(results.plan.command)
    yield items(provenance(results.runs))
    commands = [
        f"orchestra-sim {shlex.join(row.overrides)} seed={row.seed}" for row in results.plan.rows
    ]
    if results.plan.experiment.work == "train":
        yield folded("The command of each run", code("\n".join(dict.fromkeys(commands))))


def _other_runs(runs: Sequence[Run], folder: Path, beside_plans: bool) -> Iterator[str]:
    """Runs that belong to no experiment."""
    if not runs:
        return
    if beside_plans:
        yield heading(2, "Other runs")
    errors = unreadable(runs)
    readable = [run for run in runs if run.folder not in errors]
    table = runs_table(readable, folder)
    yield table.markdown()
    yield from _worse_legend(table)
    for path, reason in errors.items():
        name = path.relative_to(folder).as_posix()
        yield escape(f"{name} is left out: it is of another version or damaged: {reason}")
    seconds, sent = sum(run.seconds or 0 for run in readable), sum(run.sent for run in readable)
    yield quiet(f"Together {duration(seconds)} of rounds and {size(sent)} sent.")
    yield from show_runs(readable, folder)
    yield folded("Where they ran", items(provenance(readable)))
