"""Tables of which a narrow terminal cuts nothing off."""

from rich.console import Console
from rich.table import Table

MAX_WIDTH = 10_000  # characters of a line


def print_whole(table: Table, console: Console) -> None:
    """Prints a table as wide as its cells: in a narrower terminal its lines wrap."""
    table.width = console.measure(
        table, options=console.options.update(max_width=MAX_WIDTH)
    ).maximum
    console.print(table, soft_wrap=True)
