import math
import threading
from dataclasses import replace

import pytest
import torch

from orchestra_flwr.data import load_dataset
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.models import recalibrated
from orchestra_flwr.training import build_learner, torch_threads

SCORES = {
    "knn", "knn_standard_error", "linear", "linear_standard_error", "linear_penalty", "feature_std",
    "effective_rank",
}  # fmt: skip


def test_scores_of_both_backbones_leave_the_method_as_it_was(tiny):
    config = tiny()
    method = build_learner(config, 1).method.train()
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    scores = Evaluator(config, load_dataset(config.data)).scores(method)
    assert set(scores) == {"target", "online"}
    assert "initial_statistics" not in scores["target"]
    assert scores["target"] == scores["online"]  # equal at the beginning
    assert 0.3 < scores["target"]["knn"] <= 1 and 0.5 < scores["target"]["linear"] <= 1
    assert method.training and all(p.requires_grad for p in method.backbone.parameters())
    assert all(torch.equal(before[name], t) for name, t in method.state_dict().items())


def test_too_many_voters_are_said(tiny):
    config = tiny("evaluation.knn_k=13")
    data = load_dataset(config.data)  # 120 training images
    assert "only 12 of the 120 training images" in Evaluator(config, data).fewer_voters
    assert Evaluator(tiny("evaluation.knn_k=12"), data).fewer_voters is None
    assert Evaluator(config, None).fewer_voters is None


def test_without_test_images_a_share_is_suggested(tiny):
    config = tiny()
    data = replace(load_dataset(config.data), test=None)
    assert "(data.test_share=0.2 holds back a fifth" in Evaluator(config, data).why_not


def as_dataset(config, images):
    """The run's images, of the training images so many."""
    dataset = load_dataset(config.data)
    return replace(dataset, train=dataset.train.select(torch.arange(images)))


def test_statistics_are_not_taken_from_a_single_image(tiny):
    """Before training all scores with BatchNorm need them; without it one image will do."""
    config = tiny()
    method = build_learner(config, 1).method
    evaluator = Evaluator(config, as_dataset(config, 1))
    assert "one training image with a label is too few" in evaluator.why_not
    assert evaluator.scores(method, untrained=True) is None
    assert Evaluator(config, as_dataset(config, 2)).scores(method, untrained=True)
    config = tiny("model.norm=group")
    evaluator = Evaluator(config, as_dataset(config, 1))
    assert evaluator.why_not is None
    assert evaluator.scores(build_learner(config, 1).method, untrained=True)


def test_a_limit_bounds_training_and_test_images(tiny):
    config = tiny("evaluation.limit=40")
    method, images = build_learner(config, 1).method, load_dataset(config.data)
    evaluator = Evaluator(config, images)
    assert (len(images.train), len(images.test)) == (120, 60)
    assert (len(evaluator.dataset.train), len(evaluator.dataset.test)) == (40, 40)
    knn = evaluator.scores(method)["online"]["knn"]
    assert (knn * 40) == pytest.approx(round(knn * 40))  # a share of 40 test images


def test_features_that_are_not_finite_are_told(tiny):
    config = tiny()
    method = build_learner(config, 1).method
    with torch.no_grad():
        next(method.target_backbone.parameters()).fill_(torch.inf)
    with pytest.raises(FederationError, match="the encoder cannot be evaluated"):
        Evaluator(config, load_dataset(config.data)).scores(method)


