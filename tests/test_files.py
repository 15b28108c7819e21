"""Files are replaced as a whole or not at all: on a full disk, and by a process that is killed."""

import errno
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from orchestra_flwr.files import (
    append_durably,
    at_home,
    folder_name,
    read_json,
    read_whole_lines,
    replacing,
    write_atomically,
    write_json,
    write_new,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path):
    """A file that holds something."""
    path = tmp_path / "state [1].bin"  # a name that a pattern would not match as it stands
    path.write_bytes(b"old")
    return path


def disk_is_full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def half_is_written(self, data):
    with self.open("wb") as file:
        file.write(data[: len(data) // 2])
    disk_is_full()


def test_what_is_there_is_not_written_anew(path, monkeypatch):
    for _ in range(2):
        with pytest.raises(FileExistsError, match="cannot be written"):
            write_new(path, b"new")
        monkeypatch.setattr(Path, "hardlink_to", disk_is_full)  # nor where there are no links
    other = path.with_name("other")
    write_new(other, b"new")
    assert (path.read_bytes(), other.read_bytes()) == (b"old", b"new")
    assert names(path.parent) == ["other", path.name]


def test_bytes_replace_older_ones(path):
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    write_atomically(path.with_name("other"), b"")
    assert path.with_name("other").read_bytes() == b""
    assert names(path.parent) == ["other", path.name]


def test_a_library_writes_to_a_path_beside_the_file(path):
    weights = {"a": torch.arange(5)}
    with replacing(path) as temporary:
        assert temporary.parent == path.parent and temporary != path
        save_file(weights, temporary)
        assert path.read_bytes() == b"old"
    assert torch.equal(load_file(path)["a"], weights["a"])
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("owner", "function", "failing"),
    [
        (os, "fsync", disk_is_full),
        (Path, "write_bytes", half_is_written),
        (Path, "replace", disk_is_full),
    ],
    ids=["fsync", "write", "rename"],
)
def test_a_full_disk_leaves_the_old_file_and_names_it(path, monkeypatch, owner, function, failing):
    with monkeypatch.context() as patch:
        patch.setattr(owner, function, failing)
        with pytest.raises(OSError, match="No space left") as caught:
            write_atomically(path, b"new")
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(path)
    assert ".tmp" not in str(caught.value)
    assert path.read_bytes() == b"old" and names(path.parent) == [path.name]


@pytest.mark.parametrize("error", [SafetensorError("I/O error"), KeyboardInterrupt(), ValueError()])
def test_an_error_of_the_writer_is_passed_on_and_leaves_the_old_file(path, error):
    with pytest.raises(type(error)) as caught, replacing(path) as temporary:
        temporary.write_bytes(b"half")
        raise error
    assert caught.value is error
    assert path.read_bytes() == b"old" and names(path.parent) == [path.name]


def test_an_error_of_the_disk_within_the_writer_names_the_file(path):
    with pytest.raises(FileNotFoundError) as caught, replacing(path) as temporary:
        temporary.unlink()  # a library that removes what it could not write
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old" and names(path.parent) == [path.name]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="cannot be written") as caught:
        write_atomically(tmp_path / "nowhere" / "file", b"")
    assert caught.value.filename == str(tmp_path / "nowhere" / "file")


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_permissions_hold_from_the_first_byte(path):
    def permissions(file):
        return file.stat().st_mode & 0o777

    with replacing(path, mode=0o600) as temporary:
        assert permissions(temporary) == 0o600
        save_file({"a": torch.zeros(1)}, temporary)
        assert permissions(temporary) == 0o600
    assert permissions(path) == 0o600
    with replacing(path, mode=0o640) as temporary:
        save_file({"a": torch.zeros(1)}, temporary)
    assert permissions(path) == 0o640
    write_atomically(path, b"key", mode=0o600)
    assert permissions(path) == 0o600
    write_atomically(path, b"text", mode=0o640)
    assert permissions(path) == 0o640
    (path.parent / "usual").touch()
    with replacing(path) as temporary:
        save_file({"a": torch.zeros(1)}, temporary)  # which makes it its owner's alone
    assert permissions(path) == permissions(path.parent / "usual")
    write_atomically(path, b"public")
    assert permissions(path) == permissions(path.parent / "usual")


def test_of_concurrent_writers_one_wins_as_a_whole(path):
    start = threading.Barrier(8)
    errors = []

    def write(number):
        start.wait()
        try:
            for _ in range(20):
                write_atomically(path, bytes([number]) * 100_000)
        except OSError as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=[number]) for number in range(8)]
    for writer in writers:
        writer.start()
    seen = [path.read_bytes() for _ in range(50)]
    for writer in writers:
        writer.join()
    assert not errors
    for data in (*seen, path.read_bytes()):
        assert data == b"old" or (len(data) == 100_000 and len(set(data)) == 1)
    assert names(path.parent) == [path.name]


