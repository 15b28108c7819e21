"""Shows each notebook of docs/ as a page beside its file. A hook of MkDocs (mkdocs.yml)."""

import json
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()(\w+)\.ipynb(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each notebook."""
    for path in sorted(Path(config.docs_dir).glob("*.ipynb")):
        files.append(File.generated(config, f"{path.stem}.md", content=_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links to notebooks into links to their pages."""
    is_one = (Path(config.docs_dir) / page.file.src_uri).with_suffix(".ipynb").is_file()
    return markdown if is_one else LINK.sub(r"\1.md", markdown)


def _page(path: Path) -> str:
    """Texts as they are, code in blocks, below the title a link to the notebook itself."""
    cells = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        cells.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    title, _, rest = cells[0].partition("\n")
    link = f"This page is the notebook [{path.name}]({path.name})."
    return "\n\n".join([title, link, rest.strip(), *cells[1:]]) + "\n"