def test_a_recalibrated_encoder_has_the_same_bits_whatever_the_threads_of_this_process(tiny):
    config = tiny("merging=fedbn")
    backbone = build_learner(config, 1).method.backbone
    evaluator = Evaluator(config, load_dataset(config.data))
    states = []
    for threads in (1, 2):
        with torch_threads(threads):
            states.append(evaluator.encoder(backbone).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_statistics_are_taken_where_encoders_are_evaluated(tiny, monkeypatch):
    """A GPU does in seconds what one core of the server does in minutes."""
    config, devices = tiny("model.batch_norm=recalibrated"), []
    chosen = torch.device("cuda" if torch.cuda.is_available() else "cpu", 0)

    def noted(*given, device):
        devices.append(device)
        return recalibrated(*given, device=device)

    monkeypatch.setattr("orchestra_flwr.federation.server.evaluator.recalibrated", noted)
    monkeypatch.setattr(
        "orchestra_flwr.federation.server.evaluator.resolve_device", lambda name: chosen
    )
    backbone = build_learner(config, 1).method.backbone
    encoder = Evaluator(config, load_dataset(config.data)).encoder(backbone)
    assert devices == [chosen]
    assert all(t.device.type == "cpu" for t in encoder.state_dict().values())


def test_an_untrained_encoder_is_judged_with_statistics_of_images(tiny):
    """Otherwise any training looks good: BatchNorm begins with statistics of no images."""
    config = tiny()
    method = build_learner(config, 1).method
    dataset = load_dataset(config.data)
    evaluator = Evaluator(config, dataset)
    initial = evaluator.scores(method)["online"]
    untrained = evaluator.scores(method, untrained=True)["online"]
    assert untrained.pop("initial_statistics") == initial
    assert untrained.pop("batch_norm") == "recalibrated"
    with torch_threads(config.training.threads):
        backbone = recalibrated(
            method.backbone, dataset.train.images, config.evaluation.batch_size, "half"
        )
    method.backbone.load_state_dict(backbone.state_dict())
    assert untrained == evaluator.scores(method)["online"] != initial


@pytest.mark.parametrize(
    ("of_loaded", "of_recalibrated", "loaded_is_better"),
    [(0.6, 0.5, True), (0.4, 0.5, False), (0.6, math.nan, True), (math.nan, 0.5, False)],
)
def test_before_training_stands_the_better_of_loaded_and_recalibrated(
    tiny, monkeypatch, of_loaded, of_recalibrated, loaded_is_better
):
    """A pretrained network's own statistics may be far better than the server's."""
    config = tiny("method=simclr")
    method = build_learner(config, 1).method
    for name, tensor in method.backbone.named_buffers():
        if "running_mean" in name:
            tensor.fill_(0.1)
    loaded = {"knn": 0.4, "linear": of_loaded}
    recalibrated_ = {"knn": 0.5, "linear": of_recalibrated}

    def score(self, name, encoder, head):
        means = [b for n, b in encoder.named_buffers() if "running_mean" in n]
        return dict(loaded if all((mean == 0.1).all() for mean in means) else recalibrated_)

    monkeypatch.setattr(Evaluator, "_score", score)
    scores = Evaluator(config, load_dataset(config.data)).scores(method, untrained=True)["online"]
    better, other = ("loaded", "recalibrated") if loaded_is_better else ("recalibrated", "loaded")
    by_kind = {"loaded": loaded, "recalibrated": recalibrated_}
    assert scores.pop("batch_norm") == better
    assert scores.pop(f"{other}_statistics") == by_kind[other]
    assert scores == by_kind[better]


def test_frozen_statistics_are_those_of_every_score(tiny):
    """They are of images already, so an untrained encoder has them, and one image will do."""
    config = tiny("model.batch_norm=frozen", "method=simclr", "evaluation.few_labels=false")
    method = build_learner(config, 1).method
    for name, tensor in method.backbone.named_buffers():
        if "running_" in name:
            tensor.uniform_(0.5, 2)
    evaluator = Evaluator(config, load_dataset(config.data))
    scores = evaluator.scores(method, untrained=True)["online"]
    assert scores.pop("batch_norm") == "frozen"
    assert scores == evaluator.scores(method)["online"]
    free = Evaluator(tiny("method=simclr"), load_dataset(config.data))
    assert scores != free.scores(method, untrained=True)["online"]
    assert Evaluator(config, as_dataset(config, 1)).why_not is None


def test_test_images_of_other_classes_are_evaluated_but_by_the_classifier(tiny):
    """A real server's labelled images may have a class that no client learns."""
    config = tiny("method=supervised", "method.classes=[a,b]", "evaluation.probe=converged")
    method = build_learner(config, 1).method
    scores = Evaluator(config, load_dataset(config.data)).scores(method)["online"]
    assert scores.keys() == SCORES
    named = tiny("method=supervised", "evaluation.probe=converged")
    method = build_learner(named, 1).method
    scores = Evaluator(named, load_dataset(named.data)).scores(method)["online"]
    assert scores.keys() == SCORES | {"accuracy"}


def test_backbones_of_equal_weights_are_evaluated_once(tiny, monkeypatch):
    config = tiny()
    method = build_learner(config, 1).method
    evaluator = Evaluator(config, load_dataset(config.data))
    calls = []
    score = Evaluator._score
    monkeypatch.setattr(
        Evaluator, "_score", lambda self, *given: calls.append(given) or score(self, *given)
    )
    evaluator.scores(method)
    assert len(calls) == 1
    with torch.no_grad():
        next(method.backbone.parameters()).mul_(2)
    evaluator.scores(method)
    assert len(calls) == 2  # the target's weights are still those of the first time
    evaluator.scores(method, untrained=True)
    assert len(calls) == 6  # with statistics of images and as they are, of both backbones


def test_the_memory_of_scores_has_an_end(tiny, monkeypatch):
    monkeypatch.setattr("orchestra_flwr.federation.server.evaluator.MAX_REMEMBERED", 2)
    config = tiny("method=simclr")
    method = build_learner(config, 1).method
    evaluator = Evaluator(config, load_dataset(config.data))
    scores = []
    for _ in range(4):
        scores.append(evaluator.scores(method))
        assert len(evaluator._remembered) <= 2
        with torch.no_grad():
            next(method.backbone.parameters()).add_(0.5)
    assert len({str(of_round) for of_round in scores}) > 1


def test_in_mid_run_only_the_kept_backbone_is_evaluated(tiny):
    config = tiny("evaluation.backbone=online")
    method = build_learner(config, 1).method
    with torch.no_grad():
        next(method.backbone.parameters()).mul_(2)
    evaluator = Evaluator(config, load_dataset(config.data))
    kept_scores = evaluator.scores(method, kept_only=True)
    assert list(kept_scores) == ["online"]
    assert list(evaluator.scores(method)) == ["online", "target"]
    assert evaluator.scores(method)["online"] == kept_scores["online"]


def test_features_are_made_once_for_all_scores(tiny):
    """kNN, probe, spread and the classifier's accuracy: one pass of each image."""
    config = tiny("method=supervised", "model.norm=group")
    method, dataset = build_learner(config, 1).method, load_dataset(config.data)
    images, seen = [], []
    evaluator = Evaluator(config, dataset, lambda *given: seen.append(given))
    encoder = evaluator.encoder(method.backbone)
    encoder.backbone.register_forward_hook(lambda *given: images.append(len(given[1][0])))
    head = method.classification_head()
    assert "accuracy" in evaluator._score("online", encoder, head)
    count = len(dataset.train.images) + len(dataset.test.images)
    assert sum(images) == count
    assert seen[-1] == ("online", count, count)
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})


