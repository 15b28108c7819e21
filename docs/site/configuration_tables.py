"""Writes the tables of docs/configuration.md from the comments of conf/.

`python docs/site/configuration_tables.py`; a test holds that the page is what this makes.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from orchestra_flwr.config import Config
from orchestra_flwr.config.reading.compose import described
from orchestra_flwr.config.reading.key_descriptions import HIDDEN, Described, read_comments

PAGE = Path(__file__).parents[1] / "configuration.md"
BEGIN, END = "<!-- tables: docs/site/configuration_tables.py -->\n", "<!-- end of tables -->\n"
MOST_WORDS = 20  # of a cell, so that tables can be read on a phone
GUIDES = {  # where more is said of a group
    **dict.fromkeys(("data", "partition", "shift"), "data.md"),
    **dict.fromkeys(("method", "terms", "clustering", "merging", "server_optimizer"), "methods.md"),
    **dict.fromkeys(("model", "adaptation"), "backbones.md"),
    **dict.fromkeys(("training", "optimizer", "schedule", "logging"), "training.md"),
    **dict.fromkeys(("aggregation", "attack"), "robustness.md"),
    "labels": "mutual-information.md#some-labels",
    "federation": "deployment.md#implausible-replies",
    "exchange": "featarc.md",
    "evaluation": "evaluation.md",
    "engine": "performance.md#the-engine",
    "privacy": "privacy.md",
    "preset": "adapt.md",
}


def tables() -> str:
    """A section for each group: its choices, then its keys; single keys come last."""
    page = described(Config, [])
    groups = [key for key, value in page.values.items() if isinstance(value, Mapping)]
    parts = [_group(page, group) for group in [*groups, "preset"]]
    single = [
        _row((key,), value, _cell(page._meaning((key,))))
        for key, value in page.values.items()
        if key not in groups
    ]
    return (
        "\n".join([*parts, "### Other keys\n", *_table(("key", "default", "meaning"), single)])
        + "\n"
    )


def _group(page: Described, group: str) -> str:
    choices = page._choices(group)
    guide = (
        f" More: [{GUIDES[group].partition('#')[0]}]({GUIDES[group]})." if group in GUIDES else ""
    )
    about = page._of_section((group,)).rstrip(".") or "What is added to the loss of any method"
    lines = [f"### {group}\n", f"{about}.{guide}\n"]
    chosen = page._chosen(group)
    if len(choices) > 1 and group != "terms":
        rows = [
            (f"`{group}={name}`", _cell(text) + " (default)" * (name == chosen))
            for name, text in choices.items()
        ]
        lines += [*_table(("choice", "what"), rows), ""]
    keys = [*_keys(page, group)]
    lines += [*_table(("key", "default", "meaning"), keys), ""] if keys else []
    return "\n".join(lines)


def _keys(page: Described, group: str) -> Iterator[tuple[str, ...]]:
    """Of the chosen file, then of the other plug-ins those that it lacks, with whose they are."""
    shown = dict(_leaves(page.values.get(group, {}), (group,)))
    for path, value in shown.items():
        yield _row(path, value, _cell(page._meaning(path)))
    room = getattr(page.section.model_fields.get(group), "annotation", None)
    plugins = room.room.found() if hasattr(room, "room") and group != "terms" else ()
    others: dict[tuple[tuple[str, ...], str, str], tuple[Any, list[str]]] = {}
    for name in plugins:
        file = page.folders[0] / group / f"{name}.yaml"
        content, meanings = yaml.safe_load(file.read_text()), read_comments(file, group)[1]
        is_global = isinstance(content.get(group), dict)
        for path, value in _leaves(content[group] if is_global else content, (group,)):
            if path not in shown and path[1] != "defaults":
                row = (path, repr(value), meanings.get(".".join(path), ""))
                others.setdefault(row, (value, []))[1].append(name)
    for (path, _, meaning), (value, names) in others.items():
        whose = " and ".join(f"`{name}`" for name in names)
        whose = whose if len(names) <= 2 else f"`{names[0]}` and {len(names) - 1} others"
        yield _row(path, value, f"of {whose}: {_cell(meaning)}".removesuffix(": "))


def _leaves(
    values: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if key in (*HIDDEN, "name"):
            continue
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _row(path: tuple[str, ...], value: Any, meaning: str) -> tuple[str, ...]:
    follows = isinstance(value, str) and value.startswith("${")  # another key, as its meaning says
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
    return f"`{'.'.join(path)}`", "" if follows else f"`{text}`", meaning


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _cell(text: str) -> str:
    """A comment of conf/ in a table.

    Raises:
        ValueError: it is too long.
    """
    if len(text.split()) > MOST_WORDS:
        raise ValueError(f"conf/ has a comment of more than {MOST_WORDS} words: {text}")
    return text.replace("|", "/").replace("<", "&lt;")


def page_text() -> str:
    """The page with tables made anew."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + "\n" + tables() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_text())
