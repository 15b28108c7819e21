"""CBAFed: thresholds for each class from what all clients used, and second choices of rare ones."""

import statistics

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import UNLABELLED
from orchestra_flwr.methods import Received, Role, release_of
from orchestra_flwr.methods.cbafed import COUNTS, CBAFed, balanced_classes, class_thresholds
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, observe_round, train_round

SEED = ClientSeed(0, 1, "0")


def test_thresholds_follow_the_shares_of_the_classes():
    shares = [0.1, 0.02, 0.3, 0.18]
    thresholds = class_thresholds(torch.tensor(shares), 0.84, 0.95).tolist()
    spread = statistics.pstdev(shares)
    assert thresholds == pytest.approx([min(q + 0.84 - spread, 0.95) for q in shares])
    assert thresholds[2] == pytest.approx(0.95) and thresholds[1] == min(thresholds)
    even = class_thresholds(torch.full((10,), 0.1), 0.84, 0.95)
    assert torch.allclose(even, torch.tensor(0.94))  # base + share: no spread


def slow_choice(row, shares, thresholds, rare):
    """One image's pseudo-label."""
    first, second = sorted(range(len(row)), key=lambda c: -row[c])[:2]
    if row[first] > thresholds[first]:
        return first
    return second if shares[second] < rare else UNLABELLED


def test_an_image_is_used_above_the_threshold_or_for_a_rare_class():
    draw = torch.Generator().manual_seed(0)
    probabilities = (4 * torch.randn(400, 5, generator=draw)).softmax(1)
    shares = torch.tensor([0.3, 0.02, 0.1, 0.01, 0.07])
    thresholds = torch.tensor([0.9, 0.7, 0.8, 0.75, 0.85])
    chosen = balanced_classes(probabilities, shares, thresholds, 0.03).tolist()
    rows = [row.tolist() for row in probabilities]
    expected = [slow_choice(r, shares.tolist(), thresholds.tolist(), 0.03) for r in rows]
    assert chosen == expected
    assert {UNLABELLED, 0, 1, 2, 3, 4} == set(chosen)
    common = balanced_classes(probabilities, shares, thresholds, rare=0).tolist()
    assert common.count(UNLABELLED) > chosen.count(UNLABELLED) > 0


def images(count=30):
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=draw)


def labelled(*known):
    labels = torch.full((30,), UNLABELLED)
    labels[: len(known)] = torch.tensor(known)
    return labels


def test_the_server_begins_with_the_labels_of_all_clients(tiny):
    """Before training nothing is guessed; shares are scaled to ten classes."""
    config = tiny("method=cbafed", "labels.fraction=0.1")
    learner = build_learner(config, 1)
    assert learner.state(Role.SERVER).keys() == {"shares"}
    release = release_of(config)
    assert release.first_round == 0 and release.rows == {COUNTS: (1, 10)}
    before = {name: value.clone() for name, value in learner.trained().items()}
    rows = []
    for known in ((3, 3, 9), (0,)):
        received = Received("0", 0, 0, images())
        result = observe_round(
            learner, images(), config, SEED, labels=labelled(*known), received=received
        )
        rows.append(result.contribution.arrays[COUNTS])
    assert rows[0].tolist() == [[0, 0, 0, 2, 0, 0, 0, 0, 0, 1]]
    assert all(torch.equal(before[name], value) for name, value in learner.trained().items())
    learner.method.update_server_state({COUNTS: torch.cat(rows)}, torch.Generator())
    assert learner.method.shares.tolist() == pytest.approx([0.25, 0, 0, 0.5, *[0] * 5, 0.25])


def test_a_client_counts_the_images_that_it_uses(tiny):
    """Its labels and its pseudo-labels: with thresholds of 0 every image, with 1 the labels."""
    for upper, used in ((0, 30), (1, 2)):
        config = tiny("method=cbafed", "labels.fraction=0.1", f"method.upper={upper}",
                      "method.rare=0", f"method.base={upper}")  # fmt: skip
        learner = build_learner(config, 1)
        learner.method.shares.fill_(0.1)
        result = train_round(learner, images(), config, SEED, labels=labelled(3, 9))
        counts = result.contribution.arrays[COUNTS]
        assert counts.shape == (1, 10) and counts.sum() == used
        assert counts[0, 3] >= 1 and counts[0, 9] >= 1
        assert torch.isfinite(torch.tensor(list(result.losses.values()))).all()


def test_noise_is_refused_because_counts_have_none(tiny):
    private = ("privacy.clip=1", "privacy.noise_multiplier=1", "federation.weighting=uniform")
    with pytest.raises(
        ConfigError,
        match=r"noise_multiplier=1: must be 0 with method=cbafed, whose clients send class counts",
    ):
        tiny("method=cbafed", *private)
    assert tiny("method=semifed", *private).privacy.noise_multiplier == 1


def test_clients_without_any_label_count_none(tiny):
    config = tiny("method=cbafed", "labels.fraction=1")
    learner = build_learner(config, 1)
    received = Received("0", 0, 0, images())
    nobody = observe_round(learner, images(), config, SEED, labels=labelled(), received=received)
    assert nobody.contribution.arrays[COUNTS].tolist() == [[0] * 10]
    learner.method.update_server_state(nobody.contribution.arrays, torch.Generator())
    assert not learner.method.shares.any()


def test_gradients_are_clipped_to_their_norm_of_all_tensors_together(tiny):
    """With a step of 1 and no momentum, weights move by the gradient: by 5, .5 or all of it."""
    moved = {}
    for norm in ("5", "0.5", "null"):
        config = tiny("method=cbafed", "labels.fraction=0.1", f"method.clip_gradients={norm}",
                      "training.lr=1", "training.local_epochs=1", "training.batch_size=64",
                      "optimizer.momentum=0", "optimizer.weight_decay=0")  # fmt: skip
        learner = build_learner(config, 1)
        with torch.no_grad():
            learner.method.classifier.weight.mul_(100)  # steep enough for 5 to bind
        before = {name: value.clone() for name, value in learner.trained().items()}
        train_round(learner, images(), config, SEED, labels=labelled(*range(10), *range(10)))
        steps = [value - before[name] for name, value in learner.trained().items()]
        moved[norm] = float(torch.stack([step.norm() for step in steps]).norm())
    assert moved["null"] > 6
    assert moved["5"] == pytest.approx(5, rel=1e-3)
    assert moved["0.5"] == pytest.approx(0.5, rel=1e-3)


def test_a_client_weighs_by_the_images_that_it_used():
    weight = CBAFed.weight
    assert weight(30, {COUNTS: torch.tensor([[2.0, 0, 5]])}) == 7
    assert weight(30, {COUNTS: torch.tensor([[1e30, 0, 0]])}) == 30  # no taking over of the mean
    assert weight(30, {COUNTS: torch.zeros(1, 3)}) == 1  # a mean of nobody is none
    assert weight(30, {COUNTS: torch.zeros(0, 3)}) == 1
