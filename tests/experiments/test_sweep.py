"""The runner: real processes, which are tiny federations or a line of Python."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack

import pytest

from orchestra_flwr.cli import experiment_main
from orchestra_flwr.commands.own_process import own_process
from orchestra_flwr.config import EvaluateConfig, config_to_yaml, load, load_config
from orchestra_flwr.experiments.planning.plan import make_plan, read_plans
from orchestra_flwr.experiments.results.comparison import read_results
from orchestra_flwr.experiments.results.runs import STARTED, last_error, read_run
from orchestra_flwr.experiments.sweep import Job, jobs_of, run_jobs, run_plan
from orchestra_flwr.folder_lock import locked
from orchestra_flwr.reporting import RunFolder


@pytest.fixture
def command(tmp_path, tiny_overrides):
    only = "only=base,no rotation"
    return ["experiment=table6", only, "seeds=0", f"folder={tmp_path}", *tiny_overrides,
            "federation.rounds=1"]  # fmt: skip


@pytest.fixture
def folders(tmp_path, tiny_overrides):
    """The run folders of the command's two rows."""
    plan, _ = make_plan(
        "table6", "small", seeds=[0], only=["base", "no rotation"],
        extra=[*tiny_overrides, "federation.rounds=1"],
    )  # fmt: skip
    return [tmp_path / row.run for row in plan.rows]


@pytest.mark.slow
def test_a_failed_run_holds_up_no_other(command, tmp_path, folders, capsys):
    base, other = folders
    base.mkdir()
    (base / "somebody's file").touch()  # in which no run can be made

    assert experiment_main(command) == 1
    said = capsys.readouterr().out
    assert "2 runs, 0 complete already" in said
    assert "FAILED (exit code 2): run_dir=" in said and "done in" in said
    assert read_run(other).summary["rounds"] == 1 and read_run(base) is None
    assert "1 of 2 runs are not complete" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)  # three processes that start torch
