import json

import pytest
from PIL import Image

from orchestra_flwr.experiments.theory.__main__ import main


def test_table_values_and_picture(tmp_path, capsys):
    folder = tmp_path / "theory"
    assert main([str(folder), "dimensions=200,256", "sources=2", "seed=4"]) == 0
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
        ([], "one folder for the results must be given"),
        (["a", "b"], "one folder for the results must be given"),
        (["a", "size=3"], "size: unknown key, must be one of dimensions, sources, seed"),
        (["a", "sources=many"], "sources=many: must be whole numbers, such as sources=3"),
        (["a", "sources=1"], "sources=1: must be at least 2"),
        (["a", "seed=1,2"], "seed: must be one number"),
        (["a", "dimensions=8"], "dimensions=8: must be at least 20"),
    ],
)
def test_wrong_arguments_are_refused_in_a_line(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}") and error.count("\n") == 1


def test_help_says_what_it_writes(capsys):
    assert main(["--help"]) == 0
    assert "theory.png" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_said(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main([str(tmp_path / "file" / "x"), "dimensions=256", "sources=2"]) == 1
    assert "file" in capsys.readouterr().err
