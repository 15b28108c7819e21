import json
import os
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from orchestra_flwr.config import ConfigError
from orchestra_flwr.reporting import check_place, print_evaluation, write_evaluation

RESULTS = {
    "dataset": "cifar10",
    "backbone": "target",
    "knn": 0.5,
    "linear": 0.625,
    "feature_std": float("nan"),
    "finetune": {"0.01": {"mean": 0.3, "std": 0.012}, "0.1": {"mean": 0.4, "std": None}},
}


def test_one_file_for_every_data_set_is_replaced_as_a_whole(tmp_path, monkeypatch):
    file = write_evaluation(tmp_path / "evaluation", RESULTS)
    assert file == tmp_path / "evaluation" / "cifar10.json"
    stored = json.loads(file.read_text())
    assert stored["knn"] == 0.5 and stored["feature_std"] is None and stored["versions"]["torch"]
    write_evaluation(file.parent, {**RESULTS, "dataset": "digits"})
    assert write_evaluation(file.parent, RESULTS, "mine") == file.parent / "mine.json"
    before = file.read_bytes()

    def disk_is_full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_is_full)
    with pytest.raises(OSError, match="No space left"):
        write_evaluation(file.parent, {**RESULTS, "knn": 0.9})
    assert file.read_bytes() == before
    assert {path.name for path in file.parent.iterdir()} == {
        "cifar10.json",
        "digits.json",
        "mine.json",
    }


@pytest.mark.parametrize("name", ["new", "there", "new/newer"])
def test_a_place_that_can_be_written_is_left_as_it_was(tmp_path, name):
    (tmp_path / "there").mkdir()
    check_place(tmp_path / name, Path(__file__))
    assert [*tmp_path.rglob("*")] == [tmp_path / "there"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "evaluation", Path("/proc/new/newer")):
        with pytest.raises(ConfigError, match=r"cannot be written \([^)]* directory\)$") as error:
            check_place(place, Path(__file__))
        assert str(error.value).startswith(f"{place}: ")
        check_place(place, tmp_path / "no encoder")  # what is missing is said elsewhere


def test_accuracies_are_a_table_and_their_spread_is_below_it():
    output = StringIO()
    error = {"linear_standard_error": 0.021}
    print_evaluation({**RESULTS, **error, "feature_std": 0.5}, Console(file=output, width=80))
    lines = output.getvalue().splitlines()
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    assert ["cifar10, target", "accuracy"] in cells
    assert ["kNN", "50.0 %"] in cells and ["linear probe", "62.5 ± 2.1 %"] in cells
    assert ["fine-tuned with 1 % of the labels", "30.0 ± 1.2 %"] in cells
    assert ["fine-tuned with 10 % of the labels", "40.0 %"] in cells
    assert lines[-1] == "spread of the features: 0.50 (0: collapsed; at most about 1)"


def test_the_name_of_a_file_is_no_longer_than_disks_take(tmp_path):
    for name in ("photos", "x" * 250, "x" + "é" * 125, "🙂" * 62):
        file = write_evaluation(tmp_path, {**RESULTS, "dataset": name})
        assert json.loads(file.read_text())["dataset"] == name
        assert name.startswith(file.stem) and len(file.stem) >= 6


def test_a_folder_of_any_name_is_printed_as_it_is_named():
    output, name = StringIO(), "photos [old] 10:on:2"  # what rich takes for markup and an emoji
    print_evaluation({**RESULTS, "dataset": name}, Console(file=output, width=20))
    assert f"| {name}, target" in output.getvalue()
