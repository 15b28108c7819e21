"""What changes behind a checkpoint is named, and a run is not resumed beside it."""

import json
import shutil

import pytest
import torch
import yaml

from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.reporting.folder_record import CHECKPOINT, VALUE, FolderRecord
from orchestra_flwr.tensor_files import save_tensors


@pytest.fixture(scope="module")
def config():
    return load_config(["federation.rounds=20"])


@pytest.fixture
def folder(config, tmp_path):
    """A run that has ended three rounds, and was killed in the fourth."""
    folder = RunFolder.create(config, tmp_path)
    folder.checkpoint.mkdir()
    (folder.checkpoint / "run.id").write_text("0123456789abcdef")
    (folder.checkpoint / "noise.key").write_text("ab" * 32)
    record = FolderRecord(folder.path)
    for number in range(3):
        append(folder, number)
        checkpoint(folder, record.to_json())
    append(folder, 3)
    return folder


def append(folder, number):
    with (folder.checkpoint / "releases.jsonl").open("a") as file:
        file.write(json.dumps({"round": number}) + "\n")
    folder.append_metrics({"round": number, "loss": {"total": 0.5}})


def checkpoint(folder, record):
    values = {"position": "{}", VALUE: record}
    save_tensors(folder.path / CHECKPOINT, {"a": torch.zeros(3)}, values)


def refusal(folder):
    with pytest.raises(ConfigError) as error:
        RunFolder.resume(folder.path)
    assert "\n" not in str(error.value) and str(error.value).endswith("or start a new run")
    return str(error.value)


def change(folder, **values):
    file = folder.path / "config.yaml"
    record = yaml.safe_load(file.read_text())
    for key, value in values.items():
        section, _, name = key.partition("__")
        (record[section] if name else record)[name or section] = value
    file.write_text(yaml.safe_dump(record))


def test_a_folder_that_was_left_alone_is_resumed(folder):
    assert RunFolder.resume(folder.path).path == folder.path
    folder.truncate_after(2)
    RunFolder.resume(folder.path)


def test_a_changed_configuration_is_named_key_by_key(folder):
    change(folder, federation__rounds=10, seed=7)
    assert refusal(folder) == (
        f"{folder.path / 'config.yaml'} was changed since the checkpoint: federation.rounds "
        "20 -> 10, seed 0 -> 7; put the old values back, or start a new run"
    )


def test_keys_that_come_and_go_are_named(folder):
    change(folder, federation__foo=1, device=None, seed=None)
    text = refusal(folder)
    assert "device" not in text
    assert "federation.foo (none) -> 1" in text and "seed 0 -> null" in text


def test_many_changes_are_counted(folder, config):
    numbers = [k for k, v in config.training.model_dump().items() if type(v) in (int, float)]
    changes = {f"training__{key}": 99 for key in numbers}
    change(folder, seed=1, name="other", federation__rounds=1, **changes)
    more = len(changes) + 3 - 5
    assert more > 0 and f", and {more} more; put" in refusal(folder)


def test_what_may_change_on_resuming_may_be_edited(folder):
    change(folder, engine={"name": "inline"}, device="cpu", run_dir="elsewhere")
    RunFolder.resume(folder.path)


def test_more_rounds_may_be_written_down_where_they_change_no_other(folder):
    change(folder, federation__rounds=40)
    RunFolder.resume(folder.path)
    change(folder, schedule={"name": "cosine"})
    assert "federation.rounds 20 -> 40" in refusal(folder)


def test_comments_and_layout_are_no_change(folder):
    file = folder.path / "config.yaml"
    values = yaml.safe_load(file.read_text())
    file.write_text("# mine\n" + json.dumps(values))
    RunFolder.resume(folder.path)


def test_a_moved_folder_is_the_same_run(folder, tmp_path):
    moved = tmp_path / "moved"
    shutil.move(folder.path, moved)
    RunFolder.resume(moved)


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoint/releases.jsonl"])
def test_records_that_were_cut_removed_or_changed_are_refused(folder, name):
    file = folder.path / name
    lines = file.read_bytes().splitlines(keepends=True)
    for held, says in (
        (lines[:1], "was cut to 1 of 3 records since the checkpoint"),
        ([*lines[:2], lines[3]], "was changed since the checkpoint"),
        ([b"x", *lines], "was changed since the checkpoint"),
    ):
        file.write_bytes(b"".join(held))
        assert refusal(folder).startswith(f"{file} {says}; put back what it held")
    file.unlink()
    assert refusal(folder).startswith(f"{file} was removed since the checkpoint")


