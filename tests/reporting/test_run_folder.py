import errno
import json
import os
import re
import shlex
from pathlib import Path

import pytest

from orchestra_flwr.config import Config, ConfigError, load, load_config
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.reporting import RunFolder


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config()


@pytest.fixture
def folder(config, tmp_path) -> RunFolder:
    return RunFolder.create(config, tmp_path)


def contents(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


def test_runs_of_the_same_second_get_folders_of_their_own(config, tmp_path):
    paths = [RunFolder.create(config, tmp_path).path for _ in range(20)]
    assert len(set(paths)) == 20
    for path in paths:
        assert path.parent == tmp_path / "orchestra-affine_digits"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(-\d+)?", path.name)
    assert any(re.search(r"_\d\d-\d\d-\d\d-2$", path.name) for path in paths)


def test_the_whole_configuration_is_written_and_continues_the_run(config, folder):
    assert load_config([f"resume={folder.path}"]).federation == config.federation
    assert RunFolder.resume(folder.path).path == folder.path


def test_run_dir_may_be_new_or_empty(config, tmp_path):
    for path in (tmp_path / "a" / "b", tmp_path / "empty"):
        if path.name == "empty":
            path.mkdir()
        folder = RunFolder.create(config.model_copy(update={"run_dir": str(path)}))
        assert folder.path == path
        assert (path / "config.yaml").is_file()


def test_a_run_is_never_written_over(config, tmp_path):
    mine = config.model_copy(update={"run_dir": str(tmp_path / "a run")})
    RunFolder.create(mine).append_metrics({"round": 1})
    before = contents(tmp_path)
    with pytest.raises(ConfigError) as caught:
        RunFolder.create(mine.model_copy(update={"seed": 1}))
    path = tmp_path / "a run"
    how = f"'resume={path}' continues it"  # in a shell, too
    assert str(caught.value) == f"run_dir={path}: already holds a run ({how})"
    assert contents(tmp_path) == before


def test_a_run_begins_where_one_was_killed_before_it_had_a_configuration(config, tmp_path):
    """Or the same command would be refused for ever."""
    (tmp_path / ".config.yaml.0a1b2c3d.tmp").write_text("method:")
    with RunFolder.open(config.model_copy(update={"run_dir": str(tmp_path)})) as folder:
        assert load_config([f"resume={folder.path}"]).federation == config.federation


def test_a_folder_with_other_files_and_a_file_are_refused(config, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    before = contents(tmp_path)
    for path, text in ((tmp_path, "already holds files"), (tmp_path / "thesis.tex", "new folder")):
        with pytest.raises(ConfigError, match=text) as caught:
            RunFolder.create(config.model_copy(update={"run_dir": str(path)}))
        assert str(caught.value).startswith(f"run_dir={path}: ")
        assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("run_dir", "says"),
    [
        ("x", "run_dir=x: must be a new folder, which cannot be made here ({})"),
        (None, "the run folder cannot be made: {folder}: {}"),
    ],
)
def test_a_folder_that_cannot_be_made_is_refused_for_the_systems_reason(
    config, tmp_path, monkeypatch, run_dir, says
):
    """os.access has none: on a disk that is read-only permissions may all be there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    asked = config.model_copy(update={"run_dir": run_dir})
    RunFolder.check(asked)  # it was wrong: a folder can be made
    assert list(tmp_path.iterdir()) == []

    def mkdir(self, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(ConfigError) as caught:
        RunFolder.check(asked)
    assert str(caught.value) == says.format("Read-only file system", folder=tmp_path)


def test_metrics_are_for_their_owner_alone_whatever_the_umask(folder):
    """They say how many images of a client fell into a cluster."""
    before = os.umask(0)
    try:
        folder.append_metrics({"round": 0})
        assert folder.metrics.stat().st_mode & 0o777 == 0o600
        folder.truncate_after(0)
    finally:
        os.umask(before)
    assert folder.metrics.stat().st_mode & 0o777 == 0o600


def test_an_opened_folder_is_for_one_process_until_it_is_closed(config, tmp_path):
    mine = config.model_copy(update={"run_dir": str(tmp_path / "run")})
    again = config.model_copy(update={"resume": str(tmp_path / "run")})
    with RunFolder.open(mine) as folder:
        folder.append_metrics({"round": 1})
        for run_config in (mine, again):
            with pytest.raises(ConfigError, match=f"process {os.getpid()} on host .* writes to"):
                RunFolder.open(run_config).__enter__()
    with RunFolder.open(again) as folder:
        assert folder.read_metrics() == [{"round": 1}]


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no config\.yaml"):
        RunFolder.resume(tmp_path)


def test_metrics_are_read_back_in_order(folder):
    assert folder.read_metrics() == []
    records = [{"round": r, "loss": {"total": 1 / (r + 1)}, "note": "\u00fc\n"} for r in range(4)]
    for record in records:
        folder.append_metrics(record)
    assert folder.read_metrics() == records
    assert len(folder.metrics.read_text().splitlines()) == 4


def test_values_that_json_does_not_know_become_null(folder):
    folder.append_metrics({"round": 1, "loss": {"a": float("nan"), "b": [float("inf"), 1.5]}})
    folder.write_summary({"knn": float("nan"), "rounds": 3})
    assert folder.read_metrics() == [{"round": 1, "loss": {"a": None, "b": [None, 1.5]}}]
    assert json.loads(folder.summary.read_text()) == {"knn": None, "rounds": 3}


@pytest.mark.parametrize("cut", ["", '{"round": 5, "loss": {"to', '{"round": 3}'])
def test_truncation_drops_later_rounds_and_a_line_cut_off(folder, cut):
    for round in (0, 0, 1, 2, 3, 4):
        folder.append_metrics({"round": round, "x": 1.25})
    remaining = b"".join(folder.metrics.read_bytes().splitlines(keepends=True)[:4])
    with folder.metrics.open("a") as file:
        file.write(cut)
    assert [r["round"] for r in folder.read_metrics()] == [0, 0, 1, 2, 3, 4]
    folder.truncate_after(2)
    assert folder.metrics.read_bytes() == remaining
    folder.append_metrics({"round": 3})
    assert [r["round"] for r in folder.read_metrics()] == [0, 0, 1, 2, 3]


def test_truncation_before_the_first_metrics_does_nothing(folder):
    before = contents(folder.path)
    folder.truncate_after(7)
    assert contents(folder.path) == before


@pytest.mark.parametrize("line", ["{broken\n", "3\n", '{"seconds": 1}\n', '{"round": "x"}\n'])
def test_a_broken_line_is_named_and_nothing_is_lost(folder, line):
    folder.append_metrics({"round": 1})
    with folder.metrics.open("a") as file:
        file.write(line)
    folder_before = contents(folder.path)
    for reading in (folder.read_metrics, lambda: folder.truncate_after(0)):
        with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: no record"):
            reading()
    assert contents(folder.path) == folder_before


def disk_is_full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("file", ["metrics.jsonl", "summary.json", "truncated"])
def test_a_full_disk_names_the_file_and_leaves_the_older_one(folder, monkeypatch, file):
    write = {
        "metrics.jsonl": lambda: folder.append_metrics({"round": 2}),
        "summary.json": lambda: folder.write_summary({"knn": 0.9}),
        "truncated": lambda: folder.truncate_after(0),
    }[file]
    folder.append_metrics({"round": 1})
    folder.write_summary({"knn": 0.5})
    before = contents(folder.path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk_is_full)
        with pytest.raises(OSError, match="No space left") as caught:
            write()
    name = "metrics.jsonl" if file == "truncated" else file
    assert caught.value.errno == errno.ENOSPC
    assert str(folder.path / name) in str(caught.value)
    assert contents(folder.path) == before
    write()
    assert contents(folder.path) != before


def test_a_disk_that_fills_up_within_a_line_leaves_whole_lines(folder):
    # A real limit of the kernel, in a process of its own: the write stops half-way.
    folder.append_metrics({"round": 1})
    before = folder.metrics.read_bytes()
    child = os.fork()
    if child == 0:
        import resource
        import signal

        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5,) * 2)
            folder.append_metrics({"round": 2, "text": "x" * 100})
        except OSError as error:
            code = 42 if str(folder.metrics) in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert folder.metrics.read_bytes() == before


def test_paths_lie_in_the_folder(folder):
    assert folder.checkpoint == folder.path / "checkpoint"
    assert folder.encoder == folder.path / "encoder.safetensors"


def test_the_advice_names_the_packages_of_the_run(tmp_path):
    folder = RunFolder(tmp_path, plugins=("mine", "yours"))
    assert folder.how_to_continue(2) == (
        f"continue with: resume={tmp_path} resume_round=2 plugins=[mine,yours]"
    )


def test_the_advice_of_a_command_is_one_for_a_shell(tmp_path):
    path = tmp_path / "my photos"
    line = RunFolder(path, plugins=("mine",), program="orchestra-server").how_to_continue(2)
    words = ["orchestra-server", f"resume={path}", "resume_round=2", "plugins=[mine]"]
    assert shlex.split(line.removeprefix("continue with: ")) == words


def test_later_resumes_know_who_is_waited_for(tmp_path):
    """A service starts again with `resume=` alone, after a person has lowered the number."""
    run = tmp_path / "run"
    started = ["federation.min_clients=4", "federation.rounds=3"]

    def resumed(*overrides):
        return load(ServerConfig, [f"resume={run}", *overrides], all_read=True)

    with RunFolder.open(load(ServerConfig, [*started, f"run_dir={run}"], all_read=True)):
        pass
    changed = resumed("federation.min_clients=3", "federation.enough=2", "federation.rounds=5")
    with RunFolder.open(changed):
        pass
    federation = resumed().federation
    assert (federation.min_clients, federation.enough, federation.rounds) == (3, 2, 5)


def test_a_resumed_sum_has_no_fewer_clients_than_a_new_one(tmp_path):
    run, sums = tmp_path / "run", ["method=simclr", "federation.weighting=uniform"]
    sums += ["federation.min_clients=3", "privacy.secure_aggregation=true", f"run_dir={run}"]
    with RunFolder.open(load(ServerConfig, sums, all_read=True)):
        pass
    with pytest.raises(ConfigError, match=r"federation\.min_clients=2: must be so many that 3 are"):
        load(ServerConfig, [f"resume={run}", "federation.min_clients=2"], all_read=True)
