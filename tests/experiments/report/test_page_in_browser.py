"""The report's page in a real browser: what room its tables take."""

import shutil

import pytest

from orchestra_flwr.experiments.report.html import to_html
from orchestra_flwr.experiments.report.markdown import Table

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
SIZES = """() => {
    const box = document.querySelector(".scroll"), page = document.documentElement;
    return [box.scrollWidth - box.clientWidth, page.scrollWidth - page.clientWidth,
            box.getBoundingClientRect().width];
}"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=[*QUIET])
        yield opened
        opened.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "width", "scrolls"), [(12, 1920, False), (12, 600, True), (3, 600, False)]
)
def test_a_table_scrolls_only_where_there_is_no_room(browser, columns, width, scrolls, tmp_path):
    names = tuple(f"a measure {number}" for number in range(columns))
    table = Table(names, (("a_long_name_of_a_run_folder", *["12.34 ± 5.67"] * (columns - 1)),))
    page = browser.new_page(viewport={"width": width, "height": 900})
    text = f"# Runs\n\n{table.markdown()}\n\n{'words ' * 99}\n"
    page.set_content(to_html("Runs", text, tmp_path))
    table_hidden, page_hidden, table_width = page.evaluate(SIZES)
    assert (table_hidden > 0) == scrolls
    assert page_hidden == 0
    if width > 1000:
        assert table_width > 1000  # more than the text beside it
