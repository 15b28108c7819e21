"""SemiFed: the model that a round starts from labels the images that nobody has labelled."""

import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import UNLABELLED
from orchestra_flwr.methods import Batch, Received
from orchestra_flwr.methods.families.classifying import (
    class_probabilities,
    confident_classes,
    with_pseudo_labels,
)
from orchestra_flwr.models import recalibrated
from orchestra_flwr.models.batch_norm import has_statistics
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round

SEED = ClientSeed(0, 1, "0")
LABELS = torch.tensor([4, -1, -1, 7, -1, -1, -1, -1])


def images(count=8):
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=draw)


def test_only_confident_classes_are_taken():
    probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.05, 0.95], [0.5, 0.5]])
    assert confident_classes(probabilities, 0.9).tolist() == [-1, -1, 1, -1]
    assert confident_classes(probabilities, 0.5).tolist() == [0, 1, 1, -1]


def test_labels_come_before_guesses():
    pseudo = torch.tensor([5, 6, -1, 5, 5])
    chosen = torch.tensor([3, 0, 2])
    labels = torch.tensor([1, -1, -1])
    assert with_pseudo_labels(labels, pseudo, chosen).tolist() == [1, 5, -1]
    assert with_pseudo_labels(labels, None, chosen) is labels


def test_probabilities_are_those_of_evaluation_mode(tiny):
    """No image's depends on the others, and nothing of the model is changed."""
    learner = build_learner(tiny("method=semifed", "labels.fraction=0.1"), 1).train()
    method = learner.method
    state = {name: value.clone() for name, value in method.state_dict().items()}
    arguments = (method.backbone, method.classifier)
    together = class_probabilities(*arguments, images(), "half", 4)
    alone = class_probabilities(*arguments, images()[5:6], "half", 4)
    assert together.shape == (8, 10) and torch.allclose(together.sum(1), torch.ones(8))
    torch.testing.assert_close(together[5:6], alone)
    assert method.backbone.training and not together.requires_grad
    assert all(torch.equal(state[name], value) for name, value in method.state_dict().items())


@pytest.mark.parametrize("threshold", [0, 0.999])
def test_both_views_tell_labels_and_guesses(tiny, threshold):
    config = tiny("method=semifed", "labels.fraction=0.1", f"method.threshold={threshold}")
    method = build_learner(config, 1).method
    method.start_round(Received("0", 0, 1, images()))
    guesses = class_probabilities(method.backbone, method.classifier, images(), "half", 16)
    rows = torch.tensor([6, 3, 0, 1])
    views = tuple(torch.rand(4, 1, 8, 8, generator=SEED.generator(n)) for n in "ab")
    batch = Batch(rows, views, (None, None), SEED.generator("loss"), LABELS[rows])
    losses = method.eval().loss(batch).losses
    logits = [method.classifier(method.backbone(view)) for view in views]
    expected = sum(F.cross_entropy(view_logits[1:3], LABELS[[3, 0]]) for view_logits in logits)
    assert losses["classification"].item() == pytest.approx(expected.item(), rel=1e-5)
    guessed = guesses.argmax(1)[[6, 1]]
    expected = sum(F.cross_entropy(view_logits[[0, 3]], guessed) for view_logits in logits)
    above = expected.item() if threshold == 0 else 0
    assert losses["pseudo_labels"].item() == pytest.approx(above, rel=1e-5)


def test_guesses_stay_for_the_whole_round(tiny):
    """They are made before the first step: what is learned changes none of them."""
    config = tiny("method=semifed", "labels.fraction=0.1", "method.threshold=0",
                  "training.local_epochs=3", "training.lr=0.3")  # fmt: skip
    learner = build_learner(config, 1)
    first = class_probabilities(
        learner.method.backbone, learner.method.classifier, images(), "half", 16
    ).argmax(1)
    result = train_round(learner, images(), config, SEED, labels=LABELS)
    assert result.steps == 3
    assert torch.equal(learner.method._pseudo, first)
    assert UNLABELLED not in first.tolist()


@pytest.mark.parametrize("method", ["semifed", "cbafed"])
def test_a_client_new_to_a_run_with_own_norms_guesses_with_statistics_of_its_images(tiny, method):
    """Its BatchNorm is as it was before training: all else that it receives is trained."""
    config = tiny(f"method={method}", "labels.fraction=0.1", "merging=fedbn")
    new = build_learner(config, 1).method
    backbone = recalibrated(new.backbone, images(), 16, "half")
    expected = class_probabilities(backbone, new.classifier, images(), "half", 16)
    seen = []
    new.pseudo_labels = seen.append
    new.start_round(Received("0", 0, 1, images()))
    torch.testing.assert_close(seen[0], expected)
    assert not has_statistics(new.backbone)
    new.backbone.load_state_dict(backbone.state_dict())  # from its second round on
    new.start_round(Received("0", 0, 1, images()[:4]))
    torch.testing.assert_close(seen[1], expected[:4])


@pytest.mark.parametrize("method", ["semifed", "cbafed"])
def test_nothing_is_guessed_where_all_images_have_labels(tiny, method):
    config = tiny(f"method={method}")
    learner = build_learner(config, 1)
    learner.method.backbone.register_forward_hook(lambda *_: pytest.fail("a pass for nothing"))
    everything = LABELS.where(LABELS != UNLABELLED, 0)
    learner.method.start_round(Received("a", 0, 1, images(), labels=everything))


@pytest.mark.parametrize("method", ["semifed", "cbafed"])
def test_guesses_with_statistics_of_no_images_are_refused(tiny, method):
    """With a clip nobody averages BatchNorm's statistics: the received ones are the initial."""
    some = (f"method={method}", "labels.fraction=0.1", "federation.weighting=uniform")
    clipped = (*some, "privacy.clip=1")
    says = rf"clip=1: must be null with method={method} labels\.fraction=0\.1 and BatchNorm"
    with pytest.raises(ConfigError, match=says):
        tiny(*clipped)
    for allowed in ("model.norm=group", "model=cct", "merging=fedbn", "labels.fraction=null"):
        tiny(*clipped, allowed)
    tiny(*some)
