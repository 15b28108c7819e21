"""The last checkpoints of a run, and runs that go on from an earlier one."""

import errno
import json
import os
import re
import shlex
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from orchestra_flwr import simulate
from orchestra_flwr.cli import main
from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.federation.engines import inline
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.flower.arrays import from_record, to_record
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.reporting.kept_checkpoints import LATEST, earlier_rounds, make_latest, round_of


@pytest.fixture(scope="module")
def ended():
    return {}


@pytest.fixture
def whole(tiny, tmp_path, tmp_path_factory, federate, ended):
    """The folder of a run of five rounds, which has ended: a copy, each run is made once."""

    def run(*overrides):
        if overrides not in ended:
            folder = tmp_path_factory.mktemp("ended") / "run"
            federate(tiny("federation.rounds=5", *overrides, f"run_dir={folder}"))
            ended[overrides] = folder
        return RunFolder(shutil.copytree(ended[overrides], tmp_path / "whole"))

    return run


@pytest.fixture
def resumed(federate):
    """Goes on as the command does."""

    def run(folder, *overrides):
        config = load_config([f"resume={folder.path}", *overrides])
        with RunFolder.open(config) as opened:
            return federate(config, folder=opened)

    return run


def tensors(folder):
    return load_file(folder.checkpoint / LATEST)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


def shown(folder):
    """Of each round what does not depend on the clock."""
    keys = ("round", "loss", "scores", "bytes_up", "moved")
    return [{key: record.get(key) for key in keys} for record in folder.read_metrics()]


def test_the_last_three_checkpoints_are_kept(whole):
    folder = whole()
    files = {path.name for path in folder.checkpoint.glob("state*")}
    assert files == {"state.safetensors", "state-3.safetensors", "state-4.safetensors"}
    assert [round_of(folder.checkpoint / name) for name in sorted(files)] == [3, 4, 5]
    assert not list(folder.checkpoint.glob(".*"))


@pytest.mark.parametrize(
    ("round_", "overrides"),
    [
        (4, ()),
        (3, ("server_optimizer=adam", "federation.wire=int4")),
        *(
            pytest.param(3, overrides, marks=pytest.mark.slow)
            for overrides in (
                ("merging=fedema", "method=byol", "federation.participation=0.5"),
                ("federation.participation=0.5", "clustering=private", "privacy.epsilon=20"),
                ("training.optimizer_state=keep", "method=simclr"),
                ("exchange=clusters", "method=simclr", "exchange.warm_rounds=1"),
                ("exchange=cycle", "method=simclr"),
            )
        ),
    ],
)
def test_a_run_that_went_back_ends_in_the_same_bits(whole, resumed, overrides, round_):
    folder = whole(*overrides)
    before, records = tensors(folder), shown(folder)
    lines = folder.metrics.read_bytes().splitlines(keepends=True)
    again = resumed(folder, f"resume_round={round_}")
    assert again.summary["rounds"] == 5 and same(before, tensors(folder))
    assert shown(folder) == records
    assert folder.set_aside.read_bytes() == b"".join(lines[round_ + 1 :])
    assert earlier_rounds(folder.checkpoint) == [3, 4]


def test_it_says_what_is_set_aside_and_may_go_on_to_more_rounds(whole, capsys):
    folder = whole()
    arguments = [f"resume={folder.path}", "resume_round=3", "federation.rounds=6"]
    assert main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "goes back to round 3: the records of 2 later rounds are in metrics.set_aside.jsonl, "
        "their checkpoints are removed" in said
    )
    assert "resumed after round 3" in said
    assert [record["round"] for record in folder.read_metrics()] == list(range(7))
    assert earlier_rounds(folder.checkpoint) == [4, 5]
    assert main([f"resume={folder.path}", "federation.rounds=7"]) == 0  # the newest one goes on
    assert "resumed after round 6" in capsys.readouterr().out


def test_the_latest_round_may_be_named_as_well(whole, resumed):
    folder = whole()
    resumed(folder, "resume_round=5", "federation.rounds=6")
    assert [r["round"] for r in folder.read_metrics()] == list(range(7))
    assert not folder.set_aside.exists()


