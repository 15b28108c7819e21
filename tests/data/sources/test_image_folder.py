import copy
import errno
import logging
import os
import re
import shutil
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.data import UNLABELLED, Dataset, load_dataset
from orchestra_flwr.data.image_files.archive import Archive

REAL = Path(__file__).resolve().parents[4] / "shared" / "data" / "cifar10-jpeg.zip"
CLASS_FOLDERS = [
    f"{split}/{name}/{index}.png"
    for split, count in (("train", 4), ("test", 2))
    for name in ("dog", "cat")
    for index in range(count)
]


def _write(root: Path, names: list[str]) -> Path:
    """One image for each name; its gray value is its place in `names`."""
    for shade, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9, 12), shade).save(root / name)
    return root


def _zipped(root: Path) -> Path:
    archive = root.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as opened:
        for file in root.rglob("*"):
            opened.write(file, file.relative_to(root))
    return archive


def _load(root: Path, **changes) -> Dataset:
    cache = str(root.parent / "cache")
    return load_dataset(
        DataConfig(name="image_folder", root=str(root), image_size=8, cache=cache, **changes)
    )


def _shades(images: torch.Tensor) -> list[int]:
    return images[:, 0, 0, 0].tolist()


def _refused(root: Path, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as error:
        _load(root)
    assert str(error.value).startswith(f"data.root={root}: ")
    assert "\n" not in str(error.value)


@pytest.fixture(params=["folder", "zip", "zip in a folder"])
def packed(request: pytest.FixtureRequest, tmp_path: Path):
    """Writes names as images into a folder or a zip and gives its path."""

    def pack(names: list[str]) -> Path:
        root = tmp_path / "images"
        if request.param == "folder":
            return _write(root, names)
        if request.param == "zip":
            return _zipped(_write(root, names))
        return _zipped(_write(root / "inner", names).parent)

    return pack


def test_class_folders_with_a_test_split(packed):
    dataset = _load(packed(CLASS_FOLDERS))

    assert dataset.name == "image_folder"
    assert dataset.train.classes == dataset.test.classes == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0] * 4 + [1] * 4
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    assert _shades(dataset.train.images) == [4, 5, 6, 7, 0, 1, 2, 3]
    assert _shades(dataset.test.images) == [10, 11, 8, 9]
    assert (dataset.channels, dataset.image_size, dataset.skipped) == (3, 8, ())


def test_a_test_split_may_lack_classes(packed):
    dataset = _load(packed(["train/a/1.png", "train/b/1.png", "train/c/1.png", "test/b/1.png"]))

    assert dataset.test.labels.tolist() == [1]
    assert dataset.test.classes == ("a", "b", "c")


def test_class_folders_alone_are_all_training(packed):
    dataset = _load(packed(["b/1.png", "a/2.png", "a/deeper/3.png"]))

    assert dataset.train.classes == ("a", "b")
    assert dataset.train.labels.tolist() == [0, 0, 1]
    assert dataset.test is None


@pytest.mark.parametrize("names", [["2.png", "1.png"], ["train/2.png", "train/1.png"]])
def test_loose_images_have_no_labels(packed, names: list[str]):
    dataset = _load(packed(names))

    assert dataset.train.labels is None
    assert dataset.train.classes == ()
    assert dataset.test is None
    assert _shades(dataset.train.images) == [1, 0]


def test_other_files_are_ignored(packed):
    names = ["a/1.png", "a/.hidden.png", ".git/x/1.png", "__MACOSX/a/1.png", "b/1.JPG"]
    root = packed(names)
    if root.is_dir():
        (root / "a" / "notes.txt").write_text("not an image")
        (root / "README.md").write_text("not an image")
        (root / "a" / "dangling.png").symlink_to("nowhere")

    assert len(_load(root).train) == 2


def test_linked_class_folders_are_followed(tmp_path: Path):
    _write(tmp_path / "store", ["x/1.png"])
    root = _write(tmp_path / "images", ["b/1.png"])
    (root / "a").symlink_to(tmp_path / "store" / "x")

    assert _load(root).train.classes == ("a", "b")


def test_limits_are_balanced_and_chosen_before_decoding(packed):
    root = packed([f"train/{name}/{i:02}.png" for name in "abc" for i in range(20)])
    dataset = _load(root, train_limit=10)

    assert sorted(dataset.train.labels.bincount().tolist()) == [3, 3, 4]
    assert torch.equal(dataset.train.images, _load(root, train_limit=10).train.images)
    everything = _load(root)
    assert set(_shades(dataset.train.images)) < set(_shades(everything.train.images))


