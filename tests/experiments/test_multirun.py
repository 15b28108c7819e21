"""--multirun: one command, every combination of values, one table."""

import pytest
from rich.console import Console

from orchestra_flwr.cli import main
from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.experiments.multirun import make_sweep, print_sweep
from orchestra_flwr.experiments.planning.rows import run_name
from orchestra_flwr.reporting import RunFolder


def test_every_combination_is_a_run():
    rows, configs = make_sweep(["method=simclr,byol", "seed=0,1", "federation.rounds=3"])
    assert [row.values for row in rows] == [
        {"method": method, "seed": seed} for method in ("simclr", "byol") for seed in "01"
    ]
    for row in rows:
        config = configs[row.run]
        assert (config.method.name, config.seed) == (row.values["method"], row.seed)
        assert config.federation.rounds == 3 and row.run == run_name(config, whole_root=True)
        assert not any(text.startswith("seed=") for text in row.overrides)
    assert len(configs) == 4


def test_ranges_lists_and_quoted_commas_are_read_as_ever():
    rows, _ = make_sweep(["seed=range(0,3)", "evaluation.every=1,5", "name='a,b'"])
    assert len(rows) == 6 and "name='a,b'" in rows[0].overrides


def test_folders_of_one_name_are_two_runs():
    rows, configs = make_sweep(["data=image_folder", "data.root=a/images,b/images"])
    roots = [configs[row.run].data.options["root"] for row in rows]
    assert len({row.run for row in rows}) == 2 and roots == ["a/images", "b/images"]


@pytest.mark.parametrize(
    "root", ["/a=b", "/it's", "/Jürgen's (2020)", "/[2020]", '/say "x"', "/a b", "'/a, b'"]
)
def test_paths_are_taken_literally(root):
    """As by a run alone; a comma between two of them divides, as it does elsewhere."""
    rows, configs = make_sweep(["data=image_folder", f"data.root={root}", "seed=0,1"])
    assert {c.data.options["root"] for c in configs.values()} == {root.strip("'")}
    roots = [f"{root}/one", f"{root}/two"] if "," not in root else ["'/a, b'", "/c"]
    rows, configs = make_sweep(["data=image_folder", f"data.root={','.join(roots)}"])
    used = [configs[row.run].data.options["root"] for row in rows]
    assert used == [root_.strip("'") for root_ in roots]


def test_a_key_is_left_out_of_the_runs_that_do_not_read_it():
    rows, configs = make_sweep(["method=simclr,orchestra", "clustering.memory=64", "seed=3"])
    simclr, orchestra = rows
    assert simclr.overrides == ("method=simclr",)
    assert orchestra.overrides == ("clustering.memory=64", "method=orchestra")
    assert configs[orchestra.run].clustering.memory == 64 and orchestra.seed == simclr.seed == 3
    rows, _ = make_sweep(["method=simclr,orchestra", "method.ema=0.9"])
    assert [row.overrides for row in rows] == [
        ("method=simclr",),
        ("method.ema=0.9", "method=orchestra"),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["seed=0"], "--multirun: a key must have several values, such as seed=0,1,2"),
        ([], "--multirun: a key must have several values"),
        (["method=glob(*)"], "method=glob(*): must be values that can be counted, such as a,b"),
        (["seed=interval(0,1)"], "seed=interval(0,1): must be values that can be counted"),
        (["seed=range(0,1,0)"], "seed=range(0,1,0): must be values that can be counted"),
        (["data.root=glob(*)"], "data.root=glob(*): must be values that can be counted"),
        (["seed=0,1", "run_dir=x"], "run_dir: must not be given with --multirun"),
        (["seed=0,1", "resume=x"], "resume: must not be given with --multirun"),
        (["method=simclr,nope"], "method=nope: must be one of"),
        (["method=simclr,simsiam", "method.ema=0.9"], "method.ema: unknown option of method="),
        (["method=simclr,byol", "method.ema=0.9,0.99"], "method.ema: unknown option of method="),
        (["method=byol,simclr", "clustering.memory=9"], "clustering.memory: is not read by method"),
        (["method=orchestra,simclr", "clustering.memory=8,9"], "clustering.memory: is not read by"),
        (["engine=inline,ray"], "--multirun: engine=ray computes the same as another combination"),
        (["seed=0,0"], "--multirun: seed=0 computes the same as another combination"),
        (["seed=0,1", "rounds=2"], "rounds: unknown key (did you mean federation.rounds?)"),
    ],
)
def test_what_is_no_sweep_is_refused(arguments, says):
    with pytest.raises(ConfigError) as error:
        make_sweep(arguments)
    assert str(error.value).startswith(says)