@pytest.mark.parametrize("round_", [0, 2, 6])
def test_a_round_that_is_not_kept_is_refused_and_nothing_changes(whole, capsys, round_):
    folder = whole()
    (folder.path / ".lock").touch()
    files = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    assert main([f"resume={folder.path}", f"resume_round={round_}"]) == 2
    assert capsys.readouterr().err == (
        f"error: resume_round={round_}: must be a round whose checkpoint {folder.path} holds "
        "(3, 4, 5); there are those of the last 3\n"
    )
    assert {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()} == files


def test_it_needs_a_run_without_noise_that_is_resumed(tiny, tmp_path):
    with pytest.raises(ConfigError, match="resume_round=1: needs resume="):
        tiny("resume_round=1")
    noisy = tiny(
        "method=simclr", "model.norm=group", "federation.weighting=uniform", "privacy.clip=1",
        "privacy.noise_multiplier=1", f"run_dir={tmp_path / 'run'}",
    )  # fmt: skip
    RunFolder.create(noisy)
    with pytest.raises(ConfigError, match="resume_round=1: must not be given for a run with priv"):
        load_config([f"resume={tmp_path / 'run'}", "resume_round=1"])


NOISY = ("method=simclr", "model.norm=group", "federation.weighting=uniform", "privacy.clip=1",
         "privacy.noise_multiplier=1")  # fmt: skip


def test_a_run_with_noise_does_not_go_back_by_an_older_checkpoint_either(whole, resumed):
    folder = whole(*NOISY)
    file, latest = folder.checkpoint / LATEST, (folder.checkpoint / LATEST).read_bytes()
    file.unlink()
    shutil.copy(folder.checkpoint / "state-3.safetensors", file)
    with pytest.raises(ConfigError, match=r"is 2 rounds older than .* cannot go back"):
        resumed(folder)
    shutil.copy(folder.checkpoint / "state-4.safetensors", file)  # as a kill in round 5 leaves it
    RunFolder.resume(folder.path)
    file.write_bytes(latest)
    RunFolder.resume(folder.path)


def test_releases_of_another_model_in_a_repeated_round_count_again(whole, resumed):
    """Round 4 begins as before. Half of its replies do not count, so round 5 has another model."""
    private = ("clustering=private", "privacy.epsilon=20", "clock=virtual", "federation.enough=1.0")
    folder = whole(*private)
    before = json.loads(folder.summary.read_text())["privacy"]["centroids"]["releases"]
    again = resumed(folder, "resume_round=3", "federation.enough=0.5").summary
    asked = folder.read_metrics()[-1]["clients"]["cohort"]
    releases = again["privacy"]["centroids"]["releases"]
    assert sum(releases.values()) == sum(before.values()) + asked > sum(before.values())


@pytest.mark.parametrize("content", [b"half", None])
def test_a_damaged_latest_checkpoint_is_left_behind(whole, resumed, content):
    folder = whole()
    before, file = tensors(folder), folder.checkpoint / LATEST
    file.unlink()  # tensors are read where they lie
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{LATEST} (is damaged|was removed)"):
        resumed(folder)
    resumed(folder, "resume_round=4")
    assert same(before, tensors(folder))


def test_a_damaged_earlier_checkpoint_is_named(whole, resumed):
    folder = whole()
    file = folder.checkpoint / "state-3.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.unlink()
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"state-3.safetensors is damaged"):
        resumed(folder, "resume_round=3")
    resumed(folder, "resume_round=4")


def test_killed_while_it_goes_back_it_is_resumed(whole, resumed):
    """Between the checkpoint, which decides, and the records."""
    folder = whole()
    before, records = tensors(folder), shown(folder)
    make_latest(folder.checkpoint, 3)
    resumed(folder)
    assert same(before, tensors(folder)) and shown(folder) == records


