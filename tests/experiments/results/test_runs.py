import json
import os
from pathlib import Path

import pytest

from orchestra_flwr.config import config_to_yaml, load
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.experiments.__main__ import main
from orchestra_flwr.experiments.report.tables import provenance
from orchestra_flwr.experiments.results.runs import (
    STARTED,
    find_runs,
    last_error,
    read_run,
    unreadable,
)


def test_measures_are_found_where_runs_leave_them(make_run):
    summary = {
        "knn": 0.5,
        "linear": 0.6,
        "unsupervised": {"alignment": 0.9, "uniformity": -1.0, "score": 0.7},
        "classes": {"any": 4.69, "one_percent": 3.13, "emd": 1.24},
    }
    run = read_run(make_run("r", summary, finetune={"0.01": 0.31, "0.1": 0.41}))
    names = ("knn", "linear", "unsupervised", "classes", "classes_1", "emd", "finetune_1")
    assert [run.measure(name) for name in names] == [0.5, 0.6, 0.7, 4.69, 3.13, 1.24, 0.31]
    assert run.measure("finetune_10") == 0.41
    of_other_images = read_run(make_run("other", {"untrained": {"linear": 0.3}}))
    assert of_other_images.before("linear") == 0.3 and of_other_images.before("transfer") is None
    bare = read_run(make_run("bare", {}))
    assert all(bare.measure(name) is None for name in names)


def test_only_runs_with_a_classifier_can_lack_its_accuracy(make_run):
    unsupervised = read_run(make_run("simclr", {"linear": 0.5}, overrides=["method=simclr"]))
    assert not unsupervised.is_missing("linear") and unsupervised.is_missing("linear_recalibrated")
    assert not unsupervised.is_missing("accuracy") and not unsupervised.is_missing(
        "own_accuracy_worst"
    )
    supervised = read_run(make_run("supervised", {}, overrides=["method=supervised"]))
    assert supervised.is_missing("accuracy") and supervised.is_missing("linear")


def test_the_kept_backbone(make_run):
    scores = {"online": {"knn": 0.1}, "predictor": {"knn": 0.2}}
    path = make_run("r", {}, metrics=[{"scores": None}, {"scores": scores}])
    assert read_run(path).saved_backbone == "online"
    (path / "encoder.json").write_text('{"about": {"backbone": "predictor"}}')
    assert read_run(path).saved_backbone == "predictor"


@pytest.mark.parametrize(
    ("file", "values"), [("summary.json", {"versions": "1"}), ("encoder.json", {"about": [2]})]
)
def test_a_run_whose_files_have_another_shape_is_left_out_of_a_report(make_run, file, values):
    path = make_run("r", {"linear": 0.5}, metrics=[{"scores": {"online": {"knn": 0.1}}}])
    (path / file).write_text(json.dumps(values))
    assert main([f"folder={path.parent}"]) == 0
    assert "or about in encoder.json is damaged" in (path.parent / "report.md").read_text()


def test_runs_are_found_in_both_layouts(make_run, tmp_path):
    make_run("flat", {})
    make_run("2026-01-01", {}, folder=tmp_path / "orchestra-digits")
    (tmp_path / "logs").mkdir()
    assert [run.name for run in find_runs(tmp_path)] == ["flat", "2026-01-01"]
    assert [run.name for run in find_runs(tmp_path / "flat")] == ["flat"]
    assert read_run(tmp_path / "logs") is None


def test_evaluations_of_other_weights_do_not_count(make_run):
    """A run that was resumed with more rounds has another encoder than the one evaluated before."""
    path = make_run("r", {"linear": 0.5}, finetune={"0.01": 0.3})
    (file,) = (path / "evaluation").iterdir()
    evaluation = json.loads(file.read_text())

    def counts(evaluated, saved):
        file.write_text(json.dumps({**evaluation, **evaluated}))
        (path / "encoder.json").write_text(json.dumps(saved))
        return read_run(path).measure("finetune_1") == 0.3

    assert counts({"weights_sha256": "a"}, {"weights_sha256": "a"})
    assert not counts({"weights_sha256": "a"}, {"weights_sha256": "b"})
    (path / "encoder.json").unlink()  # records alone were kept
    assert read_run(path).measure("finetune_1") == 0.3