def test_a_killed_writer_leaves_the_old_file_and_the_next_day_nothing_else(path):
    code = (
        "import os, pathlib, signal, sys\n"
        "from orchestra_flwr.files import replacing\n"
        "with replacing(pathlib.Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    (left,) = (entry for entry in path.parent.iterdir() if entry != path)
    write_atomically(path, b"new")
    assert left.exists()  # it might be a writer that is slow
    yesterday = left.stat().st_mtime - 86400
    os.utime(left, (yesterday, yesterday))
    (path.parent / ".other.1234.tmp").touch()
    os.utime(path.parent / ".other.1234.tmp", (yesterday, yesterday))
    write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert names(path.parent) == [".other.1234.tmp", path.name]


def test_appended_lines_are_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "lines"
    assert read_whole_lines(path) == []
    append_durably(path, b"one\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk_is_full)
        with pytest.raises(OSError, match="No space left") as caught:
            append_durably(path, b"two\n")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"one\n"
    with path.open("ab") as file:
        file.write(b"cut o")
    assert read_whole_lines(path) == ["one"]
    with path.open("ab") as file:
        file.write(b"cut o")  # by an append that failed and could not cut it off
    append_durably(path, b"two\n")
    assert read_whole_lines(path) == ["one", "two"]


def test_a_leading_tilde_is_read_as_a_shell_reads_it(monkeypatch):
    monkeypatch.setenv("HOME", "/home/jane")
    assert at_home("~/photos") == Path("/home/jane/photos")
    assert at_home(Path("a/~/b")) == Path("a/~/b")
    assert at_home("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")


def test_a_name_that_is_a_path_is_that_of_one_folder():
    plain = ["0", "a", "...", ".hidden", "x y", "\u65e5\u672c"]
    assert list(map(folder_name, plain)) == plain
    others = {"a/b": "a%2Fb", "a%2Fb": "a%252Fb", "/etc": "%2Fetc", "../..": "..%2F.."}
    others |= {"": "%", "%": "%25", ".": "%2E", "..": "%2E%2E"}
    assert {name: folder_name(name) for name in others} == others


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": 1', "no JSON"),
        (b"[1]", "must hold a JSON object"),
        (b"[" * 100_000, "no JSON"),
        (b'{"a": "' + b"x" * 100 + b'"}', "has more than 99 bytes"),
    ],
)
def test_json_of_a_stranger_is_bounded(tmp_path, content, reason):
    file = tmp_path / "summary.json"
    file.write_bytes(content)
    with pytest.raises(ValueError) as error:
        read_json(file, 99 if b"x" in content else 10**6)
    assert str(error.value).startswith(f"{file}: {reason}")


def test_json_has_letters_of_all_languages_and_any_name_of_a_file(path):
    odd = os.fsdecode(b"\xff.zip")
    write_json(path, {"name": "Straße", "file": odd, "loss": float("nan"), "all": (1, math.inf)})
    assert "Straße" in path.read_text("utf-8") and "NaN" not in path.read_text("utf-8")
    assert read_json(path) == {"name": "Straße", "file": odd, "loss": None, "all": [1, None]}


def test_no_more_of_a_json_file_is_read_than_its_limit(tmp_path):
    file = tmp_path / "partition.json"
    with file.open("wb") as content:
        content.truncate(2**40)  # a hole, which takes no disk
    with pytest.raises(ValueError, match="has more than 16,777,216 bytes"):
        read_json(file)
