"""Styles: five filters, or the copies that a user has made."""

import os

import pytest
import torch
from PIL import Image

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import ShiftConfig
from orchestra_flwr.data import ImageSet, shift_images
from orchestra_flwr.data.shifts import drawn_variants
from orchestra_flwr.data.shifts.style import FILTERS, read_copies

INDICES = torch.tensor([4, 9, 2, 30, 7, 1, 11, 13, 5, 8])


def _config(**options):
    return ShiftConfig.model_validate({"name": "style", **options})


@pytest.fixture
def images(generator):
    """Smooth colours, so that a filter's edges and noise are to be seen."""
    rough = torch.rand(10, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(rough, (16, 16), mode="bilinear")
    return (smooth * 255).byte()


def test_five_filters_that_differ(images):
    values = images.float() / 255
    results = [filter_(values, INDICES, 0) for filter_ in FILTERS]
    assert torch.equal(results[0], values)
    posterised, relief, warm, cold = results[1:]
    assert len(posterised.unique()) == 4
    assert (relief - 0).std() > values.std()  # edges stand out
    roughness = [(x[..., 1:] - x[..., :-1]).abs().mean() for x in (values, warm, cold)]
    assert roughness[1] < roughness[0] < roughness[2]
    ratio = [x.mean(dim=(0, 2, 3)) / values.mean(dim=(0, 2, 3)) for x in (warm, cold)]
    assert all(
        x[bright] > 1.1 and x[dark] < 0.8
        for x, bright, dark in zip(ratio, (0, 2), (2, 0), strict=True)
    )


def test_a_flat_image_in_relief_is_flat():
    gray = torch.full((1, 3, 8, 8), 0.25)
    assert torch.allclose(FILTERS[2](gray, INDICES[:1], 0), gray, atol=1e-6)


def test_each_image_has_the_style_that_it_drew(images):
    config = _config(alpha=1e6)
    shifted = shift_images(config, images, INDICES, "3", 0)
    chosen = drawn_variants(5, 1e6, INDICES, "3", 0)
    assert len(chosen.unique()) > 2
    for position, style in enumerate(chosen.tolist()):
        row = slice(position, position + 1)
        alone = FILTERS[style](images[row].float() / 255, INDICES[row], 0)
        assert torch.equal(shifted[row], (alone * 255).round().clamp(0, 255).byte())


def test_an_image_keeps_its_style_and_noise(images):
    config, before = _config(alpha=5), images.clone()
    shifted = shift_images(config, images, INDICES, "3", 0)
    assert torch.equal(images, before)
    assert torch.equal(shifted, shift_images(config, images, INDICES, "3", 0))
    order = torch.tensor([5, 2, 0, 9])
    assert torch.equal(shift_images(config, images[order], INDICES[order], "3", 0), shifted[order])
    assert not torch.equal(shift_images(config, images, INDICES, "3", 1), shifted)


def test_gray_images_are_refused(tiny):
    with pytest.raises(ConfigError) as error:
        tiny("shift=style")
    assert str(error.value) == (
        "shift=style: needs images of 3 channels; those of data=digits have 1"
    )


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """Two styles of twelve images: a copy's red is its number, its green that of its style."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for style in (0, 1):
        folder = tmp_path / "styled" / "set" / f"style {style}"
        folder.mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (16, 16), (number, 100 * style, 0)).save(folder / f"{number:03}.png")
    return tmp_path / "styled"


def test_copies_of_a_users_own(copies):
    config = _config(folder=str(copies), alpha=1e6)
    plain = torch.full((4, 3, 16, 16), 200, dtype=torch.uint8)
    indices = torch.tensor([7, 0, 11, 3])
    for _ in ("decoded", "from the cache"):
        shifted = shift_images(config, plain, indices, "3", 0)
        assert shifted[:, 0, 5, 5].tolist() == indices.tolist()
        styles = drawn_variants(2, 1e6, indices, "3", 0)
        assert shifted[:, 1, 5, 5].tolist() == (100 * styles).tolist()


def test_two_folders_of_copies_are_read_each(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for red in (5, 6):
        file = tmp_path / f"set {red}" / "style" / "0.bmp"
        file.parent.mkdir(parents=True)
        Image.new("RGB", (16, 16), (red, 0, 0)).save(file)
        os.utime(file, (1_700_000_000, 1_700_000_000))
        assert read_copies(str(file.parents[1]), 16)[0, 0, 0, 0, 0] == red


def _refusal(copies, count=12):
    images = ImageSet(torch.zeros(count, 3, 16, 16, dtype=torch.uint8))
    with pytest.raises(ConfigError) as error:
        _config(folder=str(copies)).build().check_images(images)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("count", [11, 13])
def test_a_copy_for_each_image_is_asked_for_before_a_run(copies, count):
    """With more, as with a limit of the images, they would be those of others."""
    assert _refusal(copies, count) == (
        f"shift.folder={copies}: must hold a copy of each of the {count} training images and of "
        "no others, numbered from 0, in each style; there are 12"
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda set_: (set_ / "style 1" / "004.png").unlink(), "from 0 without gaps"),
        (lambda set_: (set_ / "style 1" / "x.png").touch(), "not set/style 1/x.png"),
        (lambda set_: (set_ / "style 1" / "4.png").touch(), "set/style 1/4.png is there twice"),
        (
            lambda set_: (set_ / "style 1" / "004.png").write_text("no image"),
            "set/style 1/004.png: not an image",
        ),
    ],
)
def test_copies_that_are_not_as_they_should_be_are_named(copies, change, says):
    change(copies / "set")
    assert says in _refusal(copies)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    assert _refusal(tmp_path / "x") == f"shift.folder={tmp_path}/x: does not exist"
    (tmp_path / "empty").mkdir()
    assert "must hold <style>/<number>.png" in _refusal(tmp_path / "empty")
