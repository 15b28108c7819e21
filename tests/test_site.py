"""The documentation's site: `make docs`."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]

pytest.importorskip("material", reason="needs the extra docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # the theme's word on a later MkDocs
    done = subprocess.run(build, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def texts(site):
    return {page: page.read_text() for page in site.rglob("*.html")}


@pytest.mark.slow
def test_has_a_page_for_each_guide_and_nothing_of_the_build(site):
    pages = {page.relative_to(site).as_posix() for page in texts(site)}
    assert {f"{page.stem}.html" for page in PAGES} | {"index.html", "results/index.html"} <= pages
    assert all("plugin" in page.parts for page in site.rglob("*.py"))  # of results: to run them


@pytest.mark.slow
def test_every_link_leads_to_a_file_and_a_heading(site):
    """Those to files outside of docs/ included, which MkDocs alone would leave dead."""
    pages = texts(site)
    identifiers = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    outside = 0
    for page, text in pages.items():
        if page.name == "404.html":  # its links are relative to the host
            continue
        for link in re.findall(r'<a [^>]*href="(?!https?:|mailto:)([^"]+)"', text):
            name, _, heading = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), f"{page.name}: {link}"
            if heading and target in identifiers:
                assert heading in identifiers[target] | {"__skip"}, f"{page.name}: {link}"
            outside += "benchmarks/results" in link
    assert outside


@pytest.mark.slow
def test_a_reader_fetches_nothing_from_other_hosts(site):
    for page, text in texts(site).items():
        fetched = re.findall(r'<(?:script|link|img)\b[^>]*(?:src|href)="(https?:[^"]+)"', text)
        assert not [url for url in fetched if "canonical" not in url], page.name


@pytest.mark.slow
def test_the_reference_has_the_public_names(site):
    text = (site / "api.html").read_text() + (site / "plug-ins.html").read_text()
    for name in ("simulate", "load_encoder", "Result", "methods.Method", "terms.Term"):
        assert f'id="orchestra_flwr.{name}"' in text, name
    assert not re.search(r":(?:class|func|meth):", text)


@pytest.mark.slow
def test_a_notebook_is_a_page(site):
    text = (site / "quickstart.html").read_text()
    assert 'href="quickstart.ipynb"' in text and (site / "quickstart.ipynb").is_file()
    assert text.count("<pre><span") >= 8 and "load_digits" in text
    assert 'href="quickstart.html"' in (site / "index.html").read_text()


@pytest.mark.slow
def test_the_search_works_from_a_disk(site, browser):
    page, fetched = browser.new_page(viewport={"width": 1280, "height": 800}), []
    page.on("request", lambda request: fetched.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.click("input.md-search__input")
    page.keyboard.type("secure aggregation")
    page.wait_for_selector(".md-search-result__item", timeout=60_000)
    assert "secure aggregation" in page.locator(".md-search-result__list").inner_text().lower()
    assert not [url for url in fetched if not url.startswith(("file:", "data:", "about:"))]


@pytest.mark.slow
def test_nothing_is_cut_on_a_laptop_and_the_first_picture_is_seen_at_once(site, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    for file in texts(site):
        page.goto(file.as_uri())
        cut = page.evaluate(
            "[...document.querySelectorAll('html, pre > code, .md-typeset__scrollwrap')]"
            ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 60))"
        )
        assert not cut, (file.name, cut)
    page.goto((site / "index.html").as_uri())
    box = page.locator(".md-content img").first.bounding_box()
    assert box["y"] + box["height"] < 800


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_reads_the_same_on_a_code_host_and_on_the_site(page):
    """The two dialects differ over blank lines before lists, and over indentation in them."""
    from markdown import Markdown
    from markdown_it import MarkdownIt
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"))
    extensions, options = config.markdown_extensions, config.mdx_configs
    text = page.read_text()
    on_the_site = Markdown(extensions=extensions, extension_configs=options).convert(text)
    on_a_code_host = MarkdownIt("commonmark").enable("table").render(text)
    assert blocks(on_the_site) == blocks(on_a_code_host)


def blocks(html):
    return Counter(re.findall(r"<(li|pre|h\d|table|td)\b", html))
