"""What the survey of a folder counts, whatever links, pipes and devices lie in it."""

import errno
import os
import socket
from pathlib import Path

import pytest

from orchestra_flwr.data.image_files.folder_walk import regular_files


@pytest.fixture
def below(tmp_path):
    """Lists what is found below a folder, and how many things were met again."""

    def listed():
        files, again, _ = regular_files(tmp_path, lambda path: path.endswith(".png"))
        return sorted(files), again

    return listed


def write(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"x")


def test_every_file_below_is_found(tmp_path, below):
    write(tmp_path / "a" / "b", "1.png", "2.png", "note.txt")
    write(tmp_path, "3.png", ".4.png")
    write(tmp_path / ".hidden", "5.png")
    assert below() == (["3.png", "a/b/1.png", "a/b/2.png"], 0)


def test_links_in_a_circle_end(tmp_path, below):
    write(tmp_path / "cat", "1.png")
    for name in ("up", "again", "cat/self"):
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "nowhere.png").symlink_to(tmp_path / "nothing")
    (tmp_path / "itself.png").symlink_to(tmp_path / "itself.png")
    assert below() == (["cat/1.png"], 3)


def test_what_cannot_be_read_is_named_and_the_rest_is_found(tmp_path, monkeypatch):
    """A folder of another user, and a link to a disk that is not there."""
    write(tmp_path / "cat", "1.png")
    write(tmp_path / "dog", "1.png")
    (tmp_path / "eel").symlink_to(tmp_path / "disk" / "eel")
    listed = Path.iterdir

    def iterdir(folder):
        if folder.name == "dog":
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)  # permissions mean nothing to root
    files, _, unread = regular_files(tmp_path, lambda path: path.endswith(".png"))
    assert list(files) == ["cat/1.png"]
    assert unread == {"dog": "Permission denied", "eel": "No such file or directory"}


def test_paths_that_double_with_every_folder_are_walked_once(tmp_path, below):
    """2 ** 40 paths lead to the file."""
    write(tmp_path / "40", "1.png")
    for number in range(40):
        folder = tmp_path / f"{number:02}"
        folder.mkdir()
        for name in "ab":
            (folder / name).symlink_to(tmp_path / f"{number + 1:02}")
    assert len(below()[0]) == 1


def test_a_file_with_several_names_counts_once_at_the_first(tmp_path, below):
    write(tmp_path / "cat", "1.png")
    os.link(tmp_path / "cat" / "1.png", tmp_path / "cat" / "2.png")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "1.png").symlink_to(tmp_path / "cat" / "1.png")
    assert below() == (["cat/1.png"], 2)


def test_links_in_train_count_not_the_store_that_they_lead_to(tmp_path, below):
    """A list of links, and beside it what they lead to: visible, or hidden as data tools do it."""
    for store in ("all", ".store"):
        write(tmp_path / store, f"{store}.png".lstrip("."))
        (tmp_path / "train" / "cat").mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / "cat" / f"{store.lstrip('.')}.png").symlink_to(
            tmp_path / store / f"{store}.png".lstrip(".")
        )
    assert below() == (["train/cat/all.png", "train/cat/store.png"], 1)


def test_pipes_devices_and_sockets_are_no_images(tmp_path, below):
    write(tmp_path, "1.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket.png"))
        assert below() == (["1.png"], 0)
