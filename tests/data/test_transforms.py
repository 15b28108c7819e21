"""Every operation against torchvision's on one image: its tensor and its PIL implementation."""

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode

from orchestra_flwr.data import colours, transforms
from orchestra_flwr.data.colours import BRIGHTNESS, CONTRAST, HUE, SATURATION
from orchestra_flwr.data.transforms import Parameters

COUNT, SIZE = 24, 32
ADJUST = {
    BRIGHTNESS: F.adjust_brightness,
    CONTRAST: F.adjust_contrast,
    SATURATION: F.adjust_saturation,
    HUE: F.adjust_hue,
}


@pytest.fixture(params=[1, 3], ids=["gray", "rgb"])
def images(request: pytest.FixtureRequest) -> Tensor:
    """Smooth and noisy images, some of them plain: (N, C, S, S), uint8."""
    generator = torch.Generator().manual_seed(5)
    shape = (COUNT, request.param, SIZE, SIZE)
    noise = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    grid = torch.linspace(0, 1, SIZE)
    waves = torch.sin(7 * grid[:, None] + torch.arange(COUNT * request.param)[:, None, None] + grid)
    smooth = (127.5 * (waves + 1)).byte().view(shape)
    images = torch.where(torch.arange(COUNT).view(-1, 1, 1, 1) % 2 == 0, noise, smooth)
    images[0], images[1], images[2] = 0, 255, 77
    return images


def _parameters(**changes: Tensor) -> Parameters:
    """Parameters that change nothing, but for `changes`."""
    no = torch.zeros(COUNT, dtype=torch.bool)
    nothing = {
        "box": torch.tensor([[0, 0, SIZE, SIZE]]).expand(COUNT, 4),
        "flip": no,
        "jitter": no,
        "order": torch.arange(4).expand(COUNT, 4),
        "factors": torch.tensor([[1.0, 1.0, 1.0, 0.0]]).expand(COUNT, 4),
        "gray": no,
        "blur": no,
        "sigma": torch.ones(COUNT),
        "solarize": no,
        "turns": torch.zeros(COUNT, dtype=torch.int64),
    }
    return Parameters(**(nothing | changes))


def _pil(image: Tensor) -> Image.Image:
    return F.to_pil_image(image)


def _from_pil(image: Image.Image) -> Tensor:
    return F.pil_to_tensor(image).float() / 255


def _close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    assert (actual - expected).abs().max() <= tolerance


def test_nothing_to_do_changes_no_bit(images: Tensor):
    assert torch.equal(transforms.apply(images, _parameters()), images.float() / 255)


def _boxes_and_flips() -> dict[str, Tensor]:
    random = np.random.default_rng(0)
    shape = random.integers(1, SIZE + 1, size=(COUNT, 2))
    corner = random.integers(0, SIZE + 1 - shape)
    box = torch.from_numpy(np.concatenate([corner, shape], axis=1))
    return {"box": box, "flip": torch.arange(COUNT) % 3 == 0}


def _cropped_one_by_one(sources: list, box: Tensor, flip: Tensor, size: int = SIZE) -> list:
    return [
        (F.horizontal_flip if mirrored else lambda x: x)(
            F.resized_crop(source, *crop, [size, size], InterpolationMode.BICUBIC, antialias=True)
        )
        for source, crop, mirrored in zip(sources, box.tolist(), flip, strict=True)
    ]


def test_crop_resize_and_flip_are_those_of_tensors(images: Tensor):
    """Values far from 0 and 1, where nothing is cut off: only rounding errors may differ."""
    images = images // 2 + 64
    boxes = _boxes_and_flips()
    expected = _cropped_one_by_one(list(images.float() / 255), **boxes)

    _close(transforms.apply(images, _parameters(**boxes)), torch.stack(expected), 1e-5)


