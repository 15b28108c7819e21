"""Small files in the layout of the binary ones."""

import os
import shutil

import numpy as np
import pytest
import torch

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.data import load_dataset


@pytest.fixture
def root(tmp_path):
    """20 training and 10 test images; the unlabelled ones are not there."""
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    random = np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 10)):
        images = random.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
        images[0] = np.arange(96, dtype=np.uint8)[:, None]  # darker at the top
        # In the file each channel stands column by column.
        (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        (folder / f"{part}_y.bin").write_bytes(bytes(1 + i % 10 for i in range(count)))
        np.save(tmp_path / f"{part}.npy", images)
    return tmp_path


def _load(root, **changes):
    values = {"image_size": 96, "root": str(root), "cache": str(root / "cache"), **changes}
    return load_dataset(DataConfig(name="stl10", **values))


def test_pixels_and_classes(root):
    dataset = _load(root)
    for part, images in (("train", dataset.train), ("test", dataset.test)):
        assert np.array_equal(images.images.numpy(), np.load(root / f"{part}.npy"))
        assert images.labels.tolist() == [i % 10 for i in range(len(images))]
        assert images.classes[0] == "airplane" and images.classes[-1] == "truck"
    assert dataset.train.images[0, 0, :3, 5].tolist() == [0, 1, 2]
    again = _load(root / "stl10_binary", cache=str(root / "cache"))
    assert torch.equal(again.train.images, dataset.train.images)


def test_made_to_fit_other_encoders(root):
    small = _load(root, image_size=32, train_limit=10, test_limit=5)
    assert small.train.images.shape == (10, 3, 32, 32)
    assert small.test.images.shape == (5, 3, 32, 32)
    assert small.train.labels.sort().values.tolist() == list(range(10))
    whole = _load(root, image_size=32).train.images[0, 0].float()
    assert (whole.diff(dim=0) >= 2).all() and (whole.diff(dim=1) == 0).all()  # three rows make one


def test_files_of_equal_sizes_and_times_are_read_each(root, tmp_path_factory):
    other = shutil.copytree(root, tmp_path_factory.mktemp("other"), dirs_exist_ok=True)
    file = other / "stl10_binary" / "train_X.bin"
    content, status = file.read_bytes(), file.stat()
    file.write_bytes(bytes(255 - value for value in content[:9]) + content[9:])
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    first, second = (_load(r, cache=str(root / "cache")).train.images for r in (root, other))
    assert not torch.equal(first, second)


def _line(root):
    with pytest.raises(ConfigError) as error:
        _load(root)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_wrong_is_named(root):
    with pytest.raises(ConfigError) as error:
        load_dataset(DataConfig(name="stl10", image_size=96))
    assert str(error.value) == (
        "data.root must name the folder of the unpacked stl10_binary.tar.gz for data=stl10"
    )
    labels = root / "stl10_binary" / "test_y.bin"
    labels.write_bytes(bytes(11 for _ in range(10)))
    assert "test_y.bin is damaged: classes must be 1 to 10" in _line(root)
    labels.write_bytes(bytes(9))
    assert "test_X.bin and test_y.bin do not fit each other" in _line(root)
    labels.unlink()
    assert "holds no test_y.bin; unpack stl10_binary.tar.gz there" in _line(root)