@pytest.mark.parametrize(
    ("overrides", "images", "says"),
    [
        ([], 120, "averaged"),
        (["merging=fedbn"], 2, "recalibrated"),
        (["merging=fedbn"], 1, "initial"),
        (["merging=fedbn"], 0, "initial"),
        (["privacy.clip=1", "federation.weighting=uniform"], 120, "recalibrated"),
        (["privacy.clip=1", "federation.weighting=uniform"], 1, "initial"),
        (["privacy.clip=1", "federation.weighting=uniform"], 0, "initial"),
        (["privacy.clip=1", "federation.weighting=uniform", "model.norm=group"], 120, "none"),
        (["model.batch_norm=recalibrated"], 120, "recalibrated"),
        (["model.batch_norm=local"], 120, "recalibrated"),
        (["model.batch_norm=frozen"], 120, "frozen"),
        (["model.batch_norm=frozen"], 0, "frozen"),
    ],
)
def test_which_batch_norm_an_encoder_has(tiny, overrides, images, says):
    config = tiny(*overrides)
    evaluator = Evaluator(config, as_dataset(config, images) if images else None)
    assert evaluator.batch_norm == says
    backbone = build_learner(config, 1).method.backbone
    statistics = [b for n, b in evaluator.encoder(backbone).named_buffers() if "running_mean" in n]
    assert all(bool(b.any()) == (says == "recalibrated") for b in statistics)
    assert bool(statistics) == (says != "none")


