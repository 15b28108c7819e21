"""What a method declares of its clients' contributions."""

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.privacy.accounting import calibrate
from orchestra_flwr.privacy.release import Contribution, Release

ROWS = {"centroids": (8, 5), "counts": (1, 3)}
PRIVATE = Release(ROWS, "centroids", epsilon=1.0, delta=1e-2)


def test_a_release_promises_nothing_by_default():
    release = Release(ROWS, "centroids")
    assert (release.min_images, release.max_norm, release.norm_per_image) == (None, None, False)
    assert (release.may_be_empty, release.first_round, release.is_private) == (False, 1, False)
    assert (release.made_private_by, release.exposes, release.mechanism) == ("", "", None)


def test_an_empty_contribution_has_every_array_in_its_width_and_no_rows():
    contribution = PRIVATE.empty()
    shapes = {name: tuple(array.shape) for name, array in contribution.arrays.items()}
    assert shapes == {"centroids": (0, 5), "counts": (0, 3)}
    assert contribution.smallest_group is None
    assert all(array.dtype == torch.float32 for array in contribution.arrays.values())
    assert Contribution() == Contribution({}, None)


def test_a_private_release_has_the_noise_of_its_epsilon_and_delta():
    assert PRIVATE.is_private and PRIVATE.mechanism == calibrate(1.0, 1e-2)
    assert Release(ROWS, "centroids", delta=1e-2).mechanism is None
    assert Release(ROWS, "centroids", epsilon=1.0).mechanism is None


def test_a_delta_that_allows_to_publish_an_image_is_refused():
    PRIVATE.check_images(99)
    for count in (100, 1000):  # at 1 / count one image of them may be published
        with pytest.raises(ConfigError) as error:
            PRIVATE.check_images(count)
        assert str(error.value) == (
            f"privacy.delta=0.01: must be below 1 / {count} = {1 / count:.3g}, "
            f"since a client has {count} images"
        )


def test_without_epsilon_or_delta_nothing_is_refused():
    Release(ROWS, "centroids", delta=0.5).check_images(100)
    Release(ROWS, "centroids", epsilon=1.0).check_images(100)


def test_only_what_is_sent_counts():
    """An array that the release does not announce stays on the client, so it may be of anything."""
    release = Release({"rows": (2, 3)}, label="rows", min_images=2)
    release.check(Contribution({"rows": torch.zeros(0, 3), "more": torch.ones(1, 3)}))
    with pytest.raises(ValueError, match="end_round must say smallest_group"):
        release.check(Contribution({"rows": torch.ones(1, 3)}))