@pytest.mark.parametrize("name", ["run.id", "noise.key"])
def test_a_run_that_has_lost_its_identity_is_refused(folder, name):
    file = folder.checkpoint / name
    whole = file.read_text()
    file.write_text(whole.replace("a", "b", 1))
    assert f"{file} was changed" in refusal(folder)
    file.unlink()
    assert f"{file} was removed" in refusal(folder)


def test_other_frozen_weights_are_refused(folder):
    """Files are named by their digest: one that fits its name may still be another run's."""
    folder.frozen.mkdir()
    mine, other = (folder.frozen / f"{digit * 64}.float32" for digit in "ab")
    mine.touch()
    checkpoint(folder, FolderRecord(folder.path).to_json())
    RunFolder.resume(folder.path)
    expected = (
        f"{folder.frozen} holds other weights than at the checkpoint; put back what it held "
        f"({mine.name}), or start a new run"
    )
    other.touch()
    assert refusal(folder) == expected
    mine.unlink()
    assert refusal(folder) == expected


def test_a_folder_of_an_earlier_version_has_no_record_of_frozen_weights(folder):
    record = json.loads(FolderRecord(folder.path).to_json())
    del record["frozen"]
    checkpoint(folder, json.dumps(record))
    folder.frozen.mkdir()
    (folder.frozen / f"{'a' * 64}.float32").touch()
    RunFolder.resume(folder.path)


def test_a_run_that_has_ended_has_no_key_any_more(folder):
    folder.write_summary({"rounds": 3})
    (folder.checkpoint / "noise.key").unlink()
    RunFolder.resume(folder.path)


def test_a_flipped_bit_in_the_checkpoint_is_refused(folder):
    file = folder.path / CHECKPOINT
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert refusal(folder) == (
        f"{file} is damaged: its checksum is wrong; put back a copy of it, or start a new run"
    )


def test_behind_a_damaged_checkpoint_an_earlier_one_is_named(folder):
    file = folder.path / CHECKPOINT
    whole = folder.checkpoint / "state-1.safetensors"
    shutil.copy(file, folder.checkpoint / "state-0.safetensors")
    file.rename(whole)
    file.write_bytes(b"nothing")
    assert ", go back with resume_round=1, or start" in refusal(folder)
    RunFolder.resume(folder.path, 1)


def test_behind_a_damaged_checkpoint_of_a_run_with_noise_none_is_named(folder):
    """It cannot go back."""
    shutil.copy(folder.path / CHECKPOINT, folder.checkpoint / "state-1.safetensors")
    (folder.path / CHECKPOINT).unlink()
    (folder.path / CHECKPOINT).write_bytes(b"nothing")
    change(folder, privacy__noise_multiplier=1.0)
    assert refusal(folder).endswith("; put back a copy of it, or start a new run")


@pytest.mark.parametrize(
    "line",
    [b"{broken\n", b"3\n", b'{"seconds": 1}\n', b"\xff\xfe\n", b"[" * 9**5 + b"\n"],
    ids=["cut", "number", "no round", "no text", "deep"],
)
def test_a_bad_line_behind_the_checkpoint_is_one_line(folder, line):
    with folder.metrics.open("ab") as file:
        file.write(line)
    text = f"{folder.metrics}, line 5: no record of a round; remove it, or start a new run"
    assert refusal(folder) == text


def test_the_record_follows_a_growing_file(config, tmp_path):
    """It reads no byte twice; a record made afresh is the same."""
    folder = RunFolder.create(config, tmp_path)
    record = FolderRecord(folder.path)
    for number in range(3):
        folder.append_metrics({"round": number})
        assert record.to_json() == FolderRecord(folder.path).to_json()
    assert json.loads(record.to_json())["files"]["metrics.jsonl"]["lines"] == 3
    folder.truncate_after(1)
    assert record.to_json() == FolderRecord(folder.path).to_json()
    lines = folder.metrics.read_bytes()
    with folder.metrics.open("r+b") as file:
        file.write(lines.replace(b"0", b"7"))
    folder.append_metrics({"round": 2})
    folder.checkpoint.mkdir()
    checkpoint(folder, record.to_json())
    assert "metrics.jsonl was changed since the checkpoint" in refusal(folder)