def test_files_outside_the_limit_are_not_even_opened(tmp_path: Path):
    root = _write(tmp_path / "images", [f"a/{i}.png" for i in range(10)])
    kept = set(_shades(_load(root, train_limit=3).train.images))
    for i in set(range(10)) - kept:
        (root / f"a/{i}.png").write_bytes(b"broken")

    assert _load(root, train_limit=3).skipped == ()
    assert len(_load(root).skipped) == 7


def test_broken_files_leave_labels_right(packed, tmp_path: Path):
    root = _write(tmp_path / "source", CLASS_FOLDERS)
    for name in ("train/cat/0.png", "test/cat/1.png"):
        (root / name).write_bytes(b"broken")
    dataset = _load(_zipped(root))

    assert [name for name, _ in dataset.skipped] == ["train/cat/0.png", "test/cat/1.png"]
    assert dataset.train.labels.tolist() == [0] * 3 + [1] * 4
    assert _shades(dataset.train.images) == [5, 6, 7, 0, 1, 2, 3]
    assert dataset.test.labels.tolist() == [0, 1, 1]
    assert _shades(dataset.test.images) == [10, 8, 9]


def test_a_changed_file_is_decoded_anew(tmp_path: Path):
    root = _write(tmp_path / "images", ["a/1.png", "b/1.png"])
    assert _shades(_load(root).train.images) == [0, 1]
    file = root / "a/1.png"
    Image.new("L", (9, 12), 200).save(file)
    os.utime(file, ns=(1, 1))

    assert _shades(_load(root).train.images) == [200, 1]


@pytest.fixture
def alike():
    """Makes a folder whose files have names, sizes and times of every other such folder's."""

    def make(root: Path, shade: int) -> Path:
        for name in ("a/1.bmp", "b/1.bmp"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 9), (shade,) * 3).save(root / name)
            os.utime(root / name, (1_700_000_000, 1_700_000_000))  # a whole second, as of tar
        return root

    return make


def test_folders_with_equal_names_sizes_and_times_are_decoded_each(tmp_path: Path, alike):
    for shade in (5, 6):
        assert _shades(_load(alike(tmp_path / f"site{shade}", shade)).train.images) == [shade] * 2


def test_another_folder_at_the_same_path_is_decoded(tmp_path: Path, alike):
    """As where two containers show their images at one path and share a cache."""
    for shade in (5, 6):
        assert _shades(_load(alike(tmp_path / "data", shade)).train.images) == [shade] * 2


def test_a_file_that_is_not_compared_counts_by_its_folder(tmp_path: Path, alike):
    roots = [alike(tmp_path / name, 5) for name in ("one", "two")]
    for root in roots:
        for number in range(40):
            shutil.copy2(root / "a" / "1.bmp", root / "a" / f"{number + 10}.bmp")
    content = (roots[1] / "a" / "1.bmp").read_bytes()
    with Archive(roots[1]) as archive:
        names = [file.name for file in archive.files()]
    changed = roots[1] / names[1]  # the first of each three is compared
    changed.write_bytes(content[:-200] + b"\xff" * 200)
    os.utime(changed, (1_700_000_000, 1_700_000_000))
    first, second = (_load(root).train.images for root in roots)
    assert (first != second).flatten(1).any(1).nonzero().tolist() == [[1]]


def test_a_copied_zip_needs_no_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive = _zipped(_write(tmp_path / "images", ["a/1.png", "b/1.png"]))
    _load(archive)
    copied = shutil.copy(archive, tmp_path / "copy.zip")
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("decoded again"))
    assert _shades(_load(copied).train.images) == [0, 1]


def test_a_second_load_needs_no_decoding(packed, monkeypatch: pytest.MonkeyPatch):
    root = packed(CLASS_FOLDERS)
    first = _load(root)
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("decoded again"))
    second = _load(root)

    assert torch.equal(first.train.images, second.train.images)
    assert torch.equal(first.test.labels, second.test.labels)


