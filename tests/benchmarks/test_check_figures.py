"""Figures of docs/results against committed records."""

import shutil
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def check_figures(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import check_figures

    return check_figures


def copied(check_figures, tmp_path):
    """The pages, where they may be changed."""
    docs = check_figures.RESULTS.parent
    shutil.copytree(docs, tmp_path / "docs")
    shutil.copy(docs.parent / "README.md", tmp_path)
    return tmp_path / "docs" / "results"


def test_every_figure_is_that_of_its_records(check_figures):
    cells = check_figures.cells()
    assert len(cells) > 340
    assert [cell for cell in cells if not cell.is_right] == []


@pytest.mark.parametrize(
    ("was", "becomes", "label"),
    [
        ("| 20 | 47.7 / 52.0 |", "| 20 | 47.9 / 52.0 |", "round 20, column 1"),
        ("| 20 | 47.7 / 52.0 |", "| 20 | 47.7 |", "round 20, column 1"),
        ("| 100 | 49.7 / 55.2 |", "| 104 | 49.7 / 55.2 |",
         "; ".join(f"round 104, column {n}" for n in range(1, 9))),
        ("| Orchestra, seed 0 | 42.6 / 47.5", "| Orchestra, seed 0 | 42.6 / 47.7",
         "Orchestra, seed 0, column 1"),
        ("| 39.5 / 47.1 | .16 |", "| 39.5 / 48.1 | .16 |",
         "without rotations (`method.rotation=false`), knn / linear"),
    ],
)  # fmt: skip
def test_another_figure_is_noticed(check_figures, tmp_path, was, becomes, label):
    results = copied(check_figures, tmp_path)
    page = results / "medium.md"
    assert was in page.read_text()
    page.write_text(page.read_text().replace(was, becomes, 1))
    wrong = [cell for cell in check_figures.cells(results) if not cell.is_right]
    assert "; ".join(cell.label for cell in wrong) == label


def test_another_gain_is_noticed(check_figures, tmp_path):
    results = copied(check_figures, tmp_path)
    page = results / "adapt.md"
    page.write_text(page.read_text().replace("| +8.4 / +6.8 |", "| +8.4 / +77.6 |", 1))
    (wrong,) = (cell for cell in check_figures.cells(results) if not cell.is_right)
    assert wrong.label == "2,000 photographs, three seeds, column 1"


def test_a_table_that_is_not_there_is_an_error(check_figures, tmp_path):
    results = copied(check_figures, tmp_path)
    page = results / "medium.md"
    page.write_text(page.read_text().replace("## All photographs", "## All of them"))
    with pytest.raises(KeyError, match="no heading 'All photographs'"):
        check_figures.cells(results)


def test_so_many_are_drawn_by_the_seed(check_figures, capsys):
    assert check_figures.main(["count=5", "seed=3"]) == 0
    first = capsys.readouterr().out
    assert first.count("ok ") == 5 and first.endswith("5 cells, 0 wrong\n")
    check_figures.main(["count=5", "seed=3"])
    assert capsys.readouterr().out == first


def test_help_and_what_is_no_option(check_figures, capsys):
    assert check_figures.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("Checks the figures")
    for argument in ("sed=3", "7", "count=some"):
        with pytest.raises(SystemExit, match=f"error: {argument}: must be "):
            check_figures.main([argument])


def test_rounding_is_that_of_the_printed_decimals(check_figures):
    def right(printed, *recorded):
        return check_figures.Cell("", "", "", printed, recorded).is_right

    assert right("44.0", 44.05) and right("44.1", 44.05) and not right("44.1", 44.04)
    assert right("1,714", 1713.6) and right("84", 84.2) and right("-.5", -0.52)
    assert not right("44.0 / 49.8", 44.0)