def test_nothing_is_done_twice(command, tmp_path, folders, capsys):
    base, other = folders
    first = [word for word in command if not word.startswith("only=")]
    assert experiment_main([*first, "only=no rotation"]) == 0
    assert [other.is_dir(), base.is_dir()] == [True, False]
    written = (other / "summary.json").stat().st_mtime_ns
    assert experiment_main(command) == 0
    assert "2 runs, 1 complete already" in capsys.readouterr().out
    assert (other / "summary.json").stat().st_mtime_ns == written
    finished = read_run(base)

    (base / "summary.json").unlink()  # as if it had been killed just before the end
    assert experiment_main([*command, "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "begun", "complete",
    ]  # fmt: skip
    assert experiment_main(command) == 0
    assert "1 complete already, 1 to be resumed" in capsys.readouterr().out
    assert "resumed after round 1" in (tmp_path / "logs" / f"{base.name}.log").read_text()
    assert read_run(base).summary["knn"] == finished.summary["knn"]
    assert read_run(base).metrics == finished.metrics


def test_a_run_of_another_folder_of_the_same_name_is_pointed_out(tmp_path, tiny_overrides):
    """Only the last part of the path counts, so that images may be moved; here they were not."""
    roots = [tmp_path / place / "photos" for place in ("one", "two", "three")]
    for root in roots:
        root.mkdir(parents=True)
    one, two, moved = roots
    runs = tmp_path / "runs"

    def lines(root):
        overrides = [*tiny_overrides, "data=image_folder", f"data.root={root}", "data.image_size=8"]
        plan, configs = make_plan("table6", "small", seeds=[0], only=["base"], extra=overrides)
        (run,) = configs
        if not runs.exists():
            (runs / run).mkdir(parents=True)
            (runs / run / "config.yaml").write_text(config_to_yaml(configs[run]))
            (runs / run / "summary.json").write_text('{"rounds": 2}')
        said = []
        assert run_plan(plan, configs, runs, 1, said.append) == []
        assert "1 runs, 1 complete already" in said[-1]
        return said[:-1]

    assert lines(one) == []
    (line,) = lines(two)
    assert f"1 of these runs exist already and are of the images in {one}, not in {two}" in line
    moved.rmdir()
    one.rename(moved)
    assert lines(moved) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["scale=small"], "experiment: must be given, one of table1, "),
        (["experiment=table3"], "experiment=table3: must be one of table1, "),
        (["experiment=table6", "scale=big"], "scale=big: must be one of paper, medium, small"),
        (["experiment=table6", "seeds=a"], "seeds=a: must be a whole number"),
        (["experiment=table6", "jobs=0"], "jobs=0: must be a whole number, at least 1"),
        (["experiment=table6", "traning.lr=1"], "traning.lr: unknown key"),
        (["experiment=table6", "only=x"], "only=x: must be among"),
    ],
)
def test_wrong_commands_are_refused_before_anything_is_written(
    arguments, says, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert experiment_main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {says}") and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_help_names_the_experiments(capsys):
    assert experiment_main(["--help"]) == 0
    assert "table1, table2, table4" in capsys.readouterr().out


def test_splits_need_no_process(tmp_path):
    plan, configs = make_plan("table4", "small", only=["10"])
    said = []
    assert run_plan(plan, configs, tmp_path, 1, said.append) == []
    assert len(said) == 3
    even = [row.run for row in plan.rows if row.values["alpha"] == "1e5"]
    assert read_run(tmp_path / even[0]).measure("classes") == 10
    said.clear()
    assert run_plan(plan, configs, tmp_path, 1, said.append) == [] and not said


def test_a_split_that_another_command_measures_is_waited_for(tmp_path):
    plan, configs = make_plan("table4", "small", only=["10"])
    name, config = next(iter(configs.items()))
    said: list[str] = []
    with ThreadPoolExecutor() as pool:
        with RunFolder.open(config.model_copy(update={"run_dir": str(tmp_path / name)})) as other:
            failed = pool.submit(run_plan, plan, {name: config}, tmp_path, 1, said.append)
            wait([failed], timeout=1)
            other.write_summary({"classes": {}})
        assert failed.result() == []
    assert said == [f"[1/1] done by another command: {name}"]


def test_a_folder_of_images_whose_name_is_not_utf_8_is_named_in_a_line(tmp_path):
    """Writing the plan ended in a traceback, and so did the line of a split that fails."""
    root = tmp_path / "M\udcfcller"
    plan, configs = make_plan("table4", "small", only=["10"], extra=[f"data.root={root}"])
    said: list[str] = []
    assert len(run_plan(plan, configs, tmp_path, 1, said.append)) == len(plan.rows)
    logs = [file.read_text() for file in (tmp_path / "logs").iterdir()]
    assert len(logs) == len(plan.rows) and all("M\\xfcller" in log for log in logs)
    (read,), wrong = read_plans(tmp_path)
    assert read.extra == plan.extra and not wrong


def test_a_run_that_was_begun_is_resumed_where_it_may_run_elsewhere(tmp_path):
    plan, configs = make_plan("table6", "small", seeds=[0], only=["base"])
    (row,) = plan.rows
    (new,) = jobs_of(plan.rows, tmp_path, plan)
    assert "from orchestra_flwr.cli import main" in new.steps[0][3] and not new.was_begun
    assert f"run_dir={tmp_path / row.run}" in new.steps[0] and "seed=0" in new.steps[0]
    (tmp_path / row.run).mkdir()
    (tmp_path / row.run / "config.yaml").write_text(json.dumps(configs[row.run].model_dump()))
    (begun,) = jobs_of(plan.rows, tmp_path, plan)
    arguments = begun.steps[0][5:]
    assert begun.was_begun and f"resume={tmp_path / row.run}" in arguments
    assert "engine=inline" in arguments and not any("federation" in word for word in arguments)


def test_a_run_with_a_damaged_summary_is_resumed(tmp_path, capsys):
    """Its checkpoint makes the same summary once more; the others are not held up."""
    plan, configs = make_plan("table6", "small", seeds=[0], only=["base"])
    (row,) = plan.rows
    write_run(tmp_path / row.run, configs[row.run])
    (tmp_path / row.run / "summary.json").write_text("")
    (begun,) = jobs_of(plan.rows, tmp_path, plan)
    assert begun.was_begun and f"resume={tmp_path / row.run}" in begun.steps[0]
    words = ["experiment=table6", "seeds=0", "only=base", f"folder={tmp_path}", "--list"]
    assert experiment_main(words) == 0
    assert capsys.readouterr().out.startswith("begun")


def test_a_list_says_that_the_images_are_not_there(tmp_path, capsys):
    words = ["experiment=table6", "seeds=0", "only=base", f"folder={tmp_path}", "--list"]
    said = []
    for root in (tmp_path / "none", tmp_path):
        assert experiment_main([*words, "data=image_folder", f"data.root={root}"]) == 0
        said.append(capsys.readouterr().err)
    assert said == [f"warning: data.root={tmp_path / 'none'} does not exist\n", ""]


def test_a_run_is_resumed_with_what_may_change_alone(tmp_path):
    moved = ["engine=ray", "engine.workers=2", "merging=replace"]
    plan, configs = make_plan("table6", "small", seeds=[0], only=["base"], extra=moved)
    (row,) = plan.rows
    (tmp_path / row.run).mkdir()
    (tmp_path / row.run / "config.yaml").write_text(json.dumps(configs[row.run].model_dump()))
    (begun,) = jobs_of(plan.rows, tmp_path, plan)
    arguments = begun.steps[0][5:]
    assert {"engine=ray", "engine.workers=2"} < set(arguments)
    assert "merging=replace" not in arguments
    assert load_config(arguments).engine.settings.workers == 2


@pytest.fixture
def fine_tuned(tmp_path):
    """A plan of one run that needs fine-tuning, and the evaluation's command."""
    plan, configs = make_plan("table6", "small", seeds=[0], only=["base"])
    measures = {"measures": ("linear", "finetune_1")}
    plan = plan.model_copy(update={"experiment": plan.experiment.model_copy(update=measures)})
    run = f"run={tmp_path / plan.rows[0].run}"
    words = [run, "device=cpu", "protocols=[finetune]", "name=finetuning"]
    return plan, configs, own_process("orchestra_flwr.cli:evaluate_main", *words)


def write_run(folder, config, summary=None, **evaluations):
    """A run folder with evaluations by their names; without a summary it has not ended."""
    (folder / "evaluation").mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps(config.model_dump()))
    if summary:
        (folder / "summary.json").write_text(json.dumps(summary))
    for name, content in evaluations.items():
        (folder / "evaluation" / f"{name}.json").write_text(json.dumps(content))


