"""The shift that changes nothing, and a shift of a user's own."""

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.sections import ShiftConfig
from orchestra_flwr.data import shift_images

MINE = """
    import torch
    from pydantic import Field

    from orchestra_flwr.config import Section
    from orchestra_flwr.data import Shift
    from orchestra_flwr.seeding import numpy_generator


    class _Settings(Section):
        least: int = Field(1, ge=0, le=200)


    class Brighter(Shift):
        '''Adds a value of the client's own and one of each image's own.'''

        Settings = _Settings

        def apply(self, images, indices, client, seed):
            base = self.settings.least + numpy_generator(seed, "shift", client).integers(20)
            own = [numpy_generator(seed, "shift", client, i).integers(20) for i in indices.tolist()]
            added = torch.tensor(own, device=images.device).add_(base)[:, None, None, None]
            return (images + added).clamp_(max=255).byte()
"""


@pytest.fixture
def images(generator):
    return torch.randint(0, 200, (6, 1, 4, 4), generator=generator, dtype=torch.uint8)


@pytest.fixture
def brighter(user_package):
    user_package({"shifts/brighter.py": MINE})

    def config(**options):
        choice = ShiftConfig.model_validate({"name": "brighter", **options})
        choice.look_in(("my_package",))
        return choice

    return config


def test_none_gives_the_images_themselves(images):
    assert shift_images(ShiftConfig(), images, torch.arange(6), "3", 0) is images


def test_a_shift_of_a_users_own(brighter, images):
    indices = torch.tensor([4, 9, 2, 30, 7, 1])
    before = images.clone()
    shifted = shift_images(brighter(), images, indices, "3", 0)

    assert torch.equal(images, before)
    assert (shifted > images).all()
    assert torch.equal(shifted, shift_images(brighter(), images, indices, "3", 0))
    for client, seed in (("4", 0), ("3", 1)):
        assert not torch.equal(shifted, shift_images(brighter(), images, indices, client, seed))
    lone = shift_images(brighter(), images[2:3], indices[2:3], "3", 0)
    assert torch.equal(lone, shifted[2:3])  # the images beside it play no part
    more = shift_images(brighter(least=11), images, indices, "3", 0)
    assert torch.equal(more, shifted + 10)


def test_its_options_are_checked(brighter, images):
    with pytest.raises(ConfigError, match=r"^shift\.least=-1: input should be greater than"):
        shift_images(brighter(least=-1), images, torch.arange(6), "3", 0)
    with pytest.raises(ConfigError) as error:
        shift_images(brighter(bins=3), images, torch.arange(6), "3", 0)
    assert str(error.value) == ("shift.bins: unknown option of shift=brighter, which has least")


def test_names_that_do_not_exist_are_refused(brighter):
    with pytest.raises(ConfigError, match="^shift=rotated: must be one of none$"):
        _ = ShiftConfig(name="rotated").plugin
    config = ShiftConfig(name="rotated")
    config.look_in(("my_package",))
    with pytest.raises(ConfigError, match="^shift=rotated: must be one of none, brighter$"):
        _ = config.plugin


@pytest.mark.parametrize(
    ("change", "actual"),
    [(".float()", "float32 (6, 1, 4, 4) on cpu"), ("[1:]", "uint8 (5, 1, 4, 4) on cpu")],
)
def test_other_shapes_and_types_are_refused(user_package, images, change, actual):
    user_package({"shifts/brighter.py": MINE.replace(".byte()", f".byte(){change}")})
    config = ShiftConfig(name="brighter")
    config.look_in(("my_package",))

    with pytest.raises(ConfigError) as error:
        shift_images(config, images, torch.arange(6), "3", 0)
    assert str(error.value) == (
        f"shift=brighter: Brighter.apply must return uint8 (6, 1, 4, 4) on cpu, not {actual}"
    )