def test_what_was_begun_beside_is_waited_for_and_not_done_again(tiny, monkeypatch):
    config = tiny("method=byol")
    images, method = load_dataset(config.data), build_learner(config, 1).method
    expected = Evaluator(config, images).scores(method, untrained=True)
    began, may_end, threads = threading.Event(), threading.Event(), []

    def look(*_):
        threads.append(threading.current_thread())
        began.set()
        assert may_end.wait(60)

    evaluator = Evaluator(config, images, look)
    with evaluator.beside(method):
        assert began.wait(60)
        threading.Timer(0.1, may_end.set).start()
        assert evaluator.scores(method, untrained=True) == expected
        seen = len(threads)
        assert evaluator.scores(method, untrained=True) == expected
    assert len(threads) == seen and threading.current_thread() not in threads


def test_an_evaluation_beside_ends_with_the_block(tiny):
    """As when the engine does not start: nobody waits for a large encoder's scores."""
    config = tiny("evaluation.batch_size=10")
    began, may_go_on, passed = threading.Event(), threading.Event(), []

    def look(*given):
        passed.append(given)
        began.set()
        assert may_go_on.wait(60)

    evaluator = Evaluator(config, load_dataset(config.data), look)
    with pytest.raises(KeyboardInterrupt), evaluator.beside(build_learner(config, 1).method):
        assert began.wait(60)
        threading.Timer(0.1, may_go_on.set).start()
        raise KeyboardInterrupt
    assert len(passed) == 1


def test_what_fails_beside_fails_where_it_is_waited_for(tiny):
    config = tiny("model.norm=group")
    method = build_learner(config, 1).method
    with torch.no_grad():
        next(method.backbone.parameters()).fill_(torch.nan)
    evaluator = Evaluator(config, load_dataset(config.data))
    with evaluator.beside(method), pytest.raises(FederationError, match="cannot be evaluated"):
        evaluator.scores(method, untrained=True)


def test_images_without_labels_are_scored_where_that_is_asked_for(tiny):
    config = tiny("evaluation.unsupervised=true")
    data = load_dataset(config.data)
    method = build_learner(config, 1).method
    unlabelled = replace(data, train=replace(data.train, labels=None), test=None)
    evaluator = Evaluator(config, unlabelled)
    before = evaluator.scores(method, untrained=True)["target"]
    assert before["batch_norm"] == "recalibrated"  # the initial statistics are of no images
    assert before["effective_rank"] > 1 and "knn" not in before and "linear" not in before
    scores = evaluator.scores(method, kept_only=True)["target"]
    assert scores == {**scores, **before["initial_statistics"]} != before
    assert Evaluator(config, unlabelled).scores(method)["target"] == scores  # the same draws
    both = Evaluator(config, data).scores(method)["target"]
    assert both["knn"] > 0 and both["score"] != scores["score"]  # test images
    assert Evaluator(tiny(), unlabelled).scores(method) is None
    one = replace(unlabelled, train=unlabelled.train.select(torch.tensor([0])))
    assert Evaluator(config, one).scores(method, untrained=True) is None  # BatchNorm needs two
