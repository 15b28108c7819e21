"""`evaluation.keep=best`: whole runs whose saved encoder is not that of the last round."""

import pytest
import torch
from safetensors.torch import load_file

from orchestra_flwr.config import ConfigError
from orchestra_flwr.data import load_dataset
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.federation.server.run_encoders import BestEncoder
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.training import build_learner, starting_learner

BEST = ("method=simclr", "evaluation.keep=best", "evaluation.every=1", "federation.clients=3")
BY_KNN = (*BEST, "evaluation.best_by=knn")


def keeping(monkeypatch, scores):
    """The rounds' kNN are these, whatever the encoder."""
    original = Evaluator.scores

    def scored(self, method, **options):
        original_scores = original(self, method, **options)
        round_ = 0 if options.get("untrained") else next(rounds)
        return {
            name: {**of_backbone, "knn": scores[round_]}
            for name, of_backbone in original_scores.items()
        }

    rounds = iter(range(1, len(scores)))
    monkeypatch.setattr(Evaluator, "scores", scored)


def weights(run):
    return load_file(run.folder.encoder)


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_the_encoder_of_the_best_round_is_saved(tiny, federate, tmp_path, monkeypatch):
    until_two = federate(tiny("method=simclr", "federation.clients=3", "federation.rounds=2"),
                         folder=RunFolder.create(tiny(f"run_dir={tmp_path / 'two'}")))  # fmt: skip
    keeping(monkeypatch, [0.3, 0.4, 0.6, 0.6, 0.5])
    run = federate(tiny(*BY_KNN, "federation.rounds=4"))
    assert equal(weights(run), weights(until_two))
    assert run.summary["kept_round"] == 2 and run.summary["kept_by"] == "knn"
    assert run.summary["knn"] == 0.6 and run.summary["rounds"] == 4
    assert run.summary["linear"] == run.records[2]["scores"]["online"]["linear"]
    assert run.summary["untrained"]["knn"] == 0.3
    described = (run.folder.path / "encoder.json").read_text()
    assert '"rounds": 2' in described


@pytest.mark.parametrize("back", [None, 1])
def test_a_resumed_run_remembers_the_best(back, tiny, federate, monkeypatch):
    """Also one that goes back to before it."""
    keeping(monkeypatch, [0.3, 0.6, 0.7, 0.4] + [0.5] * 4)
    config = tiny(*BY_KNN, "federation.rounds=2")
    run = federate(config)
    first, folder = weights(run), RunFolder.resume(run.folder.path, back)
    more = tiny(*BY_KNN, "federation.rounds=4")
    resumed = federate(more, folder=folder)
    assert resumed.summary["kept_round"] == (2 if back is None else 1)
    assert resumed.summary["knn"] == (0.7 if back is None else 0.6)
    assert equal(weights(resumed), first) == (back is None)


def test_the_last_round_of_a_run_that_gets_more_takes_part(tiny, federate, monkeypatch):
    """It would not have been evaluated otherwise: docs/training.md says so."""
    keeping(monkeypatch, [0.3, 0.6, 0.5, 0.4])
    seldom = [override for override in BY_KNN if not override.startswith("evaluation.every")]
    run = federate(tiny(*seldom, "evaluation.every=2", "federation.rounds=1"))
    more = tiny(*seldom, "evaluation.every=2", "federation.rounds=3")
    resumed = federate(more, folder=RunFolder.resume(run.folder.path))
    assert [bool(r.get("scores")) for r in resumed.records] == [True, True, True, True]
    assert resumed.summary["kept_round"] == 1 and resumed.summary["knn"] == 0.6


def test_a_run_that_only_harms_keeps_what_it_began_with(tiny, federate, monkeypatch):
    """With the BatchNorm statistics that were best before training."""
    keeping(monkeypatch, [0.9, 0.4, 0.5])
    config = tiny(*BY_KNN, "federation.rounds=2", "training.lr=3")
    run = federate(config)
    assert run.summary["kept_round"] == 0
    assert run.summary["linear"] == run.summary["untrained"]["linear"] > 0
    assert run.summary["batch_norm"] == run.summary["untrained"]["batch_norm"] == "recalibrated"
    begun = starting_learner(config, 1).method.backbone
    best = Evaluator(config, load_dataset(config.data)).encoder(begun, "recalibrated")
    assert equal(weights(run), best.backbone.state_dict())
    assert not equal(weights(run), begun.state_dict())


def test_without_images_of_the_servers_own_clients_choose(tiny, federate):
    config = tiny(*BEST, "evaluation.unsupervised=true", "evaluation.best_by=effective_rank")
    run = federate(config, evaluate=False)
    ranks = [record["unsupervised"]["effective_rank"] for record in run.records]
    ranks[0] = 0.0  # random weights do not take part
    assert run.summary["kept_round"] == ranks.index(max(ranks))
    assert run.summary["unsupervised"] == run.records[run.summary["kept_round"]]["unsupervised"]


