"""Runs that are submitted, listed and cancelled in a folder, by processes of their own."""

import json
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from orchestra_flwr.cli import server_main, submit_main
from orchestra_flwr.config import ConfigError, load
from orchestra_flwr.deployment import run_queue
from orchestra_flwr.deployment.run_queue import RunQueue, run_to_submit
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.deployment.watch.queue_log import QueueLog
from orchestra_flwr.folder_lock import locked

NO_SERVER = "no server works on runs now: runs wait until one is started with queue=runs\n"


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys):
    """Runs the command beside the folder of a server that is off; exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    RunQueue(Path("runs")).make()

    def call(*arguments):
        code = submit_main(["queue=runs", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def server(*overrides):
    return load(ServerConfig, ["queue=runs", *overrides], all_read=True)


def test_runs_are_submitted_listed_and_cancelled(submit):
    assert submit("--list") == (0, "", NO_SERVER)
    with locked(Path("runs")):
        assert submit("--list") == (0, "", "")
        assert submit("method=simclr", "model.width=8", "seed=7") == (0, "submitted: 0001\n", "")
    assert submit("model.width=8") == (0, "submitted: 0002\n", NO_SERVER)
    assert submit("cancel=0001") == (0, "cancelled: 0001\n", NO_SERVER)
    assert submit("--list")[1].splitlines() == [
        "0001  cancelled  runs/0001/run",
        "0002  waiting  runs/0002/run",
    ]
    queue = RunQueue(Path("runs"))
    assert queue.next().name == "0002"
    folders = (Path("runs"), Path("runs/0001"))  # what is in them nobody else can read
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    first = queue.runs()[0].config(server("port=1234", "security=keys"))
    assert (first.method.name, first.seed, first.model.width) == ("simclr", 7, 8)
    assert (first.port, first.security, first.queue) == (1234, "keys", None)
    assert (first.run_dir, first.resume) == ("runs/0001/run", None)


def test_a_disk_without_locks_makes_no_error_of_a_run_that_is_submitted(submit, monkeypatch):
    def flock(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(Path("runs")):
        assert submit("model.width=8") == (0, "submitted: 0001\n", "")
    assert submit("--list") == (0, "0001  waiting  runs/0001/run\n", NO_SERVER)


def test_a_run_that_has_begun_is_gone_on_with_at_the_servers_present_address(submit):
    submit("model.width=8", "seed=7")
    (run,) = RunQueue(Path("runs")).runs()
    run.folder.mkdir()
    (run.folder / "config.yaml").write_bytes((run.path / "run.yaml").read_bytes())
    config = run.config(server("port=99"))
    assert (run.state, config.resume, config.port, config.seed) == (
        "begun", "runs/0001/run", 99, 7,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["method=nonsense"], "method=nonsense: must be one of"),
        (["training.lrr=1"], "training.lrr: unknown key"),
        (["port=1"], "port: the server of the queue decides it; leave it out"),
        (["watch.port=1"], "watch.port: the server of the queue decides it; leave it out"),
        (["logging.format=json"], "logging.format: the server of the queue decides it"),
        (["resume=x"], "resume: the server of the queue decides it; leave it out"),
        (["run_dir=x"], "run_dir: the server of the queue decides it; leave it out"),
        (["federation.clients=9"], "federation.clients=9: real clients come and go"),
        (["init=nowhere"], "init=nowhere"),
        (["data.root=nowhere"], "data.root=nowhere"),
        (["cancel=0001"], "cancel=0001: must be one of none"),
        (["--list", "seed=1"], "--list, cancel: must be alone"),
        (["queue="], "queue: must be given"),
        (["--nonsense"], "--nonsense: unknown flag"),
    ],
)
def test_what_is_wrong_is_not_submitted(submit, arguments, says):
    code, out, err = submit("model.width=8", *arguments) if "=" in says else submit(*arguments)
    if arguments == ["cancel=0001"]:
        code, out, err = submit(*arguments)
    assert (code, out) == (2, "") and err.startswith(f"error: {says}") and err.count("\n") == 1
    assert list(Path("runs").iterdir()) == []


def test_a_mistyped_queue_is_not_made(submit):
    for arguments in (["--list"], ["cancel=0001"], ["model.width=8"]):
        code, out, err = submit("queue=typo", *arguments)
        assert (code, out) == (2, "") and err.startswith("error: queue=typo: no such folder; a ser")
    assert not Path("typo").exists()


def test_the_number_of_a_removed_run_is_not_used_again(submit):
    """The queue's log took the new run for the old one, and never noted it."""
    queue = RunQueue(Path("runs"))
    for number in (1, 2):
        assert submit("model.width=8")[1] == f"submitted: 000{number}\n"
    queue.runs()[1].end("done")
    QueueLog(queue, print).update()
    shutil.rmtree("runs/0002")
    assert submit("model.width=8")[1] == "submitted: 0003\n"
    QueueLog(queue, print).update()
    events = [json.loads(line) for line in Path("runs/audit.jsonl").read_text().splitlines()]
    assert [entry["run"] for entry in events if entry["event"] == "submitted"] == [
        "0001", "0002", "0003",
    ]  # fmt: skip


