"""The shift that changes nothing, and a shift of a user's own."""

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import ShiftConfig
from orchestra_flwr.data import shift_images
from orchestra_flwr.data.shifts import drawn_variants, uniform

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
    assert str(error.value) == (
        "shift.bins: unknown option of shift=brighter, which has least (shift=rotation has it)"
    )


def test_names_that_do_not_exist_are_refused(brighter):
    with pytest.raises(ConfigError, match="^shift=rotated: must be one of none, rotation, style$"):
        _ = ShiftConfig(name="rotated").plugin
    config = ShiftConfig(name="rotated")
    config.look_in(("my_package",))
    with pytest.raises(ConfigError, match="must be one of none, rotation, style, brighter$"):
        _ = config.plugin


@pytest.mark.parametrize(
    ("change", "actual"), [(".float()", "float32 (6, 1, 4, 4)"), ("[1:]", "uint8 (5, 1, 4, 4)")]
)
def test_other_shapes_and_types_are_refused(user_package, images, change, actual):
    user_package({"shifts/brighter.py": MINE.replace(".byte()", f".byte(){change}")})
    config = ShiftConfig(name="brighter")
    config.look_in(("my_package",))

    with pytest.raises(ConfigError) as error:
        shift_images(config, images, torch.arange(6), "3", 0)
    assert str(error.value) == (
        "shift=brighter: Brighter.apply must return a Tensor, uint8 (6, 1, 4, 4), on cpu, and "
        f"returned a Tensor, {actual}"
    )


INDICES = torch.arange(500)


def test_nine_of_ten_clients_have_one_or_two_variants():
    held = [len(drawn_variants(10, 0.1, INDICES, str(client), 3).unique()) for client in range(200)]
    share = sum(count <= 2 for count in held) / 200
    assert abs(share - 0.91) < 3 * (0.91 * 0.09 / 200) ** 0.5


@pytest.mark.parametrize(("alpha", "least", "most"), [(1e-300, 1, 1), (1e300, 10, 10)])
def test_one_variant_or_all_of_them(alpha, least, most):
    held = [len(drawn_variants(10, alpha, INDICES, str(c), 3).unique()) for c in range(20)]
    assert least <= min(held) and max(held) <= most


def test_all_variants_are_equally_likely_over_all_clients():
    ones = INDICES[:1]
    drawn = torch.cat([drawn_variants(5, 0.1, ones, str(client), 1) for client in range(1000)])
    expected, deviation = 200, (1000 * 0.2 * 0.8) ** 0.5
    assert (drawn.bincount(minlength=5) - expected).abs().max() < 4 * deviation


def test_a_draw_is_the_images_own():
    all_, some = (uniform(i, 7, "variant") for i in (INDICES, INDICES[[17, 3]]))
    assert torch.equal(some, all_[[17, 3]])
    assert all_.min() >= 0 and all_.max() < 1 and abs(all_.mean() - 0.5) < 0.05
    for seed, purpose in ((8, "variant"), (7, "place")):
        assert not torch.equal(all_, uniform(INDICES, seed, purpose))
    # A client of number 17 and the image of number 17 are two.
    assert drawn_variants(9, 1e300, INDICES, "17", 7).tolist() == (all_ * 9).long().tolist()