TUNED = {"finetune": {"0.01": {"mean": 0.3}, "0.1": {"mean": 0.4}}}


def test_what_is_fine_tuned_is_evaluated_after_its_training(tmp_path, fine_tuned):
    plan, configs, evaluate = fine_tuned
    (row,) = plan.rows
    (job,) = jobs_of(plan.rows, tmp_path, plan)
    assert len(job.steps) == 2 and job.steps[1] == evaluate
    write_run(tmp_path / row.run, configs[row.run], {"linear": 0.5})
    (job,) = jobs_of(plan.rows, tmp_path, plan)
    assert job.steps == [evaluate]
    write_run(tmp_path / row.run, configs[row.run], finetuning=TUNED)
    assert jobs_of(plan.rows, tmp_path, plan) == []


def test_an_evaluation_that_lacks_a_measure_is_made_again(tmp_path, fine_tuned):
    plan, configs, evaluate = fine_tuned
    (row,) = plan.rows
    write_run(tmp_path / row.run, configs[row.run], {"linear": 0.5}, finetuning={"finetune": {}})
    (job,) = jobs_of(plan.rows, tmp_path, plan)
    assert job.steps == [evaluate]


def test_images_with_several_labels_are_not_fine_tuned_on_again_and_again(tmp_path, fine_tuned):
    """They have a mean average precision (mAP) and no accuracy."""
    plan, configs, _ = fine_tuned
    (row,) = plan.rows
    write_run(tmp_path / row.run, configs[row.run], {"map": 0.5}, finetuning={"map": 0.5})
    assert jobs_of(plan.rows, tmp_path, plan) == []
    results = read_results(plan, tmp_path)
    assert not results.incomplete and results.rows[0].ours["map"].mean == 50


def test_other_images_with_several_labels_are_evaluated_once(tmp_path):
    plan, configs = make_plan("dec_ssl_table4", "small", seeds=[0], only=["no pre-training"])
    (row,) = plan.rows
    write_run(tmp_path / row.run, configs[row.run], {"linear": 0.5})
    assert len(jobs_of(plan.rows, tmp_path, plan)) == 1
    write_run(tmp_path / row.run, configs[row.run], **{plan.transfer: {"map": 0.4}})
    assert jobs_of(plan.rows, tmp_path, plan) == []


