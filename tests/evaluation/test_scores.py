from types import SimpleNamespace

import pytest
import torch
from torch import nn

from orchestra_flwr import process_memory
from orchestra_flwr.config import AugmentationConfig, EvaluationConfig, ScoresConfig
from orchestra_flwr.data import load_dataset
from orchestra_flwr.evaluation import knn_accuracy, linear_accuracy
from orchestra_flwr.evaluation.few_labels import labelled_subset
from orchestra_flwr.evaluation.linear_probe import PENALTY, fit_linear_probe, standard_error
from orchestra_flwr.evaluation.published_probe import PUBLISHED_PROBES
from orchestra_flwr.evaluation.scores import evaluate, evaluate_by
from orchestra_flwr.models import Encoder, EncoderSpec, recalibrated
from orchestra_flwr.training import build_learner


class Pixels(nn.Module):
    def forward(self, images):
        return images.flatten(1).float() / 255


def striped(count, seed):
    """Images of 4 classes: the brightest row is the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = torch.randint(0, 150, (count, 1, 4, 4), generator=generator)
    images[torch.arange(count), 0, labels] += 100
    return images.to(torch.uint8), labels


def scored(encoder, train, test, **config):
    config = EvaluationConfig(every=1, batch_size=7, **config)
    return evaluate(encoder, train, test, config=config, augmentation=AugmentationConfig())


def test_scores_of_an_encoder_are_those_of_its_features():
    train, test = striped(200, 0), striped(100, 1)
    scores = scored(Pixels(), train, test, knn_k=5)
    x, queries = Pixels()(train[0]), Pixels()(test[0])
    assert scores["knn"] == knn_accuracy(x, train[1], queries, test[1], k=5, temperature=0.1)
    assert scores["linear"] == linear_accuracy(x, train[1], queries, test[1]) > 0.9
    assert 0 < scores["feature_std"] < 1
    assert scores["linear_penalty"] == fit_linear_probe(x, train[1]).penalty
    for key in ("knn", "linear"):
        assert scores[f"{key}_standard_error"] == standard_error(scores[key], 100)
    errors = {"knn_standard_error", "linear_standard_error"}
    of_features = {"feature_std", "effective_rank"}
    assert scores.keys() == {"knn", "linear", "linear_penalty"} | of_features | errors


def test_memory_is_kept_from_batch_to_batch_and_goes_back_when_the_features_are_made(monkeypatch):
    """Fetching the pages of each batch anew took a third of the features' time."""
    told = []
    libc = SimpleNamespace(
        mallopt=lambda parameter, _: told.append(parameter),
        malloc_trim=lambda _: told.append("return"),
    )
    monkeypatch.setattr(process_memory, "_libc", lambda: libc)
    hooked = Pixels()
    hooked.register_forward_hook(lambda *_: told.append("batch"))
    scored(hooked, striped(7, 0), striped(7, 1))  # a batch each
    kept = [process_memory.M_MMAP_MAX, process_memory.M_TRIM_THRESHOLD]
    assert told == [*kept, "batch", *kept, "batch", "return"]


def test_a_fixed_probe_is_as_it_was():
    """All of its probes have the penalty that was there before it could be chosen."""
    train, test = striped(200, 0), striped(100, 1)
    scores = scored(Pixels(), train, test, probe="fixed", few_labels=True)
    x, queries = Pixels()(train[0]), Pixels()(test[0])
    assert scores["linear"] == linear_accuracy(x, train[1], queries, test[1], PENALTY)
    assert "linear_penalty" not in scores
    few = labelled_subset(train[1], 0.1, 0)
    ten_percent = linear_accuracy(x[few], train[1][few], queries, test[1], PENALTY)
    assert scores["linear_10"] == ten_percent


def test_a_probe_on_the_labels_that_clients_show():
    train, test = striped(200, 0), striped(100, 1)
    shown = torch.zeros(200, dtype=torch.bool)
    shown[5::9] = True
    scores = evaluate(
        Pixels(), train, test, config=EvaluationConfig(every=1), shown=(shown, None),
        augmentation=AugmentationConfig(),
    )  # fmt: skip
    part = Pixels()(train[0])[shown], train[1][shown]
    expected = linear_accuracy(*part, Pixels()(test[0]), test[1])
    assert scores["linear_labelled"] == expected < scores["linear"]


def test_a_tenth_of_few_images_votes_at_most():
    """With 200 of 160 everybody votes, and every image gets the largest class."""
    train, test = striped(160, 0), striped(100, 1)
    x, queries = Pixels()(train[0]), Pixels()(test[0])
    expected = knn_accuracy(x, train[1], queries, test[1], k=16, temperature=0.1)
    assert scored(Pixels(), train, test, knn_k=200)["knn"] == expected


def test_the_published_probe_takes_the_place_of_the_converged_one(monkeypatch):
    monkeypatch.setitem(PUBLISHED_PROBES, "linear_published", lambda *a, **k: 0.25)
    monkeypatch.setitem(PUBLISHED_PROBES, "linear_dec_ssl", lambda *a, **k: 0.75)
    train, test = striped(60, 0), striped(30, 1)
    assert scored(Pixels(), train, test, probe="published")["linear"] == 0.25
    assert scored(Pixels(), train, test, probe="dec_ssl")["linear"] == 0.75
    assert scored(Pixels(), train, test)["linear"] != 0.25


def test_only_the_protocols_that_are_asked_for():
    train, test = striped(60, 0), striped(30, 1)
    scores = evaluate_by(
        Pixels(), train, test,
        protocols=("linear",), config=ScoresConfig(), augmentation=AugmentationConfig(),
    )  # fmt: skip
    of_probe = {"linear", "linear_penalty", "linear_standard_error"}
    assert scores.keys() == {"feature_std", "effective_rank"} | of_probe


def test_collapsed_features_are_seen():
    images, labels = torch.full((10, 1, 4, 4), 9, dtype=torch.uint8), torch.tensor([0, 1] * 5)
    scores = scored(Pixels(), (images, labels), (images, labels))
    assert scores["knn"] == scores["linear"] == 0.5
    assert scores["feature_std"] == pytest.approx(0, abs=1e-6)


def test_features_in_bfloat16_leave_the_figures_alone(tiny):
    """Of all digits, at most one test image counts otherwise."""
    config = tiny("method=simclr", "data.train_limit=null", "data.test_limit=null")
    dataset = load_dataset(config.data)
    train, test = ((part.images, part.labels) for part in (dataset.train, dataset.test))
    backbone = recalibrated(build_learner(config, 1).method.backbone, train[0], 256, "half")
    encoder = Encoder(EncoderSpec.of(config), backbone)
    passes = []

    def scored_in(precision):
        given = config.evaluation.model_copy(update={"precision": precision})
        passes.clear()
        return evaluate(
            encoder, train, test, config=given, augmentation=AugmentationConfig(),
            on_progress=lambda done, total: passes.append((done, total)),
        )  # fmt: skip

    exact, rounded = scored_in("float32"), scored_in("bfloat16")
    assert exact["feature_std"] != rounded["feature_std"]  # it really was rounded
    for key in ("knn", "linear"):
        assert rounded[key] == pytest.approx(exact[key], abs=1.01 / len(test[0]))
        assert exact[key] > 0.8
    total = len(train[0]) + len(test[0])
    assert passes[-1] == (total, total) and passes == sorted(passes)
