import pytest
import torch

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.data import Dataset, ImageSet, load_dataset
from orchestra_flwr.data.sources.stored import store

IMAGES = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8)
LABELS = torch.arange(9) % 3


@pytest.fixture
def data():
    train = ImageSet(IMAGES[:6], LABELS[:6], ("a", "b", "c"))
    return Dataset("stored", train, ImageSet(IMAGES[6:], LABELS[6:], ("a", "b", "c")))


def _config(file, **options):
    return DataConfig.model_validate(
        {"name": "stored", "image_size": 8, "root": file and str(file), **options}
    )


def test_what_was_stored_is_read(data, tmp_path):
    file = store(data, str(tmp_path))
    again = load_dataset(_config(file))
    assert torch.equal(again.train.images, IMAGES[:6]) and torch.equal(
        again.test.labels, LABELS[6:]
    )
    assert again.train.classes == ("a", "b", "c")
    assert file.stat().st_mode & 0o077 == 0  # private images
    limited = load_dataset(_config(file, train_limit=3, test_limit=1))
    assert (len(limited.train), len(limited.test)) == (3, 1)


def test_the_same_images_are_one_file_and_others_another(data, tmp_path):
    file = store(data, str(tmp_path))
    assert store(data, str(tmp_path)) == file
    assert store(Dataset("stored", data.train), str(tmp_path)) != file
    relabelled = ImageSet(data.train.images, data.train.labels.flip(0), data.train.classes)
    assert store(Dataset("stored", relabelled, data.test), str(tmp_path)) != file
    assert len(list(tmp_path.iterdir())) == 3


def test_a_damaged_file_is_refused_and_stored_again(data, tmp_path):
    file = store(data, str(tmp_path))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"call it again with dataset=\.\.\. .*damaged"):
        load_dataset(_config(file))
    store(data, str(tmp_path))
    assert len(load_dataset(_config(file)).train) == 6


def test_a_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match=r"must be a file that orchestra_flwr\.simulate has"):
        load_dataset(_config(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"data=stored: is for orchestra_flwr\.simulate"):
        load_dataset(_config(None))
