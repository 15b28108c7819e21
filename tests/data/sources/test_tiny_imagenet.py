"""A small tree as the archive is laid out."""

import shutil
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.data import load_dataset

CLASSES = ("n01443537", "n01629819", "n02058221")


@pytest.fixture
def root(tmp_path):
    """A picture's red says where it is from, its green its class, its blue which one it is."""
    folder = tmp_path / "data" / "tiny-imagenet-200"
    for label, name in enumerate(CLASSES):
        images = folder / "train" / name / "images"
        images.mkdir(parents=True)
        (images.parent / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t62\t48\n")
        for number in range(4):
            Image.new("RGB", (64, 64), (0, label, number)).save(images / f"{name}_{number}.png")
    lines = []
    for split in ("val", "test"):
        (folder / split / "images").mkdir(parents=True)
        for number in range(5):
            file = folder / split / "images" / f"{split}_{number}.png"
            Image.new("RGB", (64, 64), (9, number % 3, number)).save(file)
            lines += [f"{file.name}\t{CLASSES[number % 3]}\t0\t32\t44\t62"] * (split == "val")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (folder / "wnids.txt").write_text("\n".join(CLASSES))
    return folder


def _load(root, **changes):
    values = {"image_size": 64, **changes}
    cache = str(root.parent / "cache") if root else None
    root = str(root) if root else None
    return load_dataset(DataConfig(name="tiny_imagenet", root=root, cache=cache, **values))


def _check(dataset):
    assert dataset.train.classes == CLASSES
    assert dataset.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.train.images[:, 1, 0, 0].tolist() == dataset.train.labels.tolist()
    assert dataset.test.labels.tolist() == [0, 1, 2, 0, 1]
    assert dataset.test.images[:, 0].unique().tolist() == [9]
    assert dataset.test.images[:, 1, 0, 0].tolist() == dataset.test.labels.tolist()


def test_folders_and_the_list_say_the_classes(root):
    _check(_load(root))
    _check(_load(root.parent))


def test_a_mended_list_is_read_again(root):
    """The cache knows the test images' files, which stay as they are."""
    _check(_load(root))
    file = root / "val" / "val_annotations.txt"
    file.write_text(
        file.read_text().replace(f"val_4.png\t{CLASSES[1]}", f"val_4.png\t{CLASSES[2]}")
    )
    assert _load(root).test.labels.tolist() == [0, 1, 2, 0, 2]
    assert len(list((root.parent / "cache").glob("*.safetensors"))) == 2
    _load(root)
    assert len(list((root.parent / "cache").glob("*.safetensors"))) == 2


def test_a_zip_of_it(root):
    packed = shutil.make_archive(str(root.parent / "packed"), "zip", root.parent, root.name)
    _check(_load(Path(packed)))


def test_a_damaged_list_in_a_zip_is_one_line(root):
    packed = Path(shutil.make_archive(str(root.parent / "packed"), "zip", root.parent, root.name))
    with zipfile.ZipFile(packed) as opened:
        member = opened.getinfo(f"{root.name}/val/val_annotations.txt")
    content = bytearray(packed.read_bytes())
    content[member.header_offset + 30 + len(member.filename) + 9] ^= 1
    packed.write_bytes(content)
    assert "val/val_annotations.txt is missing or cannot be read" in _line(packed)


def test_limits_and_sizes(root):
    small = _load(root, train_limit=6, test_limit=3, image_size=32)
    assert small.train.images.shape == (6, 3, 32, 32)
    assert small.train.labels.bincount().tolist() == [2, 2, 2]
    assert len(small.test) == 3


def _line(root):
    with pytest.raises(ConfigError) as error:
        _load(root)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_missing_is_named(root):
    assert _line(None) == (
        "data.root must name the unpacked folder or the zip of data=tiny_imagenet"
    )
    annotations = root / "val" / "val_annotations.txt"
    whole = annotations.read_text()
    annotations.write_text(whole.replace(CLASSES[0], "n99999999", 1))
    assert "val/val_annotations.txt gives val_0.png no class that train/ has" in _line(root)
    annotations.unlink()
    assert "val/val_annotations.txt is missing or cannot be read" in _line(root)
    shutil.rmtree(root / "val")
    assert "holds no validation images of TinyImageNet; expected train/<class>/" in _line(root)
    shutil.rmtree(root / "train")
    assert "holds no training images of TinyImageNet" in _line(root)
