import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import release_of
from orchestra_flwr.seeding import ClientSeed

SEED = ClientSeed(0, 1, "0")


def pictures(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=generator)


def features(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, 16, generator=generator), dim=1)


IMAGES = pictures(28)  # all different


def contributed(config, rows, images=IMAGES):
    """What a client sends that saw these of its images."""
    clustering = config.clustering.build(config)
    clustering.start_round(1, images, features=None)  # which it does not ask for
    clustering.observe(rows, features(len(rows)))
    return clustering.end_round(images, SEED)


def test_centroids_within_the_limits_of_the_release(tiny):
    config = tiny("clustering.local_clusters=3")
    contribution = contributed(config, torch.arange(10))
    assert contribution.arrays["local_centroids"].shape == (3, 16)
    assert contribution.smallest_group == 3
    release = release_of(config)
    assert release.rows == {"local_centroids": (3, 16)}
    assert (release.label, release.min_images) == ("centroids", 2)
    assert release.may_be_empty and release.first_round == 0 and release.exposes == ""


@pytest.mark.parametrize(
    ("k_min", "rows", "smallest"), [(1, 3, 2), (3, 2, 3), (4, 1, 7), (8, 0, 0)]
)
def test_no_centroid_of_fewer_different_images(tiny, k_min, rows, smallest):
    """28 rows of 7 images: the images count."""
    config = tiny("clustering.local_clusters=3", f"privacy.k_min={k_min}")
    contribution = contributed(config, torch.arange(7).repeat(4))
    assert contribution.arrays["local_centroids"].shape == (rows, 16)
    assert contribution.smallest_group == smallest


def test_copies_of_an_image_are_one_image(tiny):
    """32 files of two images, as links or copies make them: no centroid stands for three."""
    config = tiny("clustering.local_clusters=3", "privacy.k_min=3", "clustering.memory=32")
    copies = pictures(2).repeat(16, 1, 1, 1)
    contribution = contributed(config, torch.randperm(32), copies)
    assert contribution.arrays["local_centroids"].shape == (0, 16)
    assert contribution.smallest_group == 0

    some = torch.cat([pictures(7), copies])[:32]
    contribution = contributed(config, torch.randperm(32), some)
    assert contribution.arrays["local_centroids"].shape == (2, 16)
    assert contribution.smallest_group == 3


def test_no_image_is_remembered_from_an_earlier_round(tiny):
    config = tiny()
    clustering = config.clustering.build(config)
    clustering.observe(torch.arange(10), features(10))
    assert len(clustering.memory) == 10
    clustering.start_round(2, IMAGES, features=None)
    assert len(clustering.memory) == 0


def test_more_images_than_are_remembered_cannot_be_asked_for(tiny):
    with pytest.raises(ConfigError, match="privacy.k_min=33: must be at most clustering.memory=32"):
        tiny("privacy.k_min=33", "clustering.memory=32")
