"""Exported files as a table: size, latency, accuracy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestra_flwr.console.printable import printable
from orchestra_flwr.console.text import ACCURACIES, percent, size
from orchestra_flwr.console.whole_table import print_whole


def print_export(results: Mapping[str, Any], folder: Path) -> None:
    """Prints a Markdown table of the files, and on the last line the folder that holds them."""
    table = Table(box=box.MARKDOWN)
    files = results["files"]
    batches = list(files[0]["seconds"])
    shown = {key: name for key, name in ACCURACIES.items() if key in files[0]}
    headings = ["file", "size", *(f"ms, batch {b}" for b in batches), "difference", *shown.values()]
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "file" else "right")
    for file in files:
        difference = f"{file['difference']:.1e}" if "difference" in file else ""
        times = (f"{1000 * file['seconds'][batch]:.2f}" for batch in batches)
        table.add_row(
            Text(printable(file["file"])),  # in which brackets are no markup
            size(file["bytes"]),
            *times,
            difference,
            *(percent(file[key]) for key in shown),
        )
    console = Console()
    print_whole(table, console)
    console.out(printable(str(folder)), highlight=False)
