"""Puts files from outside of docs/ into the site, so that the pages' links to them lead somewhere.

A hook of MkDocs (mkdocs.yml). The repository needs no public address for it: whatever a page names
as `../CHANGELOG.md` or `../benchmarks/results/wire.json` is copied, pages of nav included.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()(?:\.\./)+([^)#]+)")  # from a page of docs/
PAGES = ("CHANGELOG.md", "SECURITY.md")  # at the top of the repository, with links into docs/


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the top and what pages link to outside of docs/."""
    top = Path(config.docs_dir).parent
    named = {*PAGES}
    for page in files.documentation_pages():
        named.update(_outside(page, config))
    for path in sorted(named):
        files.append(File.generated(config, path, abs_src_path=str(top / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links that lead out of docs/ into links to the copies."""
    if page.file.src_uri in PAGES:
        return re.sub(r"(?<=\]\()docs/", "", markdown)
    up = "../" * page.file.src_uri.count("/")
    for path in _outside(page.file, config):
        markdown = re.sub(rf"(?<=\]\()(?:\.\./)+{re.escape(path)}(?=[)#])", up + path, markdown)
    return markdown


def _outside(page: File, config: MkDocsConfig) -> set[str]:
    """Files of the repository, outside of docs/, that a page links to."""
    docs = Path(config.docs_dir)
    folder = (docs / page.src_uri).parent
    links = re.findall(r"\]\(((?:\.\./)+[^)#]+)", page.content_string)
    targets = [(folder / link).resolve() for link in links]
    top = docs.parent
    return {
        target.relative_to(top).as_posix()
        for target in targets
        if target.is_file() and target.is_relative_to(top) and not target.is_relative_to(docs)
    }
