"""`run_sim.py` as a person calls it: exit codes, one clear line, nothing written over."""

import errno
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr import cli
from orchestra_flwr.cli import client_main, main, server_main
from orchestra_flwr.data.image_files import decoding
from orchestra_flwr.folder_lock import locked


@pytest.fixture
def sim(tmp_path, monkeypatch, capsys):
    """Runs the command in an empty folder; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main([*arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["training.lrr=1"], "training.lrr"),
        (["partition.alpha=-1"], "partition.alpha=-1"),
        (["federation.participation=1.01"], "federation.participation=1.01"),
        (["clustering.global_clusters=1"], "clustering.global_clusters=1"),
        (["clustering.local_clusters=0"], "clustering.local_clusters=0"),
        (["method.ema=2"], "method.ema=2"),
        (["data=image_folder"], "data.root must name a folder or a zip"),
        (["data=image_folder", "data.root=missing"], "data.root=missing"),
        (["data=image_folder", "data.root=."], "data.root=."),
        (["federation.clients=100000"], "federation.clients=100000"),
        (["device=cuda:9"], "device=cuda:9"),
        (["privacy.k_min=500"], "privacy.k_min=500: must be at most clustering.memory=128"),
        (
            ["privacy.k_min=900", "clustering.memory=900"],
            "privacy.k_min=900: no client could send centroids",
        ),
        (["resume=missing"], "resume=missing"),
        (["resume=" + 300 * "a"], 20 * "a"),  # too long for a file
        ([f"model.{300 * 'a'}=1"], 20 * "a"),
        (["run_dir=" + 300 * "a"], 20 * "a"),
        (["federation=null"], "federation=null: must be one of dec_ssl, demo, device, silo, small"),
        (["hydra.run.dir=x"], "hydra.run.dir: unknown key"),
        (["federation.clients=true"], "federation.clients=true: must be a number"),
        (["name=../x"], "name=../x: must be the name of a folder in outputs/, without / and"),
        (["name='\x1b[31m'"], r"name=\x1b[31m: must be the name of a folder"),
        (["model.width=8000000"], "model.width=8000000: input should be less than or equal to"),
        (["model.width=16384", "model.projector_dim=131072"], "GB, and this machine has"),
        (["clustering.memory=1e10"], "clustering.memory=10000000000.0: input should be less than"),
        (["training.threads=1000"], "training.threads=1000: input should be less than or equal to"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(sim, tmp_path, arguments, names):
    code, out, err = sim("logging.progress=off", "engine=inline", *arguments)  # no Ray is started
    assert code == 2
    assert out == ""
    assert err.startswith("error: ") and names in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_then_its_table_and_folder(sim, tmp_path, tiny_overrides, pictures):
    code, out, _ = sim(*tiny_overrides)
    assert code == 0
    (folder,) = (tmp_path / "outputs" / "orchestra-digits").iterdir()
    assert "before training" in out and "trained" in out and "gain" in out
    lines = [line for line in out.splitlines() if not line.endswith(" ...")]  # of a busy machine
    assert lines[:4] == [
        f"run folder: {folder.relative_to(tmp_path)}",
        "method=orchestra data=digits: 120 training and 60 test images of 10 classes, 4 clients, "
        "2 rounds",
        "device: cpu, engine=inline",
        "clients at the same time: 1",
    ]
    assert str(folder.name) in out.strip().splitlines()[-1]
    assert {p.name for p in folder.iterdir()} == {
        ".lock",
        "checkpoint",
        "config.yaml",
        "curves.png",
        "encoder.json",
        "encoder.safetensors",
        "metrics.jsonl",
        "partition.json",
        "partition.png",
        "summary.json",
    }


def test_a_folder_that_holds_a_run_is_not_written_over(sim, tmp_path, tiny_overrides):
    assert sim(*tiny_overrides, "run_dir=mine")[0] == 0
    before = {p: p.read_bytes() for p in (tmp_path / "mine").rglob("*") if p.is_file()}
    code, _, err = sim(*tiny_overrides, "run_dir=mine")
    assert code == 2 and "run_dir=mine" in err and "resume" in err
    assert {p: p.read_bytes() for p in (tmp_path / "mine").rglob("*") if p.is_file()} == before


def test_resume_with_another_configuration_is_refused(sim, tmp_path, tiny_overrides):
    assert sim(*tiny_overrides, "run_dir=mine")[0] == 0
    before = (tmp_path / "mine" / "metrics.jsonl").read_bytes()
    code, _, err = sim("resume=mine", "training.lr=0.5")
    assert code == 2 and "training.lr=0.5" in err
    assert (tmp_path / "mine" / "metrics.jsonl").read_bytes() == before


def test_resuming_a_finished_run_changes_nothing(sim, tmp_path, tiny_overrides):
    assert sim(*tiny_overrides, "run_dir=mine")[0] == 0
    encoder = (tmp_path / "mine" / "encoder.safetensors").read_bytes()
    metrics = (tmp_path / "mine" / "metrics.jsonl").read_bytes()
    code, out, _ = sim("resume=mine")
    assert code == 0 and "trained" in out
    assert (tmp_path / "mine" / "encoder.safetensors").read_bytes() == encoder
    assert (tmp_path / "mine" / "metrics.jsonl").read_bytes() == metrics


def test_a_finished_run_gets_more_rounds(sim, tmp_path, tiny_overrides):
    """It ends in the bits of a run that had them from the start."""
    assert sim(*tiny_overrides, "run_dir=whole")[0] == 0
    assert sim(*tiny_overrides, "run_dir=mine", "federation.rounds=1")[0] == 0
    code, out, _ = sim("resume=mine", "federation.rounds=2")
    assert code == 0 and "resumed after round 1" in out and "round 2/2" in out
    whole, mine = (tmp_path / name / "encoder.safetensors" for name in ("whole", "mine"))
    assert whole.read_bytes() == mine.read_bytes()
    before = (tmp_path / "mine" / "metrics.jsonl").read_bytes()
    assert sim("resume=mine")[0] == 0  # which has two rounds from now on
    assert (tmp_path / "mine" / "metrics.jsonl").read_bytes() == before
    code, _, err = sim("resume=mine", "federation.rounds=1")
    assert code == 2 and "federation.rounds=1: must be at least 2, the rounds that mine has" in err


def test_a_run_begins_with_the_encoder_of_another_and_needs_it_once(sim, tmp_path, tiny_overrides):
    one_round = [*tiny_overrides, "federation.rounds=1"]
    assert sim(*one_round, "run_dir=first")[0] == 0
    code, out, _ = sim(*one_round, "init=first", "run_dir=second")
    assert code == 0 and "begins with the encoder of first" in out
    first, second = (tmp_path / name / "encoder.safetensors" for name in ("first", "second"))
    assert first.read_bytes() != second.read_bytes()
    first.unlink()
    assert sim("resume=second", "federation.rounds=2")[0] == 0
    code, _, err = sim(*one_round, "init=first", "run_dir=third")
    assert code == 2 and err.startswith("error: init=first: ") and err.count("\n") == 1
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize("root", ["[ü], it's=mine", os.fsdecode(b"caf\xe9 \xff")])
def test_a_simulation_knows_the_classes_of_its_images(sim, tmp_path, tiny_overrides, root):
    """Supervised learning from class folders: nobody names them, not on resuming either.

    A path may hold what the command line has other uses for, and bytes that are no text.
    """
    dog = os.fsdecode(b"\x1b[31m dog $\xff")  # names that are no text do not stop anything
    for name in ("train/cat", f"train/{dog}", "test/cat", f"test/{dog}"):
        folder = tmp_path / root / name
        folder.mkdir(parents=True)
        for number in range(8):
            pixels = torch.randint(0, 256, (8, 8, 3), dtype=torch.uint8).numpy()
            Image.fromarray(pixels).save(folder / f"{number}.png")
    photos = ("data=image_folder", f"data.root={root}", "data.image_size=8", "partition=iid",
              "federation.clients=2", "method=supervised", "training.local_epochs=1")  # fmt: skip
    read = [o for o in tiny_overrides if not o.startswith(("clustering.", "model.projector"))]
    assert sim(*read, *photos, "federation.rounds=1", "run_dir=mine")[0] == 0
    assert not re.search(r"\bcat\b", (tmp_path / "mine" / "config.yaml").read_text())
    assert sim("resume=mine")[0] == 0


def test_a_failed_run_is_exit_code_1_and_can_be_continued(sim, tmp_path, tiny_overrides):
    code, _, err = sim(
        *tiny_overrides, "training.lr=1e30", "training.local_epochs=4", "run_dir=mine"
    )
    assert code == 1
    assert "clients 0, 1, 2, 3: TrainingError" in err and "resume=mine" in err


def cut(file):
    file.write_bytes(file.read_bytes()[:-1].rpartition(b"\n")[0] + b"\n")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip_a_bit(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def fewer_rounds(file):
    file.write_text(file.read_text().replace("rounds: 2", "rounds: 1"))


STATE = "checkpoint/state.safetensors"
DAMAGES = [
    (STATE, flip_a_bit, "state.safetensors is damaged"),
    (STATE, Path.unlink, "state.safetensors was removed"),
    ("metrics.jsonl", cut, "metrics.jsonl was cut to 2 of 3 records since the checkpoint"),
    ("config.yaml", fewer_rounds, "was changed since the checkpoint: federation.rounds 2 -> 1;"),
]


def test_a_run_that_was_damaged_or_is_in_use_is_not_resumed(sim, tmp_path, tiny_overrides):
    """Exit code 2 and one line, before anything is written."""
    assert sim(*tiny_overrides, "run_dir=mine")[0] == 0
    mine = tmp_path / "mine"
    for name, damage, says in DAMAGES:
        whole = (mine / name).read_bytes()
        damage(mine / name)
        damaged = contents(mine)
        code, _, err = sim("resume=mine")
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
        assert says in err and "or start a new run" in err
        assert contents(mine) == damaged
        (mine / name).write_bytes(whole)
    with locked(mine):
        for arguments in (["resume=mine"], [*tiny_overrides, "run_dir=mine"]):
            code, _, err = sim(*arguments)
            assert code == 2 and err.count("\n") == 1
            assert f"process {os.getpid()} on host {platform.node()} writes to this folder" in err


def test_two_new_runs_do_not_share_a_folder(sim, tmp_path, tiny_overrides):
    (tmp_path / "mine").mkdir()
    with locked(tmp_path / "mine"):
        code, _, err = sim(*tiny_overrides, "run_dir=mine")
    assert code == 2 and f"run_dir=mine: process {os.getpid()} on host" in err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == [".lock"]


@pytest.mark.slow
def test_a_run_ends_well_although_nobody_reads_its_output(tmp_path, tiny_overrides):
    """`run_sim.py ... 2>&- | head -1`."""
    overrides = [*tiny_overrides, "federation.rounds=1", "run_dir=mine"]
    command = [sys.executable, "-m", "orchestra_flwr", *overrides]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shell = ["sh", "-c", '"$@" 2>&-', "sh", *command]
    with subprocess.Popen(shell, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
    assert process.returncode == 0
    assert (tmp_path / "mine" / "summary.json").is_file()


def test_help_and_cfg(sim, tmp_path):
    code, out, _ = sim("--help")
    assert code == 0 and "usage: run_sim.py" in out and "participation:" in out
    code, out, _ = sim("--cfg", "data=cifar10")
    assert code == 0 and "name: resnet18" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tracker", "written"),
    [
        ("tensorboard", "mine/tensorboard/events*"),
        ("wandb", "mine/wandb/offline-run-*/files/media/images/curves*.png"),
        ("mlflow", "mlruns/*/*/artifacts/partition.png"),
    ],
)
def test_trackers(sim, tmp_path, tiny_overrides, pictures, monkeypatch, tracker, written):
    pytest.importorskip(tracker)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    assert sim(*tiny_overrides, "run_dir=mine", f"logging.{tracker}=true")[0] == 0
    assert list(tmp_path.glob(written))


def test_tensorboard_that_is_not_installed_is_told_before_anything_is_written(
    sim, tmp_path, tiny_overrides, monkeypatch
):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    code, _, err = sim(*tiny_overrides, "logging.tensorboard=true")
    assert code == 2 and "pip install 'orchestra-flwr[tensorboard]'" in err
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_that_cannot_be_made_is_told(sim, tmp_path, tiny_overrides):
    (tmp_path / "outputs").write_text("a file where the folder should be")
    code, _, err = sim(*tiny_overrides)
    assert code == 2 and err.startswith("error: the run folder cannot be made")


@pytest.mark.parametrize(
    ("command", "arguments", "names"),
    [
        (server_main, ["prt=1"], "prt: unknown key"),
        (server_main, ["method.ema=2"], "method.ema=2"),
        (server_main, ["host=0.0.0.0"], "orchestra-keys server"),
        (server_main, ["port=0", "security=typo"], "typo/ca.crt is missing: make it"),
        (server_main, ["data.root=missing"], "data.root=missing"),
        (server_main, ["host=203.0.113.1", "insecure=true"], "host=203.0.113.1"),
        (client_main, [], "server=null"),
        (client_main, ["server=example.org:1", "data.root=x"], "ca.crt"),
        (client_main, ["server=[::1]:1", "data.root=x", "security=typo"], "typo/ca.crt is missing"),
        (client_main, ["server=127.0.0.1:1", "data.root=missing"], "data.root=missing"),
        (client_main, ["server=127.0.0.1:1", "data.root=x", "lr=1"], "lr: unknown key"),
    ],
)
def test_bad_servers_and_clients_are_one_line_and_exit_code_2(
    command, arguments, names, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert command(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and names in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_cannot_write_is_one_line_and_exit_code_1(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "orchestra-1")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    assert client_main(["server=127.0.0.1:1", f"data.root={tmp_path}", "insecure=true"]) == 1
    assert capsys.readouterr().err.endswith("No space left on device: 'orchestra-1'\n")


@pytest.mark.parametrize(
    ("saved", "given", "shown"),
    [
        ({"format": "json"}, [], False),
        ({"progress": "off"}, [], False),
        ({"format": "json"}, ["logging.format=text"], True),
        ({"format": "text"}, [], True),
        ({}, ["logging.format=json"], False),
        ("damaged", [], True),
    ],
)
def test_a_resumed_server_says_that_it_starts_as_its_run_shows_lines(
    tmp_path, saved, given, shown, capsys
):
    """Of a run with logging.format=json the first line was no JSON."""
    (tmp_path / "config.yaml").write_text(json.dumps({"logging": saved}))
    with cli._starting(cli._serve, [f"resume={tmp_path}", *given]):
        pass
    assert bool(capsys.readouterr().out) == shown


@pytest.mark.parametrize("command", [main, server_main, client_main])
def test_help_names_the_program_and_every_key(command, capsys):
    assert command(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: run_") and "Every key with its value" in out and "device:" in out


@pytest.mark.parametrize(
    ("command", "serves"), [(main, False), (server_main, True), (client_main, True)]
)
def test_a_server_and_a_client_wait_for_no_reader_but_of_their_help(command, serves, monkeypatch):
    called = []
    monkeypatch.setattr(cli, "never_wait_for_readers", lambda: called.append(command))
    assert command(["--help"]) == 0 and not called
    assert command(["typo=1"]) == 2
    assert bool(called) == serves


@pytest.fixture
def heard():
    """Ctrl-C is heard, which a suite that a shell runs in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("main", "stopped before the run began; nothing was written"),
        ("server_main", "stopped before the run began; nothing was written"),
        *[
            (f"{name}_main", "stopped; nothing was written")
            for name in ("client", "embed", "label", "compare", "export", "evaluate", "top")
        ],
    ],
)
def test_a_command_that_is_stopped_at_once_speaks_of_a_run_only_where_it_makes_one(
    command, line, monkeypatch, capsys
):
    def stopped(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(cli, "load", stopped)
    before = signal.getsignal(signal.SIGTERM)
    try:
        # A client has no other end: systemd must not call its unit failed.
        assert getattr(cli, command)([]) == (0 if command == "client_main" else 143)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize("command", ["main", "server_main", "client_main", "embed_main"])
def test_a_full_disk_before_anything_is_imported_is_one_line(command, monkeypatch, capsys):
    """Exit code 1: systemd starts it again."""

    def full():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", full)
    assert getattr(cli, command)([]) == 1
    assert capsys.readouterr().err.startswith("error: No usable temporary directory found in ['/")


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopping_while_images_are_decoded_is_one_line(sim, tmp_path, monkeypatch, number, code):
    """The signal comes with the first image; the others are not decoded any more."""
    (tmp_path / "photos").mkdir()
    for file in range(2000):
        (tmp_path / "photos" / f"{file}.png").write_bytes(b"x")
    decoded = []

    def decode(data, size):
        if not decoded:
            os.kill(os.getpid(), number)
        decoded.append(size)
        time.sleep(0.01)
        return np.zeros((3, size, size), np.uint8)

    monkeypatch.setattr(decoding, "decode_image", decode)
    quiet = "logging.progress=off"
    flat = ("data=image_folder", "data.root=photos", "partition=iid")
    assert sim(*flat, "engine=inline", quiet) == (
        code, "", "stopped before the run began; nothing was written\n",
    )  # fmt: skip
    assert len(decoded) < 1900
    assert [entry.name for entry in tmp_path.iterdir()] == ["photos"]
