import zipfile
from pathlib import Path

import pytest
from PIL import Image

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import survey
from orchestra_flwr.data.image_files.archive import Archive, ImageFile
from orchestra_flwr.data.image_files.class_folders import arrange, class_folders


def _write(root: Path, *names: str) -> str:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(root / name)
    return str(root)


def _arrange(root: str):
    with Archive(Path(root)) as archive:
        return arrange(Path(root), archive)


def test_a_survey_counts_images(tmp_path: Path):
    names = ["train/a/1.png", "train/b/1.png", "train/b/2.png", "test/a/1.png"]

    assert survey(_write(tmp_path / "1", *names)) == (3, 3, 1)
    assert survey(_write(tmp_path / "2", "1.png", "2.png")) == (2, 0, 0)
    mixed = ["a/1.png", "a/2.png", "x.png", "y.png"]
    assert survey(_write(tmp_path / "3", *mixed)) == (4, 2, 0)


@pytest.mark.parametrize(
    ("train", "test"),
    [("Train", "Test"), ("TRAIN", "Val"), ("training", "testing"), ("Training", "validation")],
)
def test_splits_of_other_names_are_no_classes(tmp_path: Path, train: str, test: str):
    outer = tmp_path / "zip" / "inner"
    named = f"holds {test}/ and {train}/" if test < train else f"holds {train}/ and {test}/"
    for root, where in ((tmp_path / "photos", "photos"), (outer, "zip")):
        _write(root, f"{train}/a/1.png", f"{train}/b/1.png", f"{test}/a/1.png", f"{test}/2.png")
        with pytest.raises(ConfigError) as error:
            survey(str(tmp_path / where))
        assert str(error.value) == (
            f"data.root={tmp_path / where}: {named}, but must call training images train/ and "
            "test images test/"
        )


def test_images_in_val_are_no_test_images_and_it_is_said(tmp_path: Path, caplog):
    """The layout of many archives; the run then said no more than that it has no test images."""
    _arrange(_write(tmp_path, "train/a/1.png", "train/b/1.png", "val/a/1.png"))
    assert caplog.messages[0].endswith(
        "left out 1 image outside train/ and test/; test images must lie in test/, not in val/"
    )
    caplog.clear()
    _arrange(_write(tmp_path, "test/a/1.png"))
    assert caplog.messages[0].endswith("left out 1 image outside train/ and test/")


@pytest.mark.parametrize(
    ("names", "warning"),
    [
        (("train/a/1.png", "train/b/1.png", "val/a/1.png"), "left out 1 image outside"),
        (("train/a/1.png", "train/b/1.png", "test/1.png"), "test/ has no class folders"),
        (("a/1.png", "b/1.png", "1.png"), "1 of 3 images lie in no class folder"),
    ],
)
def test_a_survey_leaves_warnings_to_whoever_reads_the_images(tmp_path, caplog, names, warning):
    """`preset=adapt` and a client survey a folder before it is read, and all was said twice."""
    root = _write(tmp_path, *names)
    survey(root)
    assert caplog.messages == []
    _arrange(root)
    (message,) = caplog.messages
    assert message.startswith(f"data.root={root}: {warning}")


def test_a_survey_warns_of_files_that_are_left_out_only_where_it_refuses(tmp_path, caplog):
    """Photographs, links and entries of a zip, too; they may be why there are no images."""
    root = tmp_path / "photos.zip"
    with zipfile.ZipFile(root, "w") as packed:
        packed.writestr("a/1.dng", b"x")
        packed.writestr("../1.png", b"x")
    with pytest.raises(ConfigError, match="holds no images"):
        survey(str(root))
    left_out = caplog.messages
    assert left_out[0] == f"{root}: left out 1 entry of the zip: ../1.png: its path has .."
    assert left_out[1].startswith(f"{root}: left out 1 photograph, as the format cannot be read")
    caplog.clear()
    with zipfile.ZipFile(root, "a") as packed:
        packed.writestr("a/1.png", b"x")
    assert survey(str(root)) == (1, 0, 0) and caplog.messages == []
    _arrange(str(root))
    assert caplog.messages == left_out


def test_names_of_splits_may_be_those_of_classes(tmp_path: Path):
    assert survey(_write(tmp_path / "1", "Train/1.png", "Test/1.png")) == (2, 2, 0)
    assert survey(_write(tmp_path / "2", "Train/a/1.png", "car/1.png")) == (2, 2, 0)
    assert survey(_write(tmp_path / "3", "train/a/1.png", "train/b/1.png", "Val/a/1.png")) == (
        2,
        2,
        0,
    )
    assert survey(_write(tmp_path / "4", "Train/a/1.png", "Train/b/1.png")) == (2, 2, 0)


def test_a_survey_refuses_what_cannot_be_loaded(tmp_path: Path):
    with pytest.raises(ConfigError, match="does not exist"):
        survey(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="images in test/ that lie in no class folder"):
        survey(_write(tmp_path / "mixed", "train/a/1.png", "test/a/1.png", "test/1.png"))


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["a/1.png", "b/deep/1.png", "b/2.png"], ["a", "b", "b"]),
        (["photos/a/1.png", "photos/b/1.png"], ["a", "b"]),
        (["train/a/deep/1.png", "test/b/1.png", "note.png"], ["a", "b", None]),
        (["a/1.png", "a/2.png"], [None, None]),
        ([], []),
    ],
)
def test_class_folders_are_those_that_training_knows(names: list[str], classes: list[str | None]):
    assert class_folders([ImageFile(name, (0, 0)) for name in names]) == classes
