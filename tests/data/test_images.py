import pytest
import torch

from orchestra_flwr.data import ImageSet, count_distinct, first_occurrences
from orchestra_flwr.square_image import resize


def test_image_sets_select_and_move():
    images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 1, 4, 4)
    chosen = ImageSet(images, torch.tensor([0, 1, 0, 1, 0]), ("a", "b")).select(
        torch.tensor([3, 0])
    )

    assert chosen.images[:, 0, 0, 0].tolist() == [3, 0]
    assert chosen.labels.tolist() == [1, 0]
    assert len(chosen) == 2
    assert chosen.to("meta").images.device.type == "meta"
    assert chosen.to("meta").labels.device.type == "meta"


@pytest.mark.parametrize(
    ("shape", "dtype", "labels"),
    [
        ((2, 3, 4, 5), torch.uint8, None),
        ((2, 3, 4), torch.uint8, None),
        ((2, 3, 4, 4), torch.float32, None),
        ((2, 3, 4, 4), torch.uint8, torch.tensor([1])),
        ((2, 3, 4, 4), torch.uint8, torch.tensor([1.0, 2.0])),
    ],
)
def test_misshapen_image_sets_are_refused(shape, dtype, labels):
    with pytest.raises(ValueError, match="must be"):
        ImageSet(torch.zeros(shape, dtype=dtype), labels)


def test_resize_keeps_the_picture():
    """A gradient to the right and one downwards."""
    ramp = torch.linspace(0, 255, 8).round().byte()
    images = torch.stack([ramp.expand(8, 8), ramp[:, None].expand(8, 8)])[None]
    larger = resize(images, 32)

    assert larger.shape == (1, 2, 32, 32)
    assert larger.dtype == torch.uint8
    assert (resize(larger, 8).int() - images.int()).abs().max() <= 4
    assert resize(images, 8) is images


def test_copies_are_found_by_their_pixels():
    images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    assert first_occurrences(images).tolist() == [0, 1, 2, 3, 4, 5]
    images[4], images[5] = images[1], images[1]
    images[3] = images[2]
    images[3, 0, 0, 0] ^= 1  # one bit is another image
    assert first_occurrences(images).tolist() == [0, 1, 2, 3, 1, 1]
    assert first_occurrences(images[:0]).tolist() == []


def test_different_images_are_counted_as_far_as_needed():
    images = torch.zeros(50, 1, 8, 8, dtype=torch.uint8)
    images[:3, 0, 0, 0] = torch.arange(1, 4, dtype=torch.uint8)
    assert count_distinct(images, 16) == 4
    looked_at = []
    assert count_distinct((looked_at.append(0) or image for image in images), 2) == 2
    assert len(looked_at) <= 3
