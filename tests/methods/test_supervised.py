import math

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Batch, build_method, classes_of
from orchestra_flwr.methods.labels import Classes
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round

PHOTOS = ("method=supervised", "data=image_folder", "data.root=x")


def test_the_loss_is_the_cross_entropy_of_the_labels(tiny):
    method = build_method(tiny("method=supervised"), 1).train()
    view = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([9, 0, 3, 3])
    batch = Batch(torch.arange(4), (view,), (None,), torch.Generator(), labels)
    loss = method.loss(batch).losses["classification"]
    scores = method.classifier(method.backbone(view)).tolist()
    expected = [
        math.log(sum(math.exp(s) for s in row)) - row[label]
        for row, label in zip(scores, labels.tolist(), strict=True)
    ]
    assert loss.item() == pytest.approx(sum(expected) / 4, rel=1e-4)


@pytest.mark.parametrize(
    ("overrides", "classes"),
    [
        (["method=supervised"], 10),
        (["method=supervised", "data=cifar100"], 100),
        ([*PHOTOS, "method.classes=[cat,dog,ant]"], 3),
    ],
)
def test_one_output_for_each_class(tiny, overrides, classes):
    config = tiny(*overrides, "model=convnet")
    method = build_method(config, 1)
    assert classes_of(config).count == method.classifier.out_features == classes
    assert method.needs_labels


def test_names_of_classes_are_numbered_in_their_order(tiny):
    config = tiny(*PHOTOS, "method.classes=[cat,dog,ant]")
    assert classes_of(config) == Classes(3, ("ant", "cat", "dog"))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (PHOTOS, "method.classes: must be given with data=image_folder"),
        ([*PHOTOS, "method.classes=[cat]"], "method.classes=.*two classes or more"),
        (
            [*PHOTOS, "method.classes=3"],
            r"method.classes=3: must be a list, .* method.classes=\[3\]$",
        ),
    ],
)
def test_wrong_classes_are_refused(tiny, overrides, says):
    with pytest.raises(ConfigError, match=says):
        build_method(tiny(*overrides), 3)


def test_it_does_not_train_without_labels(tiny):
    config = tiny("method=supervised")
    images = torch.zeros(8, 1, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match="learns from labels"):
        train_round(build_learner(config, 1), images, config, ClientSeed(0, 1, "0"))


def test_the_labels_are_those_of_the_images(tiny, monkeypatch):
    """Each image is painted in its own label: what arrives in a batch must agree."""
    config = tiny("method=supervised", "training.local_epochs=2")
    learner = build_learner(config, 1)
    labels = torch.arange(40) % 10
    images = (labels * 25).to(torch.uint8)[:, None, None, None].expand(40, 1, 8, 8)
    seen, loss = [], type(learner.method).loss

    def looking(self, batch):
        painted = ((batch.views[0].mean((1, 2, 3)) + 1) / 2 * 255 / 25).round().long()
        seen.append(torch.equal(painted, batch.labels))
        return loss(self, batch)

    monkeypatch.setattr(type(learner.method), "loss", looking)
    train_round(learner, images, config, ClientSeed(0, 1, "0"), labels=labels)
    assert len(seen) == 6 and all(seen)
