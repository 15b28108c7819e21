import json
from pathlib import Path

import pytest
from PIL import Image

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def main(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import toy_theory

    return toy_theory.main


def test_table_values_and_picture(main, tmp_path, capsys):
    folder = tmp_path / "theory"
    main([str(folder), "--dimensions", "200", "256", "--sources", "2", "--seed", "4"])
    assert f"results: {folder / 'theory.md'}" in capsys.readouterr().out
    lines = (folder / "theory.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| 200, 2", "| 256, 2"]
    values = json.loads((folder / "theory.json").read_text())
    assert values[1]["setting"] == {
        "dimensions": 256, "sources": 2, "frequent": 1000, "rare": 1, "seed": 4,
    }  # fmt: skip
    shown = [float(cell) for cell in lines[3].strip("| ").split(" | ")[1:4]]
    outcome = values[1]["outcome"]
    assert shown == pytest.approx(
        [outcome[name] for name in ("ssl_others", "ssl_own", "ssl_global")], abs=6e-4
    )
    assert len(outcome["ssl"]) == len(outcome["sl"][0]) == 2
    with Image.open(folder / "theory.png") as picture:
        assert picture.size[0] > 1000 and len(picture.convert("L").getcolors()) > 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sources", "1"], "--sources 1: must be at least 2"),
        (["--dimensions", "8"], "--dimensions 8: must be at least 20"),
    ],
)
def test_too_few_are_refused(main, arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["results", *arguments])
    assert ended.value.code == 2 and message in capsys.readouterr().err
