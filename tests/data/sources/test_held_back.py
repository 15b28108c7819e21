"""Test images that are held back from the training images (`data.test_share`)."""

import pytest
import torch
from PIL import Image

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.data import UNLABELLED, load_dataset

SIZES = {"ant": 20, "bee": 10, "cat": 5}


@pytest.fixture
def photos(tmp_path):
    """Class folders without test images: each image has a gray value of its own."""
    for number, (name, count) in enumerate(SIZES.items()):
        (tmp_path / name).mkdir()
        for image in range(count):
            value = 80 * number + 3 * image
            Image.new("L", (8, 8), value).save(tmp_path / name / f"{image:02}.png")
    return tmp_path


def _load(root, **options):
    options = {"root": str(root), "cache": str(root / ".cache"), "image_size": 8, **options}
    return load_dataset(DataConfig.model_validate({"name": "image_folder", **options}))


def test_a_share_is_held_back_from_every_class(photos):
    whole, split = _load(photos), _load(photos, test_share=0.2)
    assert whole.test is None and len(whole.train) == 35
    assert split.train.labels.bincount().tolist() == [16, 8, 4]
    assert split.test.labels.bincount().tolist() == [4, 2, 1]
    both = torch.cat([split.train.images, split.test.images]).flatten(1).sum(1)
    assert sorted(both.tolist()) == sorted(whole.train.images.flatten(1).sum(1).tolist())
    assert split.train.classes == split.test.classes == tuple(SIZES)
    for image, label, file in zip(
        split.train.images, split.train.labels, split.train.files, strict=True
    ):
        assert file.startswith(split.train.classes[label])
        assert int(image.flatten()[0]) == 80 * int(label) + 3 * int(file[-6:-4])


def test_it_is_the_same_share_every_time(photos):
    first, second = _load(photos, test_share=0.3), _load(photos, test_share=0.3)
    assert torch.equal(first.test.images, second.test.images)
    assert len(_load(photos, test_share=0.3, test_limit=4).test) == 4


def test_every_class_keeps_an_image_for_training(photos):
    assert _load(photos, test_share=0.99).train.labels.bincount().tolist() == [1, 1, 1]
    with pytest.raises(ConfigError, match=r"data\.test_share=0\.01: is no image of any class"):
        _load(photos, test_share=0.01)


def test_images_without_labels_are_refused(photos):
    with pytest.raises(ConfigError, match=r"data\.test_share=0\.2: the images have no labels"):
        _load(photos / "ant", test_share=0.2)


def test_images_without_a_label_beside_others_are_all_trained_on(photos):
    """They cannot be told right from wrong: as test images they ended the first evaluation."""
    for image in range(10):
        Image.new("L", (8, 8), 250).save(photos / f"{image:02}.png")
    split = _load(photos, test_share=0.2)
    assert split.test.labels.bincount().tolist() == [4, 2, 1]
    assert (split.train.labels == UNLABELLED).sum() == 10


def test_images_with_test_images_are_refused():
    with pytest.raises(ConfigError, match=r"must not be given, data=digits has test images"):
        load_dataset(DataConfig(name="digits", image_size=8, test_share=0.2))