def test_by_default_the_last_encoder_is_saved(tiny, federate, monkeypatch):
    keeping(monkeypatch, [0.9, 0.4, 0.5])
    run = federate(tiny("method=simclr", "federation.rounds=2", "evaluation.every=1"))
    assert run.summary["knn"] == 0.5 and "kept_round" not in run.summary
    assert not any(name.startswith("best/") for name in run.state)


def record(round_, **scores):
    return {"round": round_, "scores": {"online": scores}}


def test_the_first_of_equal_rounds_and_none_without_a_score(tiny):
    evaluator = Evaluator(tiny(*BY_KNN), None)
    backbone = build_learner(evaluator.config, 1).method.backbone
    best = BestEncoder(evaluator)
    best.consider({"round": 0}, "online", backbone)
    best.consider(record(1, linear=0.9), "online", backbone)
    best.consider(record(2, knn=float("nan")), "online", backbone)
    assert best.round is None and best.tensors() == {} and best.summary() == {}
    for round_, knn in ((3, 0.5), (4, 0.5), (5, 0.4)):
        best.consider(record(round_, knn=knn), "online", backbone)
    assert (best.round, best.score) == (3, 0.5)


@pytest.fixture
def resumed_best(tiny):
    """The best encoder of a run without images that is resumed after a round with this record."""
    evaluator = Evaluator(tiny(*BEST, "evaluation.unsupervised=true"), None)
    backbone = build_learner(evaluator.config, 1).method.backbone

    def make(first):
        best, resumed = BestEncoder(evaluator), BestEncoder(evaluator)
        best.consider(first, "online", backbone)
        resumed.load(best.position(), best.tensors())
        return resumed, backbone

    return make


def by_clients(round_, rank, **record):
    return {"round": round_, "unsupervised": {"effective_rank": rank}, **record}


def test_scores_on_the_servers_images_are_not_compared_with_those_of_clients(resumed_best):
    """Ranks of thousands of images are higher than those of a client's."""
    best, backbone = resumed_best(by_clients(1, 30.0))
    best.check()
    best.consider(by_clients(2, 20.0, **record(2, effective_rank=300.0)), "online", backbone)
    assert (best.round, best.score) == (1, 30.0)
    best.consider(by_clients(3, 31.0, **record(3, effective_rank=200.0)), "online", backbone)
    assert (best.round, best.score) == (3, 31.0)


def test_images_by_which_the_best_encoder_was_chosen_must_still_be_there(resumed_best):
    best, backbone = resumed_best(by_clients(1, 30.0, **record(1, effective_rank=300.0)))
    with pytest.raises(FederationError, match=r"no images of its own \(data.root\), on which"):
        best.check()
    best.consider(by_clients(2, 400.0), "online", backbone)
    assert (best.round, best.score) == (1, 300.0)


def test_a_checkpoint_of_an_earlier_version_does_not_say_whose_score_it_has(resumed_best):
    best, backbone = resumed_best({"round": 1})
    best.load({"round": 1, "score": 30.0}, {})
    best.check()
    best.consider(record(2, effective_rank=300.0), "online", backbone)
    assert (best.round, best.score) == (2, 300.0)


@pytest.mark.parametrize("trained", [False, True])
def test_random_weights_take_part_only_by_labels(trained, tiny, federate):
    start = [f"init={federate(tiny('method=simclr')).folder.path}"] if trained else []
    for by, counts in (("effective_rank", trained), ("linear", True)):
        evaluator = Evaluator(tiny(*BEST, f"evaluation.best_by={by}", *start), None)
        best = BestEncoder(evaluator)
        best.consider(
            record(0, **{by: 1.0}), "online", build_learner(evaluator.config, 1).method.backbone
        )
        assert (best.round == 0) == counts


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["exchange=clusters", "evaluation.best_by=knn"], "must be last with exchange=clusters"),
        (
            ["evaluation.best_by=score"],
            "score: needs evaluation.unsupervised.* or evaluation.keep=last",
        ),
    ],
)
def test_what_cannot_be_chosen_by_is_refused(overrides, says, tiny):
    with pytest.raises(ConfigError, match=says):
        tiny("evaluation.keep=best", *overrides)


@pytest.mark.parametrize("by", ["knn", "linear", "effective_rank"])
def test_labels_that_are_not_there_are_refused_before_the_first_round(by, tiny):
    evaluator = Evaluator(tiny(*BEST, f"evaluation.best_by={by}"), None)
    with pytest.raises(
        FederationError, match=f"best_by={by}: the server has no images.*keep=last$"
    ):
        BestEncoder(evaluator).check()
    BestEncoder(Evaluator(tiny(), None)).check()
