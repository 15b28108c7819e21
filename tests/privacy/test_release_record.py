"""The file behind both ledgers: it only grows, and nothing is released before its line is there."""

import io
import json
import os
from dataclasses import dataclass

import pytest
from pydantic import TypeAdapter

from orchestra_flwr.config import ConfigError
from orchestra_flwr.privacy.client_ledger import RunRelease
from orchestra_flwr.privacy.release_record import ReleaseRecord
from orchestra_flwr.privacy.server_ledger import AskedClients
from orchestra_flwr.privacy.sum_ledger import NoisyUpdate

ASKED = '{"round": 0, "clients": ["a", "b"]}'
RELEASED = json.dumps(
    {
        "run": "0123456789abcdef",
        "round": 2,
        "noise": {
            "epsilon": 1.0,
            "delta": 0.001,
            "depth": 20,
            "sum_noise": 2.6457513110645907,
            "count_noise": 0.018898223650461363,
        },
    }
)
KINDS = [(AskedClients, ASKED), (RunRelease, RELEASED)]


@dataclass(frozen=True)
class Number:
    value: int


@pytest.fixture
def file(tmp_path):
    return tmp_path / "checkpoint" / "releases.jsonl"


def written(file, *lines):
    file.parent.mkdir(exist_ok=True)
    file.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return file


def test_entries_are_found_again_without_anything_being_closed(file):
    record = ReleaseRecord(file, Number)
    assert record.entries == () and not file.exists()
    for value in (3, 1, 3):
        record.append(Number(value))
    again = ReleaseRecord(file, Number)
    assert again.entries == record.entries == (Number(3), Number(1), Number(3))
    again.append(Number(4))
    assert [json.loads(line)["value"] for line in file.read_text().splitlines()] == [3, 1, 3, 4]


@pytest.mark.parametrize(("kind", "line"), KINDS)
def test_files_of_earlier_versions_are_read_and_continued(file, kind, line):
    """From the first line with a digest on, those without one are safe as well."""
    record = ReleaseRecord(written(file, line, line), kind)
    first, second = record.entries
    assert first == second
    record.append(first)
    *old, new = file.read_text().splitlines()
    assert old == [line, line]
    assert json.loads(new).items() > json.loads(line).items()
    assert ReleaseRecord(file, kind).entries == (first,) * 3
    written(file, line, new)
    with pytest.raises(ConfigError, match="line 2: no record of a release"):
        ReleaseRecord(file, kind)


def test_an_entry_is_on_the_disk_when_append_returns(file, monkeypatch):
    """What a power cut at that moment leaves."""
    events, sync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: (events.append(os.fstat(number).st_size), sync(number))
    )
    ReleaseRecord(file, Number).append(Number(7))
    assert file.stat().st_size in events and file.stat().st_size > 0


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_an_entry_that_cannot_be_written_does_not_count(file, monkeypatch, failing):
    record = ReleaseRecord(file, Number)
    record.append(Number(1))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if failing == "fsync":
            patch.setattr(os, "fsync", full)
        else:
            patch.setattr("orchestra_flwr.privacy.release_record.append_durably", full)
        with pytest.raises(OSError, match="No space"):
            record.append(Number(2))
    for reader in (record, ReleaseRecord(file, Number)):
        assert reader.entries == (Number(1),)


class Broken(io.FileIO):
    """A file on a disk that takes what is written, or half of it, and then fails."""

    written = None  # bytes of a write that reach the disk; None: all

    def write(self, data):
        super().write(data[: self.written])
        raise OSError(5, "Input/output error")

    def truncate(self, size=None):
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize(("written", "counts"), [(None, 1), (20, 0), (0, 0)])
def test_a_line_that_a_broken_disk_took_breaks_no_later_one(file, monkeypatch, written, counts):
    """It may count, but must not end the record."""
    record = ReleaseRecord(file, Number)
    record.append(Number(1))
    monkeypatch.setattr(Broken, "written", written)

    def broken(path, mode, **options):
        return Broken(path, mode, opener=options["opener"])

    with monkeypatch.context() as patch:
        patch.setattr("orchestra_flwr.files.open", broken, raising=False)
        with pytest.raises(OSError, match="Input/output error"):
            record.append(Number(2))
    record.append(Number(3))
    expected = (Number(1), *[Number(2)] * counts, Number(3))
    assert record.entries == ReleaseRecord(file, Number).entries == expected


NOISE = RunRelease(**json.loads(RELEASED)).noise


@pytest.mark.parametrize("entry", [
    NoisyUpdate("a run", -1, 4.0), NoisyUpdate("\ud800", 1, 4.0), NoisyUpdate("a run", 1, "4"),
    RunRelease("a run", -1, NOISE), AskedClients(-1, ("a",)), AskedClients(1, ("\ud800",)),
])  # fmt: skip
def test_nothing_is_written_that_cannot_be_read(file, entry):
    record = ReleaseRecord(file, type(entry))
    with pytest.raises(ValueError, match="validation error"):
        record.append(entry)
    assert record.entries == () and not file.exists()


def test_a_folder_that_cannot_be_made_is_an_error(file):
    file.parent.write_text("a file in the way")
    with pytest.raises(OSError, match="checkpoint"):
        ReleaseRecord(file, Number).append(Number(1))


@pytest.mark.parametrize(("kind", "line"), KINDS)
@pytest.mark.parametrize("torn", [1, 10, -1])
def test_a_last_line_that_was_cut_off_was_never_acted_on(file, kind, line, torn):
    written(file, line)
    with file.open("a") as rest:
        rest.write(line[:torn])
    record = ReleaseRecord(file, kind)
    assert len(record.entries) == 1
    record.append(record.entries[0])
    assert ReleaseRecord(file, kind).entries == record.entries
    assert file.read_text().startswith(f"{line}\n") and file.read_text().count("\n") == 2