def test_a_queue_that_others_may_write_to_is_refused_by_server_and_submit(
    submit, monkeypatch, capsys
):
    """They could have this server run what they like."""
    for mode in (0o777, 0o770, 0o702):
        Path("runs").chmod(mode)
        code, _, err = submit("model.width=8")
        assert code == 2 and err.startswith("error: queue=runs: others may write to it"), mode
        assert server_main(["queue=runs", "port=0"]) == 2
        assert "others may write to it" in capsys.readouterr().err
    Path("runs").chmod(0o755)
    assert submit("--list")[0] == 0
    monkeypatch.setattr("os.geteuid", lambda: Path("runs").stat().st_uid + 1)
    for code, _, err in (submit("--list"), submit("model.width=8")):
        assert code == 2 and err.startswith("error: queue=runs: belongs to another user")
    assert server_main(["queue=runs", "port=0"]) == 2
    assert "belongs to another user" in capsys.readouterr().err


def test_a_queue_that_somebody_else_made_a_moment_ago_is_refused(tmp_path):
    queue = RunQueue(tmp_path / "runs")
    queue.folder.mkdir()
    queue.folder.chmod(0o777)
    with pytest.raises(ConfigError, match="others may write to it"):
        queue.make()


def test_relative_paths_are_those_of_who_submits(submit, monkeypatch):
    Path("photos").mkdir()
    run = RunQueue(Path("runs")).put(run_to_submit(["model.width=8", "data.root=photos"]))
    assert run.config(server()).data.options["root"] == str(Path("photos").absolute())


@pytest.mark.parametrize("weights", ["first (1).safetensors", "pretrained"])
def test_relative_weights_are_those_of_who_submits(submit, weights):
    pytest.importorskip("timm", reason="needs the extra timm")
    Path("first (1).safetensors").touch()
    Path("pretrained").mkdir()
    run_config = run_to_submit(["model=timm", "model.timm=test_resnet", f"model.weights={weights}"])
    run = RunQueue(Path("runs")).put(run_config)
    stored_weights = run.config(server()).model.options["weights"]
    assert stored_weights == (weights if weights == "pretrained" else str(Path(weights).absolute()))


def test_lines_are_written_as_the_server_was_told(submit):
    submit("model.width=8")
    (run,) = RunQueue(Path("runs")).runs()
    assert run.config(server("logging.format=json")).logging.format == "json"


