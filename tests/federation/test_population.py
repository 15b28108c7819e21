from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import UNLABELLED, Dataset, ImageSet, shift_images
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.population import (
    Population,
    check_listing,
    check_population,
    evaluation_dataset,
    load_population,
)
from orchestra_flwr.methods import classes_of
from orchestra_flwr.methods.labels import Classes, with_class_names

PHOTOS = ("data=image_folder", "data.root=x")


def population(*classes, sizes=(4,)):
    labels = torch.arange(sum(sizes)) % len(classes) if classes else None
    pixels = torch.randint(0, 256, (sum(sizes), 3, 8, 8), dtype=torch.uint8)
    images = ImageSet(pixels, labels, classes)
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return Population(Dataset("image_folder", images), dict(zip("abc", parts, strict=False)))


def test_every_image_belongs_to_one_client(tiny):
    whole = load_population(tiny())
    assert list(whole.parts) == ["0", "1", "2", "3"]
    assert sorted(np.concatenate(list(whole.parts.values()))) == list(range(120))
    assert all((np.diff(part) > 0).all() for part in whole.parts.values())


@pytest.mark.parametrize("data", ["image_folder", "image_table"])
def test_an_owner_whose_files_are_all_broken_is_none_once_they_are_decoded(tiny, tmp_path, data):
    """Before, nobody can know; each of the two numbers of clients was refused for the other."""
    for name in ("ann", "bob", "cem"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "photos" / name / "1.png")
    (tmp_path / "photos" / "cem" / "1.png").write_bytes(b"no image")
    lines = ["file,owner", *(f"{name}/1.png,{name}" for name in ("ann", "bob", "cem"))]
    (tmp_path / "owners.csv").write_text("\n".join(lines))
    table = (f"data.table={tmp_path}/owners.csv", "data.label=null", "data.group=owner")
    options = (
        *(f"data={data}", f"data.root={tmp_path}/photos", f"data.cache={tmp_path}/cache"),
        *(table if data == "image_table" else ()),
        "partition=groups",
    )

    def load(clients):
        config = tiny(*options, f"federation.clients={clients}")
        return load_population(config, partial(check_listing, config))

    with pytest.raises(ConfigError, match="one client for each of the 3 groups"):
        load(2)
    with pytest.raises(ConfigError, match="at most one client for each of the 2 images"):
        load(3)
    assert list(load(2).parts) == ["ann", "bob"]


def test_who_has_too_few_images_for_a_release_is_told_beforehand(tiny):
    config = tiny("privacy.k_min=6")
    check_population(config, population("cat", "dog", sizes=(2, 6)))
    with pytest.raises(ConfigError, match=r"privacy.k_min=6: no client could send centroids, .* 5"):
        check_population(config, population("cat", "dog", sizes=(5, 3)))
    check_population(tiny("privacy.k_min=6", "method=simclr"), population(sizes=(5, 3)))


def test_copies_do_not_make_an_image_different(tiny):
    copies = population(sizes=(9, 9))
    copied = copies.dataset.train.images
    copied[:] = copied[0]
    copied[3] = 255 - copied[3]
    config = tiny("federation.clients=2", "privacy.k_min=3")
    with pytest.raises(ConfigError, match="must be at most 2, the largest number of different"):
        check_population(config, copies)


def test_a_method_that_learns_classes_is_told_those_of_the_images(tiny):
    config = tiny(*PHOTOS, "method=supervised")
    named = with_class_names(config, ("cat", "dog"))
    assert classes_of(named) == Classes(2, ("cat", "dog"))
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
    assert with_class_names(config, ("cat", "dog")) == config


def test_images_without_labels_name_nothing(tiny):
    config = tiny(*PHOTOS, "method=supervised")
    assert with_class_names(config, ()) == config


def test_the_images_that_judge_are_all_images_as_they_are(tiny):
    whole = load_population(tiny())
    judging = evaluation_dataset(tiny(), whole)
    assert judging.train is whole.dataset.train and judging.test is whole.dataset.test
    assert judging.shown is None


def test_the_server_of_a_simulation_knows_which_labels_are_shown(tiny):
    """They are those that the clients train with."""
    config = tiny("method=simclr", "labels.fraction=0.1")
    whole = load_population(config)
    train, shown = whole.dataset.train, evaluation_dataset(config, whole).shown
    for client, part in whole.parts.items():
        numpy_client = OrchestraClient(config, client, train.images[part], train.labels[part])
        assert torch.equal(numpy_client.labels != UNLABELLED, shown[part])
        assert 1 <= shown[part].sum() <= max(1, round(0.1 * len(part)))


def test_images_without_a_label_judge_nothing(tiny):
    config = tiny(*PHOTOS, "method=simclr", "labels.fraction=0.5", "method.classes=[cat,dog]")
    whole = population("cat", "dog", sizes=(4, 6))
    whole.dataset.train.labels[1:4] = UNLABELLED
    judging = evaluation_dataset(config, whole)
    assert len(judging.train) == len(judging.shown) == 7
    assert judging.shown.tolist()[0] and judging.shown[1:].sum() == 3


def test_encoders_can_be_judged_by_the_images_as_clients_have_them(tiny):
    """Turned images train the probe; those that nobody has do not."""
    config = tiny("shift=rotation", "shift.range=90", "evaluation.training_images=shifted",
                  "partition.share=0.5", "method=simclr", "labels.fraction=0.1")  # fmt: skip
    whole = load_population(config)
    judging = evaluation_dataset(config, whole)
    train, start = whole.dataset.train, 0
    for client, part in whole.parts.items():
        rows, indices = slice(start, start + len(part)), torch.from_numpy(part)
        turned = shift_images(config.shift, train.images[part], indices, client, config.seed)
        assert torch.equal(judging.train.images[rows], turned)
        assert torch.equal(judging.train.labels[rows], train.labels[part])
        numpy_client = OrchestraClient(config, client, turned, train.labels[part])
        assert torch.equal(numpy_client.labels != UNLABELLED, judging.shown[rows])
        start += len(part)
    assert start == len(judging.train) < len(train)
    assert judging.test is whole.dataset.test


@pytest.mark.parametrize("options", [["evaluation.clients=true"], ["evaluation.personal_labels=2"]])
def test_images_with_several_labels_are_named_as_the_reason(tiny, options):
    several, tags = population(sizes=(4, 4)), torch.ones(8, 2, dtype=torch.bool)
    train = ImageSet(several.dataset.train.images, classes=("cat", "dog"), tags=tags)
    tagged = replace(several, dataset=replace(several.dataset, train=train))
    line = "one label each; its images have several"
    with pytest.raises(ConfigError, match=f"{options[0]}: .*{line}"):
        check_population(tiny("method=simclr", *options), tagged)
