import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import ImageSet
from orchestra_flwr.methods import build_method, labels_for

PHOTOS = ("method=supervised", "data=image_folder", "data.root=x")


def photos(classes, labels):
    images = torch.zeros(len(labels), 3, 8, 8, dtype=torch.uint8)
    return ImageSet(images, torch.tensor(labels), tuple(classes))


def test_methods_without_need_get_no_labels(tiny):
    assert labels_for(build_method(tiny(), 1), photos(["a", "b"], [0, 1])) is None


def test_the_data_sets_own_numbers(tiny):
    method = build_method(tiny("method=supervised"), 1)
    digits = photos([str(i) for i in range(10)], [3, 9, 0])
    assert labels_for(method, digits).tolist() == [3, 9, 0]


def test_names_decide_whatever_a_client_has(tiny):
    method = build_method(tiny(*PHOTOS, "method.classes=[dog,ant,cat]"), 3)
    assert labels_for(method, photos(["cat", "dog"], [0, 1, 1])).tolist() == [1, 2, 2]
    assert labels_for(method, photos(["ant", "dog"], [0, 1, 1])).tolist() == [0, 2, 2]


def test_what_cannot_be_learnt_is_told(tiny):
    named = build_method(tiny(*PHOTOS, "method.classes=[ant,dog]"), 3)
    counted = build_method(tiny("method=supervised"), 1)
    nobody = ImageSet(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    for method, images, says in (
        (named, nobody, "the images have none"),
        (named, photos(["ant", "bee"], [0, 1]), r"method.classes=\[ant,dog\].* bee is missing"),
        (counted, photos(["ant", "bee"], [0, 1]), "the images have 2 classes instead of 10"),
    ):
        with pytest.raises(ConfigError, match=says) as error:
            labels_for(method, images)
        assert "\n" not in str(error.value)