def test_crop_resize_and_flip_are_those_of_pil(images: Tensor):
    boxes = _boxes_and_flips()
    expected = _cropped_one_by_one([_pil(image) for image in images], **boxes)
    expected = torch.stack([_from_pil(image) for image in expected])

    _close(transforms.apply(images, _parameters(**boxes)), expected, 2.01 / 255)


# Smaller (a cut is averaged where it has more pixels), by an odd factor too, and larger.
@pytest.mark.parametrize("size", [8, 13, 31, 40])
def test_views_of_another_size_are_those_of_pil(images: Tensor, size: int):
    boxes = _boxes_and_flips()
    boxes["box"][0] = torch.tensor([0, 0, SIZE, SIZE])
    boxes["box"][1] = torch.tensor([SIZE - 1, SIZE - 1, 1, 1])
    expected = _cropped_one_by_one([_pil(image) for image in images], **boxes, size=size)
    expected = torch.stack([_from_pil(image) for image in expected])

    actual = transforms.apply(images, _parameters(**boxes), size)

    assert actual.shape == (*images.shape[:2], size, size)
    _close(actual, expected, 2.01 / 255)


def _orders() -> Tensor:
    """All 24 orders of the four operations."""
    grid = torch.cartesian_prod(*[torch.arange(4)] * 4)
    return grid[[len(set(row.tolist())) == 4 for row in grid]]


def test_jitter_in_every_order(images: Tensor):
    generator = torch.Generator().manual_seed(1)
    factors = 0.5 + torch.rand(COUNT, 4, generator=generator)
    factors[:, HUE] -= 1
    parameters = _parameters(
        jitter=torch.ones(COUNT, dtype=torch.bool), order=_orders(), factors=factors
    )
    result = transforms.apply(images, parameters)

    for image, order, factor, actual in zip(images, _orders(), factors, result, strict=True):
        expected = image.float() / 255
        for operation in order.tolist():
            expected = ADJUST[operation](expected, factor[operation].item())
        _close(actual, expected, 2e-4)


# PIL rounds to whole gray levels and, for the hue, to 256 hues and saturations.
@pytest.mark.parametrize(
    ("operation", "factor", "levels"),
    [
        (BRIGHTNESS, 1.37, 1),
        (BRIGHTNESS, 0.61, 1),
        (CONTRAST, 1.4, 1.5),
        (CONTRAST, 0.6, 1.5),
        (SATURATION, 1.2, 2),
        (SATURATION, 0.8, 2),
        (HUE, 0.1, 18),
        (HUE, -0.07, 18),
    ],
)
def test_jitter_is_that_of_pil_but_for_rounding(
    images: Tensor, operation: int, factor: float, levels: float
):
    factors = torch.tensor([[1.0, 1.0, 1.0, 0.0]]).repeat(COUNT, 1)
    factors[:, operation] = factor
    parameters = _parameters(jitter=torch.ones(COUNT, dtype=torch.bool), factors=factors)
    result = transforms.apply(images, parameters)

    one_by_one = [_from_pil(ADJUST[operation](_pil(image), factor)) for image in images]
    expected = torch.stack(one_by_one)
    _close(result, expected, (levels + 0.01) / 255)
    assert (result - expected).abs().mean() <= max(1, levels / 6) / 255


def test_gray(images: Tensor):
    gray = torch.arange(COUNT) % 2 == 1
    result = transforms.apply(images, _parameters(gray=gray))

    for image, wanted, actual in zip(images, gray, result, strict=True):
        plain = image.float() / 255
        channels = len(image)
        expected = F.rgb_to_grayscale(plain, channels) if wanted and channels == 3 else plain
        _close(actual, expected, 1e-6)


def test_blur(images: Tensor):
    sigma = torch.linspace(0.1, 2, COUNT)
    blur = torch.arange(COUNT) % 4 != 0
    result = transforms.apply(images, _parameters(blur=blur, sigma=sigma))

    for image, wanted, width, actual in zip(images, blur, sigma.tolist(), result, strict=True):
        expected = image.float() / 255
        expected = F.gaussian_blur(expected, [3, 3], [width, width]) if wanted else expected
        _close(actual, expected, 1e-6)