def test_an_evaluation_of_earlier_weights_is_made_again(tmp_path, fine_tuned):
    """Before the training has gone on, and afterwards."""
    plan, configs, evaluate = fine_tuned
    (row,) = plan.rows
    write_run(tmp_path / row.run, configs[row.run], finetuning={**TUNED, "weights_sha256": "a"})
    (tmp_path / row.run / "encoder.json").write_text('{"weights_sha256": "a"}')
    (job,) = jobs_of(plan.rows, tmp_path, plan)
    assert len(job.steps) == 2 and job.steps[1] == evaluate
    write_run(tmp_path / row.run, configs[row.run], {"linear": 0.5})
    assert jobs_of(plan.rows, tmp_path, plan) == []
    (tmp_path / row.run / "encoder.json").write_text('{"weights_sha256": "b"}')
    (job,) = jobs_of(plan.rows, tmp_path, plan)
    assert job.steps == [evaluate]


def test_a_run_that_reports_leave_out_is_not_evaluated(tmp_path, fine_tuned):
    """It has more rounds than the experiment."""
    plan, configs, _ = fine_tuned
    (row,) = plan.rows
    write_run(tmp_path / row.run, configs[row.run], {"linear": 0.5, "rounds": row.rounds})
    assert len(jobs_of(plan.rows, tmp_path, plan)) == 1
    write_run(tmp_path / row.run, configs[row.run], {"linear": 0.5, "rounds": row.rounds + 1})
    assert jobs_of(plan.rows, tmp_path, plan) == []


def test_a_run_that_somebody_ended_early_is_continued(tmp_path, fine_tuned):
    """Reports leave it out as well."""
    plan, configs, evaluate = fine_tuned
    (row,) = plan.rows
    ended = {"linear": 0.5, "rounds": row.rounds - 1}
    write_run(tmp_path / row.run, configs[row.run], ended, finetuning=TUNED)
    (job,) = jobs_of(plan.rows, tmp_path, plan)
    training, after = job.steps
    assert job.was_begun and f"resume={tmp_path / row.run}" in training and after == evaluate
    assert not read_results(plan, tmp_path).runs


def test_somebodys_own_evaluation_is_none_of_the_experiments(tmp_path, fine_tuned):
    """Nor does it take the place of one."""
    plan, configs, evaluate = fine_tuned
    (row,) = plan.rows
    write_run(tmp_path / row.run, configs[row.run], {"linear": 0.5}, digits=TUNED)
    (job,) = jobs_of(plan.rows, tmp_path, plan)
    assert job.steps == [evaluate]
    write_run(tmp_path / row.run, configs[row.run], finetuning=TUNED, digits={"knn": 0.5})
    assert jobs_of(plan.rows, tmp_path, plan) == []
    assert read_results(plan, tmp_path).rows[0].ours["finetune_1"].mean == 30


def test_encoders_are_judged_on_other_images_after_their_training(tmp_path):
    """The experiment's `transfer`; the results are read by a name that no other images have."""
    plan, configs = make_plan("dec_ssl_table4", "small", seeds=[0], only=["no pre-training"])
    (row,), folder = plan.rows, tmp_path / plan.rows[0].run
    (job,) = jobs_of(plan.rows, tmp_path, plan)
    judged = ["data=digits", "data.image_size=16", "protocols=[linear,linear_10,linear_1]"]
    words = [f"run={folder}", "device=cpu", *judged, f"name={plan.transfer}"]
    assert job.steps[1] == own_process("orchestra_flwr.cli:evaluate_main", *words)
    few = {"linear": 0.9, "images": {"train": 50, "test": 20}}  # data=digits data.test_limit=20
    write_run(folder, configs[row.run], {"linear": 0.5}, digits=few)
    assert not read_results(plan, tmp_path).rows[0].ours
    (job,) = jobs_of(plan.rows, tmp_path, plan)
    there = {"linear": 0.6, "linear_10": {"mean": 0.4}, "linear_1": {"mean": 0.2}}
    write_run(folder, configs[row.run], **{plan.transfer: there})
    assert jobs_of(plan.rows, tmp_path, plan) == []
    results = read_results(plan, tmp_path)
    assert [results.rows[0].ours[m].mean for m in plan.experiment.measures] == [60, 40, 20]
    assert results.rows[0].paper["transfer_1"].mean == 13 and not results.incomplete


