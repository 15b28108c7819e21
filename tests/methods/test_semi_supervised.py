"""What some labels add to a loss: groups of images that are compared with themselves."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import MethodConfig
from orchestra_flwr.data import UNLABELLED
from orchestra_flwr.methods import LearnsLabels, Received, build_method, sees_labels
from orchestra_flwr.methods.families.classifying import with_pseudo_labels
from orchestra_flwr.methods.semi_supervised import (
    WHOLE_BATCH,
    groups_of,
    label_loss,
    losses_with_labels,
)
from orchestra_flwr.methods.simclr import info_nce_loss, nt_xent_loss
from orchestra_flwr.methods.simsiam import symmetric_negative_cosine
from orchestra_flwr.methods.spectral import spectral_contrastive_loss
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.terms.verification import user_verification_loss
from orchestra_flwr.training import build_learner, train_round

SEED = ClientSeed(0, 1, "0")
LABELS = torch.tensor([2, -1, 0, 2, -1, 2, 0, 1, -1])  # class 1 has a single image


def cosine(first, second, group=WHOLE_BATCH):
    """SimSiam's, with outputs in the place of predictions."""
    return symmetric_negative_cosine((first, second), (second + 1, first - 1), group)


LOSSES = {
    "nt_xent": partial(nt_xent_loss, temperature=0.5),
    "infonce": partial(info_nce_loss, temperature=0.5),
    "spectral": spectral_contrastive_loss,
    "spectral ball": partial(spectral_contrastive_loss, norm="ball"),
    "simsiam": cosine,
}


def views(count=9, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(count, 6, generator=draw).requires_grad_() for _ in range(2)]


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_group_of_classes_is_the_sum_of_the_losses_of_each(loss):
    """Algorithm 2, group by group."""
    first, second = views()
    unlabelled, classes = groups_of(LABELS)

    def alone(label):
        chosen = label == LABELS
        return loss(first[chosen], second[chosen]).item()

    assert loss(first, second, group=unlabelled).item() == pytest.approx(alone(-1), rel=1e-5)
    expected = alone(0) + alone(1) + alone(2)
    assert loss(first, second, group=classes).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("label", [UNLABELLED, 3])
def test_one_group_is_the_whole_batch(loss, label):
    """Of one group the values are those of the loss without labels; that of the other one is 0."""
    first, second = views(7)
    groups = groups_of(torch.full((7,), label))
    whole, empty = groups if label == UNLABELLED else groups[::-1]
    assert loss(first, second, group=whole).item() == pytest.approx(loss(first, second).item())
    assert loss(first, second, group=empty).item() == 0
    ours = torch.autograd.grad(loss(first, second, group=whole), (first, second))
    plain = torch.autograd.grad(loss(first, second), (first, second))
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


@pytest.mark.parametrize("name", LOSSES)
def test_one_image_a_class_has_nothing_to_be_told_from(name):
    """The contrast is 0 then; spectral loss and SimSiam still bring its views together."""
    first, second = views(4)
    _, classes = groups_of(torch.arange(4))
    loss = LOSSES[name](first, second, group=classes)
    gradients = torch.autograd.grad(loss, (first, second))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    if name in ("nt_xent", "infonce"):
        assert loss.item() == 0 and not any(gradient.any() for gradient in gradients)
    else:
        assert all((gradient.abs().sum(1) > 0).all() for gradient in gradients)


def test_the_label_loss_is_a_cross_entropy_of_each_view():
    classifier, features = nn.Linear(6, 3), views()
    labelled = LABELS != UNLABELLED
    expected = 0.0
    for view in features:
        logs = classifier(view).log_softmax(1)
        picked = [-logs[i, label].item() for i, label in enumerate(LABELS.tolist()) if label >= 0]
        expected += sum(picked) / len(picked)
    loss = label_loss(classifier, features, LABELS, labelled)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    all_of_them = LABELS.clamp(min=0)
    plain = sum(F.cross_entropy(classifier(view), all_of_them) for view in features)
    same = label_loss(classifier, features, all_of_them, torch.ones(len(LABELS), dtype=bool))
    assert torch.allclose(same, plain)


def test_without_labelled_images_the_classifier_gets_a_gradient_of_zero():
    """An optimizer needs one for every tensor that is trained."""
    classifier = nn.Linear(6, 3)
    nobody = torch.full((4,), UNLABELLED)
    loss = label_loss(classifier, views(4), nobody, nobody != UNLABELLED)
    gradients = torch.autograd.grad(loss, list(classifier.parameters()))
    assert loss.item() == 0 and not any(gradient.any() for gradient in gradients)


def test_what_is_hidden_is_not_read():
    """Labels of images that are not chosen may be any number."""
    classifier, features = nn.Linear(6, 3), views()
    chosen = LABELS >= 0
    for garbage in (-7, 0, 2, 1000):
        labels = LABELS.masked_fill(~chosen, garbage)
        loss = label_loss(classifier, features, labels, chosen)
        assert torch.equal(loss, label_loss(classifier, features, LABELS, chosen))


