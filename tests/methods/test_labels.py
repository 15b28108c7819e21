import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import ImageSet
from orchestra_flwr.methods import Classes, labels_for
from orchestra_flwr.methods.labels import with_class_names

PHOTOS = ("method=supervised", "data=image_folder", "data.root=x")


def photos(classes, labels):
    images = torch.zeros(len(labels), 3, 8, 8, dtype=torch.uint8)
    return ImageSet(images, torch.tensor(labels), tuple(classes))


def test_methods_that_learn_from_images_alone_get_no_labels(tiny):
    assert labels_for(tiny(), photos(["a", "b"], [0, 1])) is None


def test_the_data_sets_own_numbers(tiny):
    digits = photos([str(i) for i in range(10)], [3, 9, 0])
    assert labels_for(tiny("method=supervised"), digits).tolist() == [3, 9, 0]


def test_names_decide_whatever_a_client_has(tiny):
    config = tiny(*PHOTOS, "method.classes=[dog,ant,cat]")
    assert labels_for(config, photos(["cat", "dog"], [0, 1, 1])).tolist() == [1, 2, 2]
    assert labels_for(config, photos(["ant", "dog"], [0, 1, 1])).tolist() == [0, 2, 2]


def test_what_cannot_be_learnt_is_refused_in_one_line(tiny):
    named = tiny(*PHOTOS, "method.classes=[ant,dog]")
    counted = tiny("method=supervised")
    nobody = ImageSet(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    for config, images, says in (
        (named, nobody, "the images have none"),
        (named, photos(["ant", "bee"], [0, 1]), r"method.classes=\[ant,dog\].* bee is missing"),
        (counted, photos(["ant", "bee"], [0, 1]), "the images have 2 classes instead of 10"),
    ):
        with pytest.raises(ConfigError, match=says) as error:
            labels_for(config, images)
        assert "\n" not in str(error.value)


def test_a_simulation_names_the_classes_that_it_has_loaded(tiny):
    config = with_class_names(tiny(*PHOTOS), ("cat", "dog"))
    assert config.method.plugin.classes(config) == Classes(2, ("cat", "dog"))
    assert with_class_names(config, ("ant",)) is config  # it has been decided
    for settled in (tiny("method=supervised"), tiny()):
        assert with_class_names(settled, ("cat", "dog")) is settled
    assert with_class_names(tiny(*PHOTOS), ()).method.plugin.classes(tiny(*PHOTOS)) is None