def test_killed_while_it_sets_records_aside_no_line_is_spoilt(whole):
    folder = whole()
    lines = folder.metrics.read_bytes().splitlines(keepends=True)
    folder.set_aside.write_bytes(lines[4] + lines[5][:20])
    RunFolder.resume(folder.path, 4)
    rounds = [json.loads(line)["round"] for line in folder.set_aside.read_text().splitlines()]
    assert rounds == [4, 5]


@pytest.mark.slow
def test_without_links_checkpoints_are_copied(tiny, tmp_path, federate, resumed, monkeypatch):
    def no_links(*args, **kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    folder = federate(tiny("federation.rounds=4", f"run_dir={tmp_path / 'run'}")).folder
    before = tensors(folder)
    assert earlier_rounds(folder.checkpoint) == [2, 3]
    resumed(folder, "resume_round=3")
    assert same(before, tensors(folder))
    assert not list(folder.checkpoint.glob(".*"))


def absurd_together(client, round_, sent, reply):
    """All of a cohort: nobody is there to hold them against."""
    if round_ == 2:
        arrays = from_record(reply.content[ARRAYS])
        reply.content[ARRAYS] = to_record({**arrays, "shared": arrays["shared"] * np.float32(1e15)})


@pytest.fixture
def clients_of(monkeypatch, watched):
    """What simulated clients are, for commands as well."""
    return lambda look: monkeypatch.setattr(inline, "client_app", watched(look))


def test_after_a_round_from_which_nobody_can_train_the_advised_command_goes_on(
    tiny_overrides, tmp_path, clients_of, capsys
):
    """The bad model is in the latest checkpoint; the one before it is good."""
    clients_of(absurd_together)
    overrides = [*tiny_overrides, "federation.rounds=4", "evaluation.every=9", "method=simclr"]
    overrides = [override for override in overrides if not override.startswith("clustering.")]
    assert main([*overrides, f"run_dir={tmp_path / 'run'}"]) == 1
    error, advice = capsys.readouterr().err.splitlines()
    assert re.match(r"error: round 3: 0 of 4 clients answered well, .* loss is nan", error)
    assert error.endswith("Nobody could train the model of round 2")
    assert advice == f"continue with: python run_sim.py resume={tmp_path / 'run'} resume_round=1"
    assert main([f"resume={tmp_path / 'run'}"]) == 1  # again and again
    assert capsys.readouterr().err.splitlines()[-1] == advice
    clients_of(lambda *_: None)
    assert main(shlex.split(advice.partition("run_sim.py ")[2])) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2, 3, 4]


def test_from_python_the_advice_is_a_note(tiny_overrides, tmp_path, clients_of):
    clients_of(absurd_together)
    overrides = [*tiny_overrides, "federation.rounds=4", "evaluation.every=9"]
    with pytest.raises(FederationError) as failed:
        simulate([*overrides, f"run_dir={tmp_path / 'run'}"])
    assert failed.value.__notes__ == [f"continue with: resume={tmp_path / 'run'} resume_round=1"]


def test_a_run_with_noise_is_not_advised_to_go_back_which_it_cannot(
    tiny, tmp_path, federate, watched
):
    from flwr.app import Error, Message

    def ruined(client, round_, sent, reply):
        return Message(Error(101, "loss is nan"), reply_to=reply) if round_ == 3 else None

    config = tiny("federation.rounds=4", f"run_dir={tmp_path / 'run'}", "method=simclr",
                  "model.norm=group", "federation.weighting=uniform", "privacy.clip=1",
                  "privacy.noise_multiplier=1")  # fmt: skip
    with pytest.raises(FederationError, match="round 3: 0 of 4 clients answered well") as failed:
        federate(config, app=watched(ruined))
    assert failed.value.resume_round is None


def test_clients_that_do_not_answer_are_no_reason_to_go_back(tiny, tmp_path, federate, watched):
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode

    def gone(client, round_, sent, reply):
        if round_ == 3:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE), reply_to=reply)
        return None

    config = tiny("federation.rounds=4", f"run_dir={tmp_path / 'run'}")
    with pytest.raises(FederationError, match="round 3: 0 of 4") as failed:
        federate(config, app=watched(gone))
    assert failed.value.resume_round is None