def test_the_table_has_a_row_for_every_run(tmp_path):
    rows, configs = make_sweep(["seed=0,1", "method=simclr"])
    first = rows[0]
    made = configs[first.run].model_copy(update={"run_dir": str(tmp_path / first.run)})
    RunFolder.create(made).write_summary({"knn": 0.5, "linear": 0.75})
    console = Console(width=200, record=True)
    print_sweep(rows, tmp_path, console)
    lines = [line for line in console.export_text().splitlines() if line.strip()]
    assert [cell.strip() for cell in lines[0].strip("| ").split("|")] == [
        "seed", "kNN", "gain", "linear probe", "gain", "run",
    ]  # fmt: skip
    assert "50.0 %" in lines[2] and "75.0 %" in lines[2] and first.run in lines[2]
    assert " - " in lines[3] and rows[1].run in lines[3]


def test_the_table_has_a_row_before_training_and_gains(tmp_path):
    rows, configs = make_sweep(["seed=0,1", "method=simclr,byol", "federation.rounds=3"])
    for row in rows:
        made = configs[row.run].model_copy(update={"run_dir": str(tmp_path / row.run)})
        untrained = {"knn": 0.4 + 0.1 * row.seed, "linear": 0.5}
        RunFolder.create(made).write_summary({"knn": 0.5, "linear": 0.75, "untrained": untrained})
    console = Console(width=200, record=True)
    print_sweep(rows, tmp_path, console)
    lines = [line for line in console.export_text().splitlines() if line.strip()]
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines[2:-1]]
    assert cells[0] == ["0", "-", "40.0 %", "", "50.0 %", "", "before training"]
    assert cells[1] == ["1", "-", "50.0 %", "", "50.0 %", "", "before training"]
    assert cells[2][:6] == ["0", "simclr", "50.0 %", "+10.0", "75.0 %", "+25.0"]
    assert cells[-1][:6] == ["1", "byol", "50.0 %", "+0.0", "75.0 %", "+25.0"]


def test_images_with_several_labels_have_their_precision_in_the_table(tmp_path):
    rows, configs = make_sweep(["seed=0,1"])
    folders = []
    for row in rows:
        made = configs[row.run].model_copy(update={"run_dir": str(tmp_path / row.run)})
        folders.append(RunFolder.create(made))
        folders[-1].write_summary({"map": 0.5, "untrained": {"map": 0.4}})

    def table():
        console = Console(width=200, record=True)
        print_sweep(rows, tmp_path, console)
        lines = [line for line in console.export_text().splitlines() if line.strip()]
        return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]

    assert table()[0] == ["seed", "mAP", "gain", "run"]
    assert table()[3][:3] == ["0", "50.0 %", "+10.0"]
    folders[0].write_summary({"knn": 0.6, "linear": 0.7})
    assert table()[0] == ["seed", "kNN", "gain", "linear probe", "gain", "mAP", "gain", "run"]