def test_solarize(images: Tensor):
    wanted = torch.arange(COUNT) % 2 == 0
    result = transforms.apply(images, _parameters(solarize=wanted))

    for image, solarized, actual in zip(images, wanted, result, strict=True):
        expected = _from_pil(F.solarize(_pil(image), 128)) if solarized else image.float() / 255
        _close(actual, expected, 1e-6)


def test_turns_are_exact(images: Tensor):
    turns = torch.arange(COUNT) % 4
    result = transforms.apply(images, _parameters(turns=turns))

    for image, k, actual in zip(images, turns.tolist(), result, strict=True):
        assert torch.equal(actual, _from_pil(_pil(image).rotate(90 * k)))


def test_operations_come_in_the_published_order(images: Tensor):
    yes = torch.ones(COUNT, dtype=torch.bool)
    box = torch.tensor([[3, 5, 20, 24]]).expand(COUNT, 4)
    factors = torch.tensor([[1.3, 0.7, 1.2, 0.05]]).expand(COUNT, 4)
    everything = _parameters(
        box=box, flip=yes, jitter=yes, factors=factors, gray=yes, blur=yes,
        solarize=yes, turns=torch.full((COUNT,), 3),
    )  # fmt: skip
    result = transforms.apply(images, everything)

    for image, actual in zip(images, result, strict=True):
        x = transforms.crop_and_flip(image[None].float() / 255, box[:1], yes[:1])[0]
        for operation, adjust in ADJUST.items():
            x = adjust(x, factors[0, operation].item())
        x = F.gaussian_blur(F.rgb_to_grayscale(x, len(x)), [3, 3], [1.0, 1.0])
        _close(actual, F.solarize(x, 0.5).rot90(3, dims=(1, 2)), 2e-4)


def _random_parameters() -> Parameters:
    generator = torch.Generator().manual_seed(2)
    wanted = torch.rand(6, COUNT, generator=generator) < 0.5
    return _parameters(
        **_boxes_and_flips(),
        jitter=wanted[1],
        order=_orders(),
        factors=torch.rand(COUNT, 4, generator=generator),
        gray=wanted[2],
        blur=wanted[3],
        solarize=wanted[4],
        turns=torch.arange(COUNT) % 4,
    )


def test_an_image_does_not_depend_on_its_batch(images: Tensor):
    parameters = _random_parameters()
    whole = transforms.apply(images, parameters)

    for index in range(COUNT):
        one = Parameters(**{k: v[index : index + 1] for k, v in vars(parameters).items()})
        _close(transforms.apply(images[index : index + 1], one)[0], whole[index], 1e-5)


def test_the_way_of_gpus_gives_the_same(images: Tensor, monkeypatch: pytest.MonkeyPatch):
    chosen = transforms.apply(images, _random_parameters())
    monkeypatch.setattr(colours, "selects_images", lambda images: False)

    _close(transforms.apply(images, _random_parameters()), chosen, 1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same(images: Tensor):
    parameters = _random_parameters()
    there = Parameters(**{k: v.cuda() for k, v in vars(parameters).items()})
    result = transforms.apply(images.cuda(), there)

    _close(result.cpu(), transforms.apply(images, parameters), 1e-4)


def test_every_image_gray_and_some_of_them_changed_after(images: Tensor):
    yes = torch.ones(COUNT, dtype=torch.bool)
    some = torch.arange(COUNT) % 2 == 0
    gray = transforms.apply(images, _parameters(gray=yes))
    both = transforms.apply(images, _parameters(gray=yes, solarize=some))

    assert torch.equal(both[~some], gray[~some])
    assert torch.equal(both[some], torch.minimum(gray, 1 - gray)[some])


def test_the_input_is_left_alone(images: Tensor):
    before = images.clone()
    transforms.apply(images, _parameters(solarize=torch.ones(COUNT, dtype=torch.bool)))

    assert torch.equal(images, before)