def test_a_garbage_file_ends_its_run_alone(submit):
    for number in range(4):
        submit("model.width=8", f"seed={number}")
    runs = RunQueue(Path("runs")).runs()
    (runs[0].path / "run.yaml").write_bytes(b"\xff\x00")
    (runs[1].path / "run.yaml").write_text("logging: 3\n")
    for run in runs[:2]:
        with pytest.raises(ConfigError):
            run.config(server())
    (runs[1].path / "ended").write_bytes(b"\xffdone\x00")
    (runs[2].path / "ended").mkdir()
    (Path("runs") / "0009").symlink_to("nowhere")
    assert runs[1].state.endswith("done\x00") and runs[2].state.startswith("failed: ended cannot")
    assert [run.name for run in RunQueue(Path("runs")).runs()] == [f"{n:04}" for n in range(1, 5)]


def test_a_full_disk_neither_ends_nor_adds_a_run(submit, monkeypatch):
    submit("model.width=8")
    (run,) = RunQueue(Path("runs")).runs()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            run.end("done")
        assert submit("model.width=8")[0] == 1
    assert run.state == "waiting" and [path.name for path in Path("runs").iterdir()] == ["0001"]
    assert run.end("done") and run.state == "done"


def test_a_server_imports_those_packages_alone_that_its_own_command_names(submit, stranger):
    name, marker = stranger
    submit("model.width=8")
    (run,) = RunQueue(Path("runs")).runs()
    file = run.path / "run.yaml"
    file.write_text(file.read_text().replace("plugins: []", f"plugins: [{name}]"))
    with pytest.raises(ConfigError, match=rf"run.yaml asks for plugins=\[{name}\]"):
        run.config(server())
    assert not marker.exists()
    assert server(f"plugins=[{name}]").plugins == run.config(server(f"plugins=[{name}]")).plugins


def test_a_run_ends_once(submit):
    submit("model.width=8")
    (run,) = RunQueue(Path("runs")).runs()
    assert run.end("done") and not run.end("failed: late") and run.state == "done"
    code, _, err = submit("cancel=0001")
    assert code == 2 and "this run has ended (done)" in err


def test_who_reads_how_a_run_ended_while_it_is_written_reads_all_or_nothing(submit, monkeypatch):
    """A server that looked at a run as it was cancelled noted for ever that it had failed."""
    submit("model.width=8")
    (run,) = RunQueue(Path("runs")).runs()
    seen, write = [], os.fsync

    def look(file):
        seen.append(run.state)
        write(file)

    monkeypatch.setattr("os.fsync", look)
    monkeypatch.setattr(run_queue, "printable", lambda text: seen.append(run.state) or text)
    assert run.end("cancelled") and {*seen} == {"waiting"}
    assert run.state == "cancelled" and not list(run.path.glob(".*"))


def test_how_a_run_ended_may_name_a_file_that_is_not_utf_8(submit):
    submit("model.width=8")
    (run,) = RunQueue(Path("runs")).runs()
    assert run.end("failed: data.root=photos\udcff: no such\nfolder")
    assert run.state == "failed: data.root=photos\\xff: no such folder"


def test_runs_that_are_submitted_together_are_all_kept(tmp_path):
    queue, config = RunQueue(tmp_path / "runs"), run_to_submit(["model.width=8"])
    queue.make()
    threads = [threading.Thread(target=queue.put, args=(config,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (tmp_path / "runs" / "0099").mkdir()  # of somebody who was killed before it was written
    assert [run.name for run in queue.runs()] == [f"{n:04}" for n in range(1, 9)]
    assert queue.put(config).name == "0100"


def test_a_queue_is_a_folder(submit, capsys):
    Path("runs").rmdir()
    Path("runs").touch()
    says = "error: queue=runs: must be a folder, or none yet\n"
    assert submit("model.width=8") == submit("--list") == (2, "", says)
    assert server_main(["queue=runs", "port=0"]) == 2 and capsys.readouterr().err == says


def test_a_server_with_a_queue_is_given_no_run(capsys):
    assert server_main(["queue=runs", "method=simclr"]) == 2
    assert "method: is not read with queue=: orchestra-submit says it" in capsys.readouterr().err
    assert load(ServerConfig, ["queue=runs"]).queue == "runs"