def test_a_run_that_harmed_is_marked(tmp_path):
    rows, configs = make_sweep(["seed=0,1", "federation.rounds=3"])
    for row in rows:
        made = configs[row.run].model_copy(update={"run_dir": str(tmp_path / row.run)})
        summary = {"knn": 0.5, "linear": 0.75, "untrained": {"knn": 0.4 + 0.2 * row.seed}}
        RunFolder.create(made).write_summary(summary)
    console = Console(width=200, record=True)
    print_sweep(rows, tmp_path, console)
    text = console.export_text()
    assert " +10.0 |" in text and " -10.0 (worse) |" in text and text.count("worse") == 1


def test_a_loss_within_the_standard_error_is_no_harm(tmp_path):
    """As in the warning of a single run."""
    rows, configs = make_sweep(["seed=0,1", "federation.rounds=3"])
    for row in rows:
        made = configs[row.run].model_copy(update={"run_dir": str(tmp_path / row.run)})
        untrained = {"knn": 0.54 + 0.02 * row.seed}
        summary = {"knn": 0.5, "knn_standard_error": 0.05, "untrained": untrained}
        RunFolder.create(made).write_summary(summary)
    console = Console(width=200, record=True)
    print_sweep(rows, tmp_path, console)
    text = console.export_text()
    assert " -4.0 |" in text and " -6.0 (worse) |" in text


def test_values_in_brackets_are_shown_as_they_are(tmp_path):
    """[old] would be a colour to rich, and [/] the end of one."""
    roots = "data.root='photos [old]','photos [/]'"
    rows, _ = make_sweep(["data=image_folder", roots])
    console = Console(width=200, record=True)
    print_sweep(rows, tmp_path, console)
    text = console.export_text()
    assert "| 'photos [old]' |" in text and "| 'photos [/]'" in text


def test_codes_of_emoji_in_names_are_shown_as_they_are(tmp_path, capsys):
    folder = tmp_path / ("a long name" * 9) / "runs :on: 2"
    rows, _ = make_sweep(["data=image_folder", "data.root='photos :on: 1','photos 2'"])
    print_sweep(rows, folder)
    text = capsys.readouterr().out
    assert "| 'photos :on: 1' |" in text and text.endswith(f"runs: {folder}\n")


def test_no_name_of_a_run_is_cut_in_a_narrow_terminal(tmp_path):
    rows, _ = make_sweep(["seed=0,1", "method=simclr"])
    console = Console(width=30, record=True)
    print_sweep(rows, tmp_path, console)
    lines = console.export_text().splitlines()
    for row in rows:
        assert sum(line.rstrip("| ").endswith(f"| {row.run}") for line in lines) == 1


def test_a_run_that_was_resumed_with_more_rounds_is_left_out(tmp_path):
    rows, _ = make_sweep(["seed=0,1", "federation.rounds=3"])
    for row, rounds in zip(rows, (3, 5), strict=True):
        folder = RunFolder.create(
            load_config(["federation.rounds=3", f"run_dir={tmp_path / row.run}"])
        )
        folder.write_summary({"knn": 0.5, "linear": 0.75})
        text = (folder.path / "config.yaml").read_text()
        (folder.path / "config.yaml").write_text(text.replace("rounds: 3", f"rounds: {rounds}"))
    console = Console(width=200, record=True)
    print_sweep(rows, tmp_path, console)
    text = console.export_text()
    assert text.count("75.0 %") == 1
    assert f"left out: {rows[1].run} has 5 rounds, not 3" in text


@pytest.mark.slow
@pytest.mark.timeout(900)  # two processes that start torch
def test_two_runs_and_their_table(tmp_path, monkeypatch, capsys, tiny_overrides):
    monkeypatch.chdir(tmp_path)
    command = ["-m", *tiny_overrides, "federation.rounds=1", "seed=0,1"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "2 runs, 0 complete already" in out and "| seed |" in out and out.count(" % ") >= 4
    assert len(list((tmp_path / "outputs" / "multirun").glob("orchestra-*"))) == 2
    assert main(command) == 0
    assert "2 runs, 2 complete already" in capsys.readouterr().out
