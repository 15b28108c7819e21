"""`comparison.html`: nearest neighbours of some images by two encoders, side by side."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from orchestra_flwr.console.printable import printable
from orchestra_flwr.files import write_atomically
from orchestra_flwr.seeding import drawn
from orchestra_flwr.use.encoder_comparison import Comparison
from orchestra_flwr.use.thumbnails import COLUMNS, SHEET, Thumbnails, make_thumbnails

SHOWN = 6  # neighbours of an image on each side
SIDE = 72  # pixels of a picture on the page
STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --page: #f6f7f9; --card: #fff; --quiet: #5d6773;
  --other: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --page: #101317; --card: #191d23;
  --quiet: #9aa5b1; --other: #ff8a80; } }
body { margin: 0 auto; max-width: 78rem; padding: 1rem; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.2rem; } .quiet { color: var(--quiet); }
article { display: flex; flex-wrap: wrap; gap: .6rem 1.6rem; padding: .7rem; margin: .7rem 0;
  background: var(--card); border-radius: .5rem; }
figure { margin: 0; } figcaption { color: var(--quiet); font-size: .85rem; }
.row { display: flex; flex-wrap: wrap; gap: .3rem; }
.picture { display: inline-block; background-repeat: no-repeat; border-radius: .25rem; }
.other { outline: 3px solid var(--other); outline-offset: -3px; }
"""


def write_neighbours_page(
    path: Path,
    comparison: Comparison,
    names: Sequence[str],
    read: Callable[[str], bytes],
    *,
    labels: Sequence[str] | None,
    queries: int,
    seed: int,
) -> None:
    """Writes or replaces the page; it needs no network.

    Args:
        names: their files.
        read: gives a file's content.
        labels: their classes; neighbours of another class than the image's have a frame.
        queries: how many images are shown, drawn by `seed`.

    Raises:
        OSError: the page cannot be written.
    """
    chosen = drawn(len(names), queries, seed, "neighbours").tolist()
    rows = [
        [[query], *(side.indices[query, :SHOWN].tolist() for side in comparison.neighbours)]
        for query in chosen
    ]
    shown = dict.fromkeys(p for row in rows for positions in row for p in positions)
    places = {position: place for place, position in enumerate(shown)}
    pictures = make_thumbnails([names[position] for position in shown], read, budget=True)

    def picture(position: int, query: int) -> str:
        label = "" if labels is None else labels[position]
        other = " other" if labels is not None and label != labels[query] else ""
        title = f"{printable(names[position])} {label}".strip()
        return _picture(pictures, places[position], title, other)

    frame = "" if labels is None else " A frame: another class than the image's."
    style = STYLE + "".join(
        f".s{number}{{background-image:url(data:image/webp;base64,{b64encode(sheet).decode()})}}"
        for number, sheet in enumerate(pictures.sheets)
    )
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Before and after</title><style>{style}</style>"
        f"<h1>Nearest neighbours before and after training</h1><p>{escape(comparison.verdict)}</p>"
        f'<p class="quiet">{len(chosen)} of {len(names):,} images, drawn at random.{frame}</p>'
        f"<main>{''.join(_row(row, picture) for row in rows)}</main></html>\n"
    )
    write_atomically(path, page.encode())


def _row(row: list[list[int]], picture: Callable[[int, int], str]) -> str:
    """An image, alone in a list, and its neighbours before and after."""
    query = row[0][0]
    figures = "".join(
        f'<figure><div class="row">{"".join(picture(p, query) for p in positions)}</div>'
        f"<figcaption>{title}</figcaption></figure>"
        for title, positions in zip(("image", "before", "after"), row, strict=True)
    )
    return f"<article>{figures}</article>"


def _picture(pictures: Thumbnails, place: int, title: str, frame: str) -> str:
    """A square of its sheet, of `SIDE` pixels."""
    sheet, within = divmod(place, SHEET)
    row, column = divmod(within, COLUMNS)
    scaled = SIDE + 2  # a pixel of each edge is hidden, where smoothing mixes in the next picture
    return (
        f'<span class="picture s{sheet}{frame}" role="img" aria-label="{escape(title)}" '
        f'title="{escape(title)}" style="width:{SIDE}px;height:{SIDE}px;background-size:'
        f"{COLUMNS * scaled}px auto;background-position:-{column * scaled + 1}px "
        f'-{row * scaled + 1}px"></span>'
    )