def test_evaluations_are_made_where_the_command_says(tmp_path):
    """The images were moved, and another device is free, since the run was begun."""
    moved = ["data.root=/new/my photos", "+data.cache=/fast", "device=cuda:1"]
    plan, _ = make_plan(
        "table1", "small", seeds=[0], only=["Orchestra", "cross-device"], extra=moved
    )
    for row in plan.rows:  # of CIFAR-10 and CIFAR-100, which are one run here
        write_run(tmp_path / row.run, load_config(row.overrides))
    job = jobs_of(plan.rows, tmp_path, plan)[0]
    training, tuning = job.steps
    assert {*moved} < {*training} and {*moved} < {*tuning} and "engine=inline" not in tuning
    config = load(EvaluateConfig, tuning[5:], all_read=True)
    assert config.images().options == {"root": "/new/my photos", "cache": "/fast"}
    assert (config.device, config.protocols, config.name) == ("cuda:1", ("finetune",), "finetuning")


def test_other_images_have_a_place_of_their_own(tmp_path):
    plan, _ = make_plan(
        "dec_ssl_table4", "paper", seeds=[0], only=["no pre-training"],
        extra=["data.root=cifar", "device=cuda:1"], transfer_root="/stl10, unpacked",
    )  # fmt: skip
    (job,) = jobs_of(plan.rows, tmp_path, plan)
    training, judging = job.steps
    assert "data.root=cifar" in training and "data.root=/stl10, unpacked" not in training
    config = load(EvaluateConfig, judging[5:], all_read=True)
    assert (config.images().name, config.device) == ("stl10", "cuda:1")
    assert config.images().options["root"] == "/stl10, unpacked"


