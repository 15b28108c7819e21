"""What holds for every source, and a source of a user's own."""

import pytest

from orchestra_flwr.config import ConfigError, DataConfig
from orchestra_flwr.data import load_dataset

MINE = """
    import torch
    from pydantic import Field

    from orchestra_flwr.config import Section
    from orchestra_flwr.data import Dataset, ImageSet, Source, limited


    class Stripes(Source):
        channels = 1
        classes = 2

        class Settings(Section):
            width: int = Field(2, ge=1)

        @classmethod
        def label(cls, settings):
            return f"stripes-{settings.width}"

        def load(self):
            size = self.data.image_size
            row = (torch.arange(size) // self.settings.width % 2 * 255).byte()
            images = torch.stack([row.expand(size, size), row[:, None].expand(size, size)])
            images = images[:, None].repeat(10, 1, 1, 1)
            images = ImageSet(images, torch.arange(20) % 2, ("down", "across"))
            return Dataset(self.data.name, limited(images, self.data.train_limit))
"""


def _mine(**values) -> DataConfig:
    config = DataConfig.model_validate({"name": "stripes", "image_size": 8, **values})
    config.look_in(("my_package",))
    return config


def test_a_source_of_a_users_own(user_package):
    user_package({"sources/stripes.py": MINE})
    config = _mine(train_limit=6, width=4)
    dataset = load_dataset(config)

    assert (config.channels, config.classes, config.label) == (1, 2, "stripes-4")
    assert dataset.train.labels.bincount().tolist() == [3, 3]
    down = dataset.train.images[dataset.train.labels == 0]
    assert down[0, 0, 0].tolist() == [0] * 4 + [255] * 4


def test_its_options_are_checked(user_package):
    user_package({"sources/stripes.py": MINE})

    with pytest.raises(ConfigError, match=r"^data\.width=0: input should be greater than or equal"):
        load_dataset(_mine(width=0))
    with pytest.raises(ConfigError) as error:
        load_dataset(_mine(root="/images"))
    assert str(error.value) == (
        "data.root: unknown option of data=stripes, which has image_size, train_limit, "
        "test_limit, test_share, normalise, augmentation, width "
        "(data=cifar10, data=cifar100, data=image_folder, data=image_table, data=stl10, "
        "data=stored, data=tiny_imagenet have it; did you mean data=image_folder?)"
    )


def test_names_that_do_not_exist_are_refused(user_package):
    user_package({"sources/stripes.py": MINE})
    config = DataConfig(name="strips")

    with pytest.raises(ConfigError) as error:
        load_dataset(config)
    known = (
        "affine_digits, cifar10, cifar100, digits, huggingface, image_folder, image_table, stl10, "
        "stored, tiny_imagenet"
    )
    assert str(error.value) == f"data=strips: must be one of {known}"
    config.look_in(("my_package",))
    with pytest.raises(ConfigError, match=r"tiny_imagenet, stripes .did you mean stripes"):
        load_dataset(config)


def test_images_that_are_not_as_declared_are_refused(user_package):
    user_package({"sources/stripes.py": MINE.replace("channels = 1", "channels = 3")})

    with pytest.raises(ConfigError) as error:
        load_dataset(_mine())
    assert str(error.value) == (
        "data=stripes: Stripes must give images of 3 channels and 8 pixels, not of 1 and 8"
    )


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("cifar10", (3, 10, "cifar10")),
        ("cifar100", (3, 100, "cifar100")),
        ("digits", (1, 10, "digits")),
    ],
)
def test_attributes_are_known_without_the_images(name, attributes):
    config = DataConfig(name=name)
    assert (config.channels, config.classes, config.label) == attributes
