"""The report of a folder of runs: `report.md`, a self-contained `report.html`, and figures."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestra_flwr.config import ConfigError, is_free
from orchestra_flwr.experiments.planning import Plan, read_plans
from orchestra_flwr.experiments.report.document import (
    Block,
    Code,
    Folded,
    Heading,
    Items,
    Paragraph,
)
from orchestra_flwr.experiments.report.html import to_html
from orchestra_flwr.experiments.report.markdown import to_markdown
from orchestra_flwr.experiments.report.presentations import (
    FIGURES,
    PRESENTERS,
    show_progress,
    show_runs,
)
from orchestra_flwr.experiments.report.tables import (
    lines_table,
    provenance,
    results_table,
    runs_table,
)
from orchestra_flwr.experiments.results.comparison import Results, read_results
from orchestra_flwr.experiments.results.paper import paper_source
from orchestra_flwr.experiments.results.runs import Run, find_runs, unreadable
from orchestra_flwr.files import write_atomically
from orchestra_flwr.reporting.text import duration, size


def write_report(folder: str | Path) -> Path:
    """Writes `report.html`, `report.md` and `figures/` into a folder of runs.

    Args:
        folder: holds run folders, of experiments (listed in `plans/`) or of none. Runs may be
            missing, unfinished, failed or damaged.

    Returns:
        The HTML page.

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
    blocks: list[Block] = [Heading(1, title)]
    if plans:
        sources = dict.fromkeys(paper_source(plan.name) for plan in plans)
        blocks += [Paragraph(f"The paper: {source}", "quiet") for source in sources]
        blocks += _scale_warning(plans)
    blocks += [
        Paragraph(f"{file} cannot be read, its experiment is left out: {why}", "warning")
        for file, why in damaged.items()
    ]
    for plan in plans:
        blocks += _experiment(read_results(plan, folder), folder)
    planned = {folder / row.run for plan in plans for row in plan.rows}
    blocks += _other_runs([run for run in runs if run.folder not in planned], folder, bool(plans))
    page = folder / "report.html"
    write_atomically(folder / "report.md", to_markdown(blocks, folder).encode())
    write_atomically(page, to_html(title, blocks).encode())
    return page


def _scale_warning(plans: Sequence[Plan]) -> Iterator[Block]:
    small = {p.settings.title for p in plans if not p.settings.comparable and p.scale != "paper"}
    if small:
        yield Paragraph(
            f"Experiments at {' and '.join(sorted(small))} use other images, a smaller network and "
            "far fewer rounds than the paper. Their results must NOT be compared with the paper's "
            "in absolute value; only the order of the methods, and how far apart they are, can be.",
            "warning",
        )


def _experiment(results: Results, folder: Path) -> Iterator[Block]:
    plan, experiment = results.plan, results.plan.experiment
    yield Heading(2, f"{experiment.reference}: {experiment.title} ({plan.settings.title})")
    yield Paragraph(experiment.about)
    if not plan.settings.comparable:
        changed = " ".join(o for o in plan.extra or () if not is_free(o))
        beside = f" with {changed}" if changed and plan.scale == "paper" else ""
        title = plan.settings.title + beside
        yield Paragraph(
            f"{title[0].upper()}{title[1:]}: not comparable with the paper in absolute value.",
            "warning",
        )
    settings = dict.fromkeys(_images_and_model(run) for run in results.runs)
    if settings:
        yield Paragraph(f"Images: {'; '.join(settings)}.", "quiet")
    figures = folder / FIGURES / f"{plan.name}-{plan.scale}"
    yield from PRESENTERS[experiment.show.kind](results, figures)
    for section, rows in results.sections(experiment.show.row_axes).items():
        if section:
            yield Heading(3, section)
        by_axis = experiment.show.kind == "lines"
        yield lines_table(rows, plan) if by_axis else results_table(rows, plan)
    if results.incomplete:
        lines = tuple(f"{run.name}: {run.reason}" for run in results.incomplete)
        expected = len({row.run for row in plan.rows})
        yield Paragraph(f"{len(lines)} of {expected} runs are not complete:", "warning")
        yield Items(lines) if len(lines) <= 5 else Folded("Which", (Items(lines),))
    if results.runs:
        yield from show_progress(results, figures)
    yield Folded("How these results were made", tuple(_reproduction(results)))


def _images_and_model(run: Run) -> str:
    config = run.config
    limited = f", {config.data.train_limit:,} of its images" if config.data.train_limit else ""
    root = config.data.model_dump().get("root")
    source = Path(root).name if root else config.data.name
    if "classes" in run.summary:
        return f"{source}{limited}"
    return (
        f"{source}{limited} ({config.model.name} of width {config.model.width}, "
        f"{config.federation.rounds} rounds)"
    )


def _reproduction(results: Results) -> Iterator[Block]:
    yield Code(results.plan.command)
    yield Items(tuple(provenance(results.runs)))
    commands = [
        f"orchestra-sim {shlex.join(row.overrides)} seed={row.seed}" for row in results.plan.rows
    ]
    if results.plan.experiment.work == "train":
        yield Folded("The command of each run", (Code("\n".join(dict.fromkeys(commands))),))


def _other_runs(runs: Sequence[Run], folder: Path, beside_plans: bool) -> Iterator[Block]:
    """Runs that belong to no experiment."""
    if not runs:
        return
    if beside_plans:
        yield Heading(2, "Other runs")
    errors = unreadable(runs)
    readable = [run for run in runs if run.folder not in errors]
    yield runs_table(readable, folder)
    for path, reason in errors.items():
        name = path.relative_to(folder).as_posix()
        yield Paragraph(f"{name} is left out, it is of another version or damaged: {reason}")
    seconds = sum(run.summary.get("seconds") or 0 for run in readable)
    traffic = sum(
        (run.summary.get(f"bytes_{way}") or 0) for run in readable for way in ("up", "down")
    )
    yield Paragraph(f"Together {duration(seconds)} of rounds and {size(traffic)} sent.", "quiet")
    yield from show_runs(readable, folder)
    yield Folded("Where they ran", (Items(tuple(provenance(readable))),))
