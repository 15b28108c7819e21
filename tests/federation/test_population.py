import numpy as np
import pytest
import torch

from orchestra_flwr.data import Dataset, ImageSet
from orchestra_flwr.federation.population import Population, with_class_names
from orchestra_flwr.training import build_learner

PHOTOS = ("data=image_folder", "data.root=x")


def population(*classes):
    labels = torch.arange(4) % len(classes) if classes else None
    images = ImageSet(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), labels, classes)
    return Population(Dataset("image_folder", images), {"0": np.arange(4)})


def test_a_method_that_learns_classes_is_told_those_of_the_images(tiny):
    config = tiny(*PHOTOS, "method=supervised")
    named = with_class_names(config, population("cat", "dog"))
    assert build_learner(named, 3).class_names == ("cat", "dog")
    assert config.method.options["classes"] is None
    others = named.model_copy(update={"method": config.method})
    assert others == config  # nothing else has changed


@pytest.mark.parametrize(
    "overrides",
    [
        (*PHOTOS, "method=supervised", "method.classes=[ant,cat,dog]"),
        ("method=supervised",),
        (*PHOTOS, "method=simclr"),
    ],
)
def test_what_is_known_or_not_wanted_stays_as_it_is(tiny, overrides):
    config = tiny(*overrides)
    assert with_class_names(config, population("cat", "dog")) == config


def test_images_without_labels_name_nothing(tiny):
    config = tiny(*PHOTOS, "method=supervised")
    assert with_class_names(config, population()) == config
