import pytest
import torch

from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.data import UNLABELLED, ImageSet
from orchestra_flwr.methods import classes_of, labels_for
from orchestra_flwr.methods.labels import Classes, shown_labels, with_class_names

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
    assert classes_of(config) == Classes(2, ("cat", "dog"))
    assert with_class_names(config, ("ant",)) is config  # it has been decided
    for settled in (tiny("method=supervised"), tiny()):
        assert with_class_names(settled, ("cat", "dog")) is settled
    assert classes_of(with_class_names(tiny(*PHOTOS), ())) is None


# --- some labels --------------------------------------------------------------------------------

SOME = ("method=simclr", "labels.fraction=0.1")


@pytest.mark.parametrize(("fraction", "count"), [(0.001, 1), (0.1, 3), (0.5, 15), (1, 30)])
def test_a_share_of_the_labels_is_shown_and_at_least_one(tiny, fraction, count):
    config = tiny("method=simclr", f"labels.fraction={fraction}")
    labels = torch.arange(40) % 4
    labels[::4] = UNLABELLED  # what nobody labelled cannot be shown
    shown = shown_labels(config, labels, "7")
    is_shown = shown != UNLABELLED
    assert is_shown.sum() == count and torch.equal(shown[is_shown], labels[is_shown])
    assert not is_shown[::4].any()
    assert torch.equal(shown_labels(config, labels, "7"), shown)  # in every round


def test_which_labels_are_shown_is_drawn_for_each_client_and_seed(tiny):
    labels = torch.zeros(200, dtype=torch.int64)

    def known(client, *overrides):
        return (shown_labels(tiny(*SOME, *overrides), labels, client) != UNLABELLED).nonzero()

    assert not torch.equal(known("0"), known("1"))
    assert not torch.equal(known("0"), known("0", "seed=1"))
    larger = set(known("0", "labels.fraction=0.3").flatten().tolist())
    assert set(known("0").flatten().tolist()) < larger  # a larger share holds a smaller one


def test_the_draw_does_not_depend_on_the_classes(tiny):
    labels = torch.arange(50) % 10
    shown, other = (shown_labels(tiny(*SOME), classes, "0") for classes in (labels, labels.flip(0)))
    assert torch.equal(shown == UNLABELLED, other == UNLABELLED)


def test_nothing_is_hidden_where_nothing_was_said(tiny):
    labels = torch.tensor([3, UNLABELLED, 1])
    assert shown_labels(tiny("method=supervised"), labels, "0") is labels
    nobody = torch.full((3,), UNLABELLED)
    assert torch.equal(shown_labels(tiny(*SOME), nobody, "0"), nobody)


def test_images_that_nobody_labelled_take_part_if_some_labels_are_enough(tiny):
    named = tiny(*SOME, "data=image_folder", "data.root=x", "method.classes=[dog,ant,cat]")
    mixed = photos(["cat", "dog"], [0, UNLABELLED, 1])
    assert labels_for(named, mixed).tolist() == [1, UNLABELLED, 2]
    nobody = ImageSet(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    assert labels_for(named, nobody).tolist() == [UNLABELLED] * 2
    assert labels_for(tiny("method=simclr"), mixed) is None
    needs_all = tiny(*PHOTOS, "method.classes=[dog,cat]")
    with pytest.raises(ConfigError, match=r"1 of the images have no label.*labels.fraction=1"):
        labels_for(needs_all, mixed)


@pytest.mark.parametrize("names", ["cat", "cat,cat"])
def test_one_class_is_none(names):
    with pytest.raises(ConfigError, match=r"method.classes=\[cat.*must name two classes or more"):
        load_config(["data=image_folder", "method=cbafed", f"method.classes=[{names}]"])