def test_evaluations_of_earlier_versions_count_unless_they_are_older_than_the_encoder(make_run):
    path = make_run("r", {"linear": 0.5}, finetune={"0.01": 0.3})
    (path / "encoder.json").write_text('{"weights_sha256": "a"}')
    (file,) = (path / "evaluation").iterdir()
    os.utime(path / "encoder.json", (1000, 1000))
    assert read_run(path).measure("finetune_1") == 0.3
    os.utime(file, (999, 999))
    assert read_run(path).measure("finetune_1") is None


def test_a_run_with_real_clients_is_read(make_run):
    path = make_run("r", {"knn": 0.5})
    served = load(ServerConfig, ["host=0.0.0.0", "federation.rounds=7"])
    (path / "config.yaml").write_text(config_to_yaml(served))
    run = read_run(path)
    assert unreadable([run]) == {} and run.config.federation.rounds == 7


def test_a_run_of_version_0_2_is_read(make_run):
    path = make_run("r", {"knn": 0.5})
    saved = Path(__file__).parents[2] / "config" / "reading" / "version_0_2.yaml"
    (path / "config.yaml").write_text(saved.read_text())
    run = read_run(path)
    assert unreadable([run]) == {}
    assert (run.config.optimizer.name, run.config.engine.name) == ("adamw", "ray")
    assert any(line.startswith("Engine: ray on auto") for line in provenance([run]))


def test_a_run_with_a_plugin_that_is_not_here_is_left_out(make_run):
    path = make_run("r", {})
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(text.replace("name: iid", "name: mine").replace(
        "name: dirichlet", "name: mine"))  # fmt: skip
    assert "partition=mine: must be one of" in unreadable([read_run(path)])[path]


@pytest.mark.parametrize("name", ["summary.json", "encoder.json", "metrics.jsonl"])
def test_a_broken_file_is_named(make_run, name):
    path = make_run("r", {"knn": 0.5})
    (path / name).write_text("{\n")
    run = read_run(path)
    assert name in unreadable([run])[path]
    assert (run.measure("knn") is None) == (name != "metrics.jsonl")


def test_a_broken_evaluation_counts_as_missing(make_run):
    path = make_run("r", {"knn": 0.5}, finetune={"0.01": 0.31})
    (path / "evaluation" / "mine.json").write_text("[]")
    assert read_run(path).measure("finetune_1") == 0.31
    (path / "evaluation" / "finetuning.json").write_text("")
    run = read_run(path)
    assert unreadable([run]) == {} and run.measure("knn") == 0.5 and run.is_missing("finetune_1")


def test_the_last_error_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert last_error(log) is None
    log.write_text("round 1\nerror: first\nround 1\nerror: the disk is full\ncontinue with: x\n")
    assert last_error(log) == "the disk is full"
    log.write_text("Traceback:\n  line\nValueError: odd\n")
    assert last_error(log) == "ValueError: odd"


def test_an_error_from_before_the_last_start_is_over(tmp_path):
    log = tmp_path / "log"
    text = f"{STARTED}yesterday\nerror: the disk is full\n{STARTED}today\nresumed after round 1\n"
    log.write_text(text)
    assert last_error(log) is None
    log.write_text(text + "error: no such file\nround 2\n")
    assert last_error(log) == "no such file"


def test_a_report_imports_only_packages_that_its_command_names(make_run, stranger):
    name, marker = stranger
    folder = make_run("r", {})
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("plugins: []", f"plugins: [{name}]"))
    (reason,) = unreadable([read_run(folder)]).values()
    assert f"asks for plugins=[{name}]" in reason and not marker.exists()
    assert main([str(folder.parent)]) == 0 and not marker.exists()
    assert main([str(folder.parent), f"plugins=[{name}]"]) == 0 and marker.exists()
    assert unreadable([read_run(folder)]) == {}