def _flip(archive: Path, member: str) -> None:
    """Changes a byte of a member's content, or changes it back."""
    with zipfile.ZipFile(archive) as opened:
        info = opened.getinfo(member)
    content = bytearray(archive.read_bytes())
    content[info.header_offset + 30 + len(member) + info.compress_size // 2] ^= 1
    archive.write_bytes(content)


def test_a_member_of_a_zip_that_was_repaired_is_there_again(tmp_path: Path, caplog):
    archive = _zipped(_write(tmp_path / "images", CLASS_FOLDERS))
    damaged = ["train/cat/1.png", "test/dog/0.png"]
    for member in damaged:
        _flip(archive, member)
    for _ in range(2):  # decoded, and from the cache
        dataset = _load(archive)
        assert (len(dataset.train), len(dataset.test)) == (7, 3)
        assert list(dataset.unread) == [name for name, _ in dataset.skipped] == damaged
    assert len([m for m in caplog.messages if m.startswith("skipped")]) == 1
    _flip(archive, damaged[1])
    dataset = _load(archive)
    assert (len(dataset.train), len(dataset.test), dataset.unread) == (7, 4, (damaged[0],))
    _flip(archive, damaged[0])
    dataset = _load(archive)
    assert _shades(dataset.train.images) == [4, 5, 6, 7, 0, 1, 2, 3] and dataset.skipped == ()


def test_a_file_that_could_not_be_opened_is_there_again(tmp_path: Path, monkeypatch):
    """Neither its size nor its time changes, and it is none of those whose content is compared."""
    root = _write(tmp_path / "images", [f"{number:02}.png" for number in range(20)])
    real = os.open

    def forbidden(path, *options, **named):
        if Path(path).name == "01.png":
            raise PermissionError(13, "Permission denied")
        return real(path, *options, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", forbidden)
        assert len(_load(root).train) == 19
    assert _shades(_load(root).train.images) == list(range(20))


def test_wrong_roots_are_refused(tmp_path: Path):
    _refused(tmp_path / "nowhere", "does not exist")
    (tmp_path / "empty").mkdir()
    _refused(tmp_path / "empty", "holds no images; expected train/")
    (tmp_path / "file.zip").write_bytes(b"no zip")
    _refused(tmp_path / "file.zip", "must be a folder or a zip file")


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [(46, 0xFF, "'utf-8' codec can't decode byte 0xff"), (6, 200, "zip file version 20.0")],
)
def test_a_zip_whose_list_of_files_cannot_be_read_is_refused(tmp_path, place, value, says):
    """A name that is said to be UTF-8 and is not; a version of the format that nobody has."""
    root = tmp_path / "file.zip"
    with zipfile.ZipFile(root, "w") as packed:
        packed.writestr("é.png", b"x")
    content = bytearray(root.read_bytes())
    content[content.index(b"PK\1\2") + place] = value
    root.write_bytes(content)
    _refused(root, "must be a folder or a zip file")
    _refused(root, says)


def test_what_is_no_file_is_never_read(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.zip")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for root in (tmp_path / "pipe.zip", Path("/dev/zero")):
        _refused(root, "must be a folder or a zip file, not a device, pipe or socket")
    _refused(tmp_path / "circle", "cannot be read .Too many levels of symbolic links")
    _refused(tmp_path / ("x" * 300), "cannot be read .File name too long")
    null = "cannot be read .*embedded null|does not exist"  # the latter from Python 3.13 on
    _refused(tmp_path / "a" / "\0", null)


def test_links_in_a_circle_do_not_multiply_images(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    root = _write(tmp_path / "images", ["a/1.png", "b/1.png", "b/2.png"])
    (root / "a" / "round").symlink_to(root)
    os.link(root / "b" / "1.png", root / "b" / "3.png")
    with caplog.at_level(logging.WARNING, "orchestra_flwr.data"):
        assert len(_load(root).train) == 3
    assert any("left out 2 links to what is counted already" in m for m in caplog.messages)


def test_photographs_of_formats_that_cannot_be_read_are_counted(tmp_path: Path, caplog):
    """As cameras write them, beside images that can be read."""
    root = _write(tmp_path / "images", ["a/1.png", "b/1.png"])
    for name in ("a/IMG_1.DNG", "a/IMG_2.dng", "b/DSC_1.NEF", "b/.hidden.dng", "b/note.txt"):
        (root / name).write_bytes(b"x")
    shutil.make_archive(str(root), "zip", root)
    for images in (root, root.with_suffix(".zip")):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "orchestra_flwr.data"):
            assert len(_load(images).train) == 2
        assert caplog.messages == [
            f"{images}: left out 3 photographs, as the format cannot be read (.dng, .nef): "
            "convert them to JPEG"
        ]


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow does not read AVIF")
def test_avif_is_read(tmp_path: Path):
    root = _write(tmp_path / "images", ["a/1.png", "b/1.png", "b/2.avif"])
    assert len(_load(root).train) == 3


def test_folders_and_links_that_cannot_be_read_are_named(tmp_path: Path, caplog, monkeypatch):
    root = _write(tmp_path / "images", ["a/1.png", "b/1.png"])
    (root / "c").symlink_to(tmp_path / "disk" / "c")
    with caplog.at_level(logging.WARNING, "orchestra_flwr.data"):
        assert len(_load(root).train) == 2
    left_out = f"{root}: left out, because they cannot be read: c: No such file"
    assert any(message.startswith(left_out) for message in caplog.messages)

    def scandir(folder):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", scandir)  # permissions mean nothing to root
    _refused(root, "cannot be read .Permission denied")


def test_a_file_that_became_a_pipe_is_skipped(tmp_path: Path):
    root = _write(tmp_path / "images", ["a/1.png", "b/1.png"])
    with Archive(root) as archive:
        assert len(archive.files()) == 2
        (root / "a" / "1.png").unlink()
        os.mkfifo(root / "a" / "1.png")
        with pytest.raises(ValueError, match="not a regular file"):
            archive.read("a/1.png")


def test_a_zip_that_windows_made_has_its_folders(tmp_path: Path):
    """PowerShell 5.1 writes backslashes; from elsewhere they belong to a name."""
    source = _write(tmp_path / "source", CLASS_FOLDERS)
    for system, labelled in ((0, True), (3, False)):
        archive = tmp_path / f"made_by_{system}.zip"
        with zipfile.ZipFile(archive, "w") as opened:
            for name in CLASS_FOLDERS:
                member = zipfile.ZipInfo(name.replace("/", "\\"))
                member.create_system = system
                opened.writestr(member, (source / name).read_bytes())
            folder = zipfile.ZipInfo("train\\cat.png\\")
            folder.create_system = system
            opened.writestr(folder, b"")
        dataset = _load(archive)
        assert (dataset.test is not None) == labelled
        assert (dataset.train.classes == ("cat", "dog")) == labelled
        assert len(dataset.train) == (8 if labelled else 12)


def test_members_of_a_zip_count_once_and_only_files(tmp_path: Path, caplog):
    """What is left out is counted, except what is hidden or no photograph."""
    source = _write(tmp_path / "source", ["a/1.png", "b/1.png"])
    archive = tmp_path / "images.zip"
    link, pipe = zipfile.ZipInfo("a/link.png"), zipfile.ZipInfo("a/pipe.png")
    link.external_attr, pipe.external_attr = 0o120777 << 16, 0o010644 << 16
    with zipfile.ZipFile(archive, "w") as opened:
        for name in ("../1.png", ".b/1.png", "../.1.png", "1.txt"):
            opened.write(source / "a" / "1.png", name)
        for name in ("a/1.png", "b/1.png", "a/1.png"):
            with warnings.catch_warnings(action="ignore"):  # that a/1.png is there twice
                opened.write(source / name, name)
        opened.writestr(link, "1.png")
        opened.writestr(pipe, (source / "a" / "1.png").read_bytes())
        twin = copy.copy(opened.getinfo("b/1.png"))
        twin.filename = twin.orig_filename = "b/2.png"
        opened.filelist.append(twin)
    with Archive(archive) as opened:
        assert [file.name for file in opened.files()] == ["a/1.png", "b/1.png"]
    assert caplog.messages == [
        f"{archive}: left out 5 entries of the zip: a/1.png: a later entry has the same name; "
        "../1.png: its path has ..; a/link.png: a link, or no regular file; "
        "a/pipe.png: a link, or no regular file; b/2.png: another entry has the same content"
    ]


def test_an_encrypted_zip_is_said_to_be_one(tmp_path: Path):
    source = _write(tmp_path / "source", ["a/1.png", "b/1.png"])
    archive = Path(shutil.make_archive(str(tmp_path / "images"), "zip", source))
    content = bytearray(archive.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for match in re.finditer(signature, bytes(content)):
            content[match.start() + flags] |= 1
    archive.write_bytes(content)
    _refused(archive, "no training image can be read .a/1.png: encrypted; unpack the zip with its")


def test_names_that_are_no_text_can_be_shown_and_stored(tmp_path: Path):
    """ESC and a byte that is no UTF-8, in the names of a class and of a broken file."""
    odd = os.fsdecode(b"\x1b[31m\xff")
    root = _write(tmp_path / "images", [f"{odd}/1.png", "$x_1$/1.png"])
    (root / odd / f"{odd}.png").write_bytes(b"broken")
    for _ in range(2):  # decoded, and from the cache
        dataset = _load(root)
        assert dataset.train.classes == (r"\x1b[31m\xff", "$x_1$")
        assert dataset.skipped == ((r"\x1b[31m\xff/\x1b[31m\xff.png", "not an image"),)


def test_loose_images_beside_class_folders_have_no_label(tmp_path: Path, caplog):
    """Decoded, and from the cache; the folder may also be the one named train."""
    for outer in ("", "train/"):
        names = [f"{outer}{name}" for name in ("a/1.png", "b/1.png", "x.png", "b/2.png")]
        root = _write(tmp_path / f"images{outer}", names)
        for _ in range(2):
            train = _load(root).train
            labels = dict(zip(train.files, train.labels.tolist(), strict=True))
            assert labels == dict(zip(names, (0, 1, UNLABELLED, 1), strict=True))
            assert train.classes == ("a", "b")
            assert sorted(train.labelled.labels.tolist()) == [0, 1, 1]
            assert "x.png" not in "".join(train.labelled.files)
        assert "1 of 4 images lie in no class folder, so they have no label" in caplog.text


def test_wrong_layouts_are_refused(tmp_path: Path):
    _refused(_write(tmp_path / "1", ["test/1.png"]), "no images in train/")
    _refused(_write(tmp_path / "2", ["test/a/1.png"]), "no images in train/")
    unknown = ["train/a/1.png", "train/b/1.png", "test/c/1.png"]
    _refused(_write(tmp_path / "3", unknown), "test/c is no class of the training images")
    _refused(_write(tmp_path / "4", ["train/1.png", "test/c/1.png"]), "test/c is no class")


def test_nothing_readable_is_refused(tmp_path: Path):
    root = _write(tmp_path / "images", ["train/a/1.png", "train/b/1.png", "test/a/1.png"])
    for name in ("train/a/1.png", "train/b/1.png"):
        (root / name).write_bytes(b"broken")

    _refused(root, "no training image can be read.*train/a/1.png: not an image")


def test_what_is_left_out_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    root = _write(
        tmp_path / "images", ["train/a/1.png", "train/b/1.png", "test/1.png", "val/a/1.png"]
    )
    with caplog.at_level(logging.WARNING, "orchestra_flwr.data"):
        dataset = _load(root)

    assert dataset.test is None
    left_out = "left out 1 image outside train/ and test/"
    assert any(left_out in message for message in caplog.messages)
    assert any("test/ has no class folders" in message for message in caplog.messages)


@pytest.mark.skipif(not REAL.is_file(), reason="the JPEG copy of CIFAR-10 is not here")
@pytest.mark.slow
def test_the_real_zip(tmp_path: Path):
    dataset = load_dataset(
        DataConfig(
            name="image_folder", root=str(REAL), cache=str(tmp_path), train_limit=200, test_limit=50
        )
    )

    assert dataset.train.labels.bincount().tolist() == [20] * 10
    assert dataset.test.labels.bincount().tolist() == [5] * 10
    assert dataset.train.images.shape == (200, 3, 32, 32)
    assert dataset.train.classes[0] == "airplane"
    means = dataset.train.images.double().mean(dim=(0, 2, 3))
    assert np.allclose(means, [125.3, 123.0, 113.9], atol=8)  # CIFAR-10's


@pytest.mark.parametrize(
    ("root", "label"),
    [("/photos/birds.zip", "image_folder-birds"), ("birds", "image_folder-birds")],
)
def test_a_folder_is_known_by_its_name(root: str, label: str):
    assert DataConfig(name="image_folder", root=root).label == label
    assert DataConfig(name="image_folder").label == "image_folder"


def test_the_root_must_be_given():
    with pytest.raises(ConfigError) as error:
        load_dataset(DataConfig(name="image_folder"))
    assert str(error.value) == (
        "data.root must name a folder or a zip of images for data=image_folder"
    )
