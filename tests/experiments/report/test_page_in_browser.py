"""The report's page in a real browser: what room its tables take."""

import pytest

from orchestra_flwr.experiments.report.html import to_html
from orchestra_flwr.experiments.report.markdown import Table

SIZES = """() => {
    const box = document.querySelector(".scroll"), page = document.documentElement;
    return [box.scrollWidth - box.clientWidth, page.scrollWidth - page.clientWidth,
            box.getBoundingClientRect().width];
}"""


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


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_long_name_of_a_run_leaves_room_for_its_figures(browser, width, tmp_path):
    table = Table(("run", "kNN"), (("x" * 200, "12.34 %"), ("lr=0.1", "45.6 %")))
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_content(to_html("Runs", f"# Runs\n\n{table.markdown()}\n", tmp_path))
    figure = page.get_by_text("12.34 %").bounding_box()
    assert figure["x"] + figure["width"] < width