def test_no_bit_of_a_record_changes_unnoticed(file):
    record = ReleaseRecord(file, RunRelease)
    released = TypeAdapter(RunRelease).validate_json(RELEASED)
    for _ in range(2):
        record.append(released)
    whole = file.read_bytes()
    for place in range(len(whole) - 1):  # without its last byte the last line is a torn one
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ConfigError, match="no record of a release"):
            ReleaseRecord(file, RunRelease)


@pytest.mark.parametrize("order", [(1, 2), (0, 2), (0, 2, 1), (0, 0, 1, 2)])
def test_lines_that_go_missing_or_change_places_are_noticed(file, order):
    record = ReleaseRecord(file, Number)
    for _ in range(3):
        record.append(Number(7))
    lines = file.read_text().splitlines()
    written(file, *(lines[number] for number in order))
    with pytest.raises(ConfigError, match="no record of a release"):
        ReleaseRecord(file, Number)


@pytest.mark.parametrize("left", [2, 1, 0])
def test_lines_that_go_missing_at_the_end_are_noticed(file, left):
    """As when somebody, or a restored disk, puts back less than there was."""
    record = ReleaseRecord(file, Number)
    for value in (7, 8, 9):
        record.append(Number(value))
    whole = file.read_bytes()
    written(file, *file.read_text().splitlines()[:left])
    with pytest.raises(ConfigError) as error:
        ReleaseRecord(file, Number)
    assert str(error.value) == (
        f"{file}: 3 releases were written down and {left} are there, or others: "
        "put back a copy of it and of releases.end"
    )
    file.unlink()
    with pytest.raises(ConfigError, match="3 releases were written down and 0 are there"):
        ReleaseRecord(file, Number)
    file.write_bytes(whole)
    assert len(ReleaseRecord(file, Number).entries) == 3


def test_a_crash_between_both_files_is_no_loss(file, monkeypatch):
    """The line is there, and counts; the second file does not say so yet."""
    record = ReleaseRecord(file, Number)
    record.append(Number(1))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("orchestra_flwr.privacy.release_record.write_atomically", full)
        with pytest.raises(OSError, match="No space"):
            record.append(Number(2))
    assert ReleaseRecord(file, Number).entries == (Number(1), Number(2))
    record.append(Number(3))
    assert ReleaseRecord(file, Number).entries == (Number(1), Number(2), Number(3))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"3", b'{"lines": "x"}', b'{"lines": Infinity, "digest": ""}', b"\xff"]
)
def test_a_damaged_second_file_is_named(file, content):
    ReleaseRecord(file, Number).append(Number(1))
    end = file.with_suffix(".end")
    end.write_bytes(content)
    with pytest.raises(ConfigError, match=r"releases\.end is damaged: put back a copy of it"):
        ReleaseRecord(file, Number)
    end.unlink()
    assert len(ReleaseRecord(file, Number).entries) == 1  # as earlier versions left it


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_only_its_owner_can_read_a_record(file):
    before = os.umask(0)
    try:
        ReleaseRecord(file, Number).append(Number(7))
    finally:
        os.umask(before)
    for path in (file, file.with_suffix(".end")):
        assert path.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("kind", "line", "damaged"),
    [
        *[(kind, line, bad) for kind, line in KINDS
          for bad in ("", "{", "[]", "7", "null", "{}", line[1:], line + line)],
        (AskedClients, ASKED, '{"round": 0}'),
        (AskedClients, ASKED, '{"round": 0, "clients": "ab"}'),
        (AskedClients, ASKED, '{"round": 0, "clients": [1]}'),
        (AskedClients, ASKED, '{"round": -1, "clients": []}'),
        (AskedClients, ASKED, '{"round": true, "clients": []}'),
        (AskedClients, ASKED, '{"round": NaN, "clients": []}'),
        (RunRelease, RELEASED, RELEASED.replace('"0123456789abcdef"', "1")),
        (RunRelease, RELEASED, RELEASED.replace('"round": 2', '"round": 2.5')),
        (RunRelease, RELEASED, RELEASED.replace('"epsilon": 1.0', '"epsilon": -1.0')),
        (RunRelease, RELEASED, RELEASED.replace('"epsilon": 1.0', '"epsilon": "1"')),
        (RunRelease, RELEASED, RELEASED.replace('"depth"', '"height"')),
        (RunRelease, RELEASED, RELEASED.replace('"sum_noise": 2.', '"sum_noise": NaN, "a":')),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(file, kind, line, damaged):
    """It is no empty record: without that line nobody knows what was released."""
    written(file, line, line, damaged, line)
    before = file.read_bytes()
    with pytest.raises(ConfigError) as refusal:
        ReleaseRecord(file, kind)
    assert str(refusal.value) == f"{file}, line 3: no record of a release"
    assert file.read_bytes() == before


def test_bytes_that_are_no_text_are_named(file):
    written(file, ASKED, ASKED)
    file.write_bytes(file.read_bytes() + b'{"round": 0, "clients": ["\xff\xfe"]}\n')
    with pytest.raises(ConfigError, match="line 3: no record of a release"):
        ReleaseRecord(file, AskedClients)


def test_a_file_that_cannot_be_read_is_no_empty_one(file):
    file.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"releases\.jsonl cannot be read: Is a directory"):
        ReleaseRecord(file, Number)
