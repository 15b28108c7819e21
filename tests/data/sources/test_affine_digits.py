import pytest
import torch

from orchestra_flwr.config import DataConfig
from orchestra_flwr.data import load_dataset
from orchestra_flwr.data.sources.affine_digits import COPIES, NOISE


def _loaded(name="affine_digits", **changes):
    return load_dataset(DataConfig(**({"name": name, "image_size": 16} | changes)))


def test_two_images_of_every_digit_and_none_of_them_on_both_sides():
    dataset, digits = _loaded(), _loaded("digits", image_size=8)
    for part, plain in ((dataset.train, digits.train), (dataset.test, digits.test)):
        assert len(part) == COPIES * len(plain)
        assert torch.equal(part.labels, torch.cat([plain.labels] * COPIES))
        assert part.classes == tuple("0123456789")


def test_a_copy_is_its_digit_moved_and_resized():
    """What stands out of the ground has the digit's shape, from half to all of the image's side."""
    dataset, digits = _loaded(), _loaded("digits", image_size=8)
    sides, likeness = [], []
    for image, digit in zip(dataset.train.images[:100, 0], digits.train.images, strict=False):
        ground = image.double().flatten().quantile(0.25)
        ink = image.double() - ground > 5 * NOISE
        rows, columns = (ink.any(dim).nonzero().flatten() for dim in (1, 0))
        part = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].double()
        sides.append(max(part.shape))
        crop = digit[0][:, (digit[0] > 40).any(0)][(digit[0] > 40).any(1)].double()
        like = torch.nn.functional.interpolate(crop[None, None], part.shape, mode="bilinear")
        both = torch.stack([like.flatten(), part.flatten()])
        likeness.append(float(torch.corrcoef(both)[0, 1]))
    assert 5 <= min(sides) <= 8 and max(sides) == 16
    assert min(likeness) > 0.25 and sum(likeness) / 100 > 0.75


def test_no_two_copies_are_equal_and_every_load_is():
    first, second = _loaded().train.images, _loaded().train.images
    assert torch.equal(first, second)
    assert len(first.flatten(1).unique(dim=0)) == len(first)


@pytest.mark.parametrize("size", [8, 24])
def test_they_can_be_limited_and_of_another_size(size):
    dataset = _loaded(image_size=size, train_limit=100, test_limit=20)
    assert dataset.train.images.shape == (100, 1, size, size)
    assert dataset.train.labels.bincount().tolist() == [10] * 10
    assert dataset.test.labels.bincount().tolist() == [2] * 10