def test_without_a_classifier_there_is_one_part():
    whole = losses_with_labels("x", lambda group: torch.ones(()), None, (), LABELS)
    assert whole.keys() == {"x"}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_no_shape_and_no_branch_depends_on_the_labels(loss):
    """So a step can be captured as a CUDA graph: tensors without values are enough to run it."""
    with FakeTensorMode() as mode:
        first, second, labels = (mode.from_tensor(tensor) for tensor in (*views(), LABELS))
        classifier, pseudo = nn.Linear(6, 3), torch.zeros(20, dtype=torch.int64)
        rows, row, population = torch.zeros(4, 6), *torch.ones(2, 1, dtype=torch.int64)
        targets = with_pseudo_labels(labels, pseudo, torch.arange(9))
        losses = losses_with_labels(
            "x", lambda of: loss(first, second, group=of), classifier, (first, second), targets
        )
        verified = user_verification_loss(
            first, rows, row, 0.1, population, mask=targets == UNLABELLED
        )
        torch.stack([*losses.values(), verified]).sum().backward()
        with pytest.raises(DynamicOutputShapeException):  # what must not happen is seen
            first[labels == 0]


# --- methods ----------------------------------------------------------------------------------

METHODS = ["simclr", "spectral", "simsiam"]
SHOWN = torch.arange(40) % 10
SHOWN[SHOWN.shape[0] // 4 :] = UNLABELLED


def trained(config, labels):
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=draw)
    learner = build_learner(config, 1)
    received = Received("0", 0, 1, images, None, 4)
    result = train_round(learner, images, config, SEED, labels=labels, received=received)
    return learner, result


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("weight", [0, 1])
def test_with_all_labels_hidden_training_is_that_without_labels(tiny, name, weight):
    """Bit for bit, also beside user verification; the classifier stays as it began."""
    chosen = [f"method={name}", f"terms.verification.weight={weight}", "training.local_epochs=2",
              "optimizer.weight_decay=0"]  # fmt: skip
    hidden = torch.full((40,), UNLABELLED)
    ours, result = trained(tiny(*chosen, "labels.fraction=0.1"), hidden)
    plain, expected = trained(tiny(*chosen), None)
    state = ours.trained()
    assert all(torch.equal(state[key], value) for key, value in plain.trained().items())
    start = build_learner(tiny(*chosen, "labels.fraction=0.1"), 1).trained()
    beside = state.keys() - plain.trained().keys()
    assert beside == {"classifier.weight", "classifier.bias"}
    assert all(torch.equal(state[key], start[key]) for key in beside)
    for part, value in expected.losses.items():
        assert result.losses[part] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "simclr",
        *(pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name != "simclr"),
    ],
)
def test_some_labels_teach_the_encoder(tiny, name):
    config = tiny(f"method={name}", "labels.fraction=0.25", "training.lr=0.001")
    ours, result = trained(config, SHOWN)
    (first, *others) = result.losses
    assert others == [f"{first}_class", "classification"]
    assert result.losses["classification"] > 0
    other, _ = trained(config, torch.where(SHOWN < 0, SHOWN, 9 - SHOWN))
    state = ours.trained()
    weight = next(key for key in state if key.startswith("backbone."))
    assert not torch.equal(state[weight], other.trained()[weight])
    longer = tiny(f"method={name}", "labels.fraction=0.25", "training.lr=0.001",
                  "training.local_epochs=15")  # fmt: skip
    _, again = trained(longer, SHOWN)
    assert again.losses["classification"] < result.losses["classification"]


def test_methods_that_cannot_learn_from_some_labels_say_so(tiny):
    for name, plugin in MethodConfig.room.found().items():
        if issubclass(plugin, LearnsLabels) or name == "mae":
            continue
        with pytest.raises(ConfigError, match=f"labels.fraction=0.1: must be null.*{name}"):
            tiny(f"method={name}", "labels.fraction=0.1")
    for wrong in ("0", "1.5", "-1", "some"):
        with pytest.raises(ConfigError, match=f"labels.fraction={wrong}"):
            tiny("method=simclr", f"labels.fraction={wrong}")


def test_without_labels_nothing_is_built(tiny):
    method = build_method(tiny("method=simclr"), 1)
    assert method.classifier is None and method.classification_head() is None
    assert not sees_labels(tiny("method=simclr"))
    some = build_method(tiny("method=simclr", "labels.fraction=1"), 1)
    assert some.classification_head().out_features == 10
    for key, value in method.state_dict().items():  # the classifier draws its weights last
        assert torch.equal(some.state_dict()[key], value)


def test_classes_must_be_known(tiny):
    photos = ("method=simclr", "labels.fraction=0.1", "data=image_folder", "data.root=x")
    with pytest.raises(ConfigError, match="method.classes: must be given"):
        build_method(tiny(*photos), 3)
    named = tiny(*photos, "method.classes=[cat,dog]")
    assert build_method(named, 3).classification_head().out_features == 2


def test_the_information_of_a_semi_supervised_step_is_bounded(tiny):
    config = tiny(
        "method=simclr", "labels.fraction=0.25", "terms.verification.weight=1",
        "terms.verification.images=all",
    )  # fmt: skip
    _, result = trained(config, SHOWN)
    assert result.measures["information"] <= math.log(16) + math.log(4)