@pytest.mark.parametrize(
    ("root", "says"),
    [
        ([], "transfer_root must name the folder of the unpacked stl10_binary.tar.gz"),
        (["transfer_root=/nowhere"], "transfer_root=/nowhere: holds no train_X.bin"),
    ],
)
def test_nothing_is_trained_for_images_that_are_not_there(root, says, tmp_path, capsys):
    folder = tmp_path / "runs"
    command = ["experiment=dec_ssl_table4", "scale=paper", "seeds=0", f"folder={folder}", *root]
    assert experiment_main([*command, "only=no pre-training"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: the other images that encoders are evaluated on: ")
    assert says in error and error.count("\n") == 1 and not folder.exists()
    assert experiment_main([*command, "only=no pre-training", "--list"]) == 0


def python(code):
    return [sys.executable, "-S", "-c", code]


def sweep(tmp_path, *jobs, announce=lambda line: None, at_once=2):
    return run_jobs(list(jobs), tmp_path, at_once, announce)


def printed(tmp_path, name):
    """The lines in a log since the last start, which has a line of its own."""
    text = (tmp_path / "logs" / f"{name}.log").read_text()
    return text.rpartition(STARTED)[2].splitlines()[1:]


def test_steps_follow_each_other_and_stop_at_the_first_that_fails(tmp_path):
    said = []
    good = Job("good", [python("print('one')"), python("print('two')")])
    bad = Job("bad", [python("print('error: no'); raise SystemExit(3)"), python("print('two')")])
    assert sweep(tmp_path, good, bad, announce=said.append) == ["bad"]
    assert printed(tmp_path, "good") == ["one", "two"]
    assert printed(tmp_path, "bad") == ["error: no"]
    assert any("FAILED (exit code 3): no: bad" in line for line in said)


def test_what_another_command_has_done_meanwhile_is_not_done_again(tmp_path):
    """Two that share a folder: each has its list of runs from before the other began."""
    said = []
    old = [python("print('as it was')")]
    resumed = Job("begun", [python("print('resumed')")], was_begun=True)
    jobs = [
        Job("complete", old.copy(), refresh=lambda: None),
        Job("begun", old.copy(), refresh=lambda: resumed),
        Job("missing", old.copy(), refresh=lambda: Job("missing", old.copy())),
    ]
    assert sweep(tmp_path, *jobs, announce=said.append) == []
    assert "[1/3] completed meanwhile: complete" in said and "[2/3] resumed: begun" in said
    assert not (tmp_path / "logs" / "complete.log").exists()
    assert printed(tmp_path, "begun") == ["resumed"]
    assert printed(tmp_path, "missing") == ["as it was"]


def test_a_run_that_another_command_makes_is_waited_for(tmp_path):
    """It holds one folder from the start, and takes the other while the run's process starts."""
    said, other = [], ExitStack()
    for name in ("held", "taken"):
        (tmp_path / name).mkdir()
    other.enter_context(locked(tmp_path / "held"))

    def announce(line):
        said.append(line)
        if line == "[2/2] started: taken":
            other.enter_context(locked(tmp_path / "taken"))
        if line == "[2/2] another command runs it: taken":
            other.close()

    refused, resumed = [python("raise SystemExit(2)")], [python("print('resumed')")]
    states = [Job("taken", refused), Job("taken", resumed, was_begun=True)]
    jobs = [
        Job("held", refused.copy(), refresh=lambda: None),
        Job("taken", refused.copy(), refresh=lambda: states.pop(0)),
    ]
    assert sweep(tmp_path, *jobs, announce=announce) == []
    assert said[0] == "[1/2] another command runs it: held"
    assert said[3] == "[1/2] completed meanwhile: held"
    assert said[4] == "[2/2] resumed: taken" and printed(tmp_path, "taken") == ["resumed"]


@pytest.mark.parametrize("ended", ["complete", "stopped"])
def test_a_run_that_another_command_has_made_before_ours_began_is_no_failure(tmp_path, ended):
    """On a busy machine a process takes seconds to start: a short run was over, not locked."""
    said, new = [], Job("run", [python("raise SystemExit(2)")])
    resumed = Job("run", [python("print('resumed')")], was_begun=True)
    later = None if ended == "complete" else resumed
    states = [new, later, later]
    job = Job("run", new.steps.copy(), refresh=lambda: states.pop(0))
    assert sweep(tmp_path, job, announce=said.append) == []
    again = "completed meanwhile" if ended == "complete" else "resumed"
    assert said[:2] == ["[1/1] started: run", f"[1/1] {again}: run"]


def test_a_run_that_is_refused_for_itself_fails_once(tmp_path):
    said, refused = [], [python("raise SystemExit(2)")]
    for begun in (False, True):
        job = Job("run", refused.copy(), was_begun=begun)
        job.refresh = lambda begun=begun: Job("run", refused.copy(), was_begun=begun)
        assert sweep(tmp_path, job, announce=said.append) == ["run"]
    assert sum("FAILED" in line for line in said) == 2 and len(said) == 4


def test_a_job_looks_again_at_what_its_run_needs(tmp_path):
    plan, configs = make_plan("table6", "small", seeds=[0, 1, 2], only=["base"])
    complete, begun, missing = jobs_of(plan.rows, tmp_path, plan)
    for job in (complete, begun):
        (tmp_path / job.name).mkdir()
        (tmp_path / job.name / "config.yaml").write_text(config_to_yaml(configs[job.name]))
    (tmp_path / complete.name / "summary.json").write_text('{"rounds": 8}')
    assert complete.refresh() is None
    again = begun.refresh()
    assert again.was_begun and f"resume={tmp_path / begun.name}" in again.steps[0]
    again = missing.refresh()
    assert not again.was_begun and again.steps == missing.steps


def test_a_start_ends_what_the_log_says_of_the_one_before(tmp_path):
    bad = [python("print('error: the disk is full'); raise SystemExit(1)")]
    assert sweep(tmp_path, Job("run", bad)) == ["run"]
    log = tmp_path / "logs" / "run.log"
    assert last_error(log) == "the disk is full"
    assert sweep(tmp_path, Job("run", [python("print('resumed')")])) == []
    assert last_error(log) is None
    assert "the disk is full" in log.read_text() and printed(tmp_path, "run") == ["resumed"]


def test_no_more_run_side_by_side_than_were_allowed(tmp_path):
    """Each writes down who else is there."""
    code = (
        "import os, time, pathlib; here = pathlib.Path({!r}); me = here / str(os.getpid());"
        "me.touch(); time.sleep(.3); print(len(list(here.iterdir()))); me.unlink()"
    )
    there = tmp_path / "there"
    there.mkdir()
    jobs = [Job(str(n), [python(code.format(str(there)))]) for n in range(4)]
    assert sweep(tmp_path, *jobs) == []
    seen = [int(*printed(tmp_path, str(n))) for n in range(4)]
    assert max(seen) <= 2


def test_ctrl_c_ends_all_processes_in_order(tmp_path):
    """A run gets the time to end by itself; nothing that waits is started."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('ended in order')))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )

    def interrupt(line):
        if "started: second" in line:
            deadline = time.monotonic() + 30
            while not printed(tmp_path, "first"):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            raise KeyboardInterrupt

    first, second, third = (Job(name, [python(code)]) for name in ("first", "second", "third"))
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, first, second, third, announce=interrupt)
    assert first.process.poll() == 0
    assert printed(tmp_path, "first") == ["ready", "ended in order"]
    assert third.state == "waiting" and third.process is None
