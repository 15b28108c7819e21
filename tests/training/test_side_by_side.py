"""Clients side by side: the same numbers as one after another, but for the order of additions."""

import copy
import threading
from functools import partial

import pytest
import torch

from orchestra_flwr import simulate
from orchestra_flwr.config import ConfigError, load_config
from orchestra_flwr.config.choices import MethodConfig
from orchestra_flwr.methods import Received, SupportsVmap
from orchestra_flwr.models import normalise
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import (
    TrainingError,
    build_learner,
    side_by_side,
    train_round,
)

METHODS = sorted(
    name for name, each in MethodConfig.room.found().items() if issubclass(each, SupportsVmap)
)
SIZES = (24, 24, 17)  # the third has other batches, and fewer of them
COMBINATIONS = [
    *((f"method={name}",) for name in METHODS),
    ("method=simclr", "terms.verification.weight=1"),
    ("method=simclr", "labels.fraction=0.5"),
    ("method=swav", "method.queue=20"),
    ("method=orchestra", "method.target=false", "optimizer=adam"),
    ("method=byol", "model=resnet18"),
    ("method=simsiam", "model.norm=group"),
    ("method=orchestra", "adaptation=blocks"),
    ("method=byol", "adaptation=norms"),
    ("method=simclr", "adaptation=head"),
    ("method=orchestra", "adaptation=lora"),
    ("method=byol", "adaptation=lora", "adaptation.alternate=true"),
]


@pytest.fixture(autouse=True)
def doubles(monkeypatch):
    """In float64, where another order of additions stays far from what steps make of it."""
    monkeypatch.setattr(
        "orchestra_flwr.training.step.normalise", lambda *given: normalise(*given).double()
    )


def clients(config):
    """The learners and the rounds of three clients that differ in all that may differ."""
    learners, rounds = [], []
    for k, size in enumerate(SIZES):
        images = torch.randint(0, 256, (size, 1, 8, 8), generator=torch.Generator().manual_seed(k))
        labels = torch.arange(size) % 10
        learner = build_learner(config, 1).double()
        for name, tensor in learner.method.named_buffers():
            if name == "global_centroids":
                tensor.normal_(generator=torch.Generator().manual_seed(7))
        received = Received(str(k), k, 1, images.byte(), population=3)
        learners.append(learner)
        rounds.append(
            partial(
                train_round, config=config, seed=ClientSeed(0, 1, str(k)), images=images.byte(),
                labels=labels, received=received,
            )
        )  # fmt: skip
    return learners, rounds


def assert_close(found, expected):
    tensors = found.state_dict()
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(tensors[name], tensor, rtol=1e-5, atol=1e-7, msg=name)


def trained(learners, rounds, together):
    learners = copy.deepcopy(learners)
    works = [partial(each, learner) for each, learner in zip(rounds, learners, strict=True)]
    results = side_by_side(works) if together else [work() for work in works]
    return learners, results


@pytest.mark.parametrize("chosen", COMBINATIONS, ids=" ".join)
def test_steps_taken_as_one_are_those_of_each_client(tiny, chosen):
    if "adaptation=lora" in chosen:
        pytest.importorskip("peft", reason="needs the extra timm")
    config = tiny("training.batch_size=8", "training.lr=0.003", *chosen)
    learners, rounds = clients(config)
    alone, results = trained(learners, rounds, together=False)
    beside, found = trained(learners, rounds, together=True)
    for start, one, other in zip(learners, alone, beside, strict=True):
        assert_close(other, one)
        pairs = zip(start.parameters(), other.parameters(), strict=True)
        assert any(not torch.equal(before, after) for before, after in pairs)
    for one, other in zip(results, found, strict=True):
        assert other.steps == one.steps
        assert other.losses == pytest.approx(one.losses, rel=1e-6)
        assert other.measures == pytest.approx(one.measures, rel=1e-6)


def test_half_precision_is_kept(tiny, monkeypatch):
    monkeypatch.undo()
    config = tiny("method=byol", "training.precision=bfloat16", "training.batch_size=8")
    learners, rounds = clients(config)
    learners = [learner.float() for learner in learners]
    _, results = trained(learners, rounds, together=False)
    _, found = trained(learners, rounds, together=True)
    for one, other in zip(results, found, strict=True):
        assert other.losses == pytest.approx(one.losses, rel=0.02, abs=0.02)


def test_they_are_really_taken_as_one(tiny, monkeypatch):
    """Of two clients with equal batches one forward pass is made a step, not two."""
    config = tiny("method=simclr", "training.batch_size=8")
    learners, rounds = clients(config)
    calls = []
    for learner in learners[:2]:
        forward = learner.method.backbone.forward
        monkeypatch.setattr(
            learner.method.backbone, "forward",
            lambda x, forward=forward: calls.append(len(x)) or forward(x),
        )  # fmt: skip
    side_by_side([partial(r, learner) for r, learner in zip(rounds[:2], learners[:2], strict=True)])
    assert calls == [8] * 2 * 3  # two views, three steps


def test_results_come_in_order_and_one_runs_at_a_time():
    running = []

    def work(name):
        running.append(name)
        assert len(running) == 1
        running.remove(name)
        return name

    assert side_by_side([partial(work, name) for name in "abc"]) == ["a", "b", "c"]
    assert side_by_side([partial(work, "a")]) == ["a"]


def test_one_that_fails_leaves_the_others_alone(tiny):
    learners, rounds = clients(tiny("method=simclr", "training.batch_size=8"))
    alone, _ = trained(learners, rounds, together=False)
    with torch.no_grad():
        next(learners[1].parameters()).fill_(torch.nan)
    errors = []

    def work(k):
        try:
            rounds[k](learners[k])
        except TrainingError as error:
            errors.append((k, str(error)))

    side_by_side([partial(work, k) for k in range(3)])
    assert [k for k, _ in errors] == [1] and "loss is nan" in errors[0][1]
    for k in (0, 2):
        assert_close(learners[k], alone[k])


def test_no_thread_is_left_when_a_piece_of_work_fails(tiny):
    learners, rounds = clients(tiny("method=simclr", "training.batch_size=8"))

    def interrupted():
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        side_by_side([partial(rounds[0], learners[0]), interrupted])
    assert threading.active_count() == before


def test_a_run_ends_like_one_with_clients_one_after_another(tiny_overrides, tmp_path, monkeypatch):
    """Orchestra, with clustering, clients of several sizes, and one left over in a round."""
    monkeypatch.undo()  # float32
    results = []
    for count in (1, 2):
        chosen = [
            *tiny_overrides, "engine=inline", "method=orchestra", f"engine.side_by_side={count}",
            "federation.clients=5", "federation.participation=0.6",
            f"run_dir={tmp_path / str(count)}",
        ]  # fmt: skip
        results.append(simulate(chosen))
    one, other = (result.encoder.state_dict() for result in results)
    assert one.keys() == other.keys()
    for one, other in zip(*(result.metrics for result in results), strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-3)


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        (("method=mae", "model=vit_tiny"), "method=mae"),
        (("method=simclr", "terms.proximal.weight=1"), "terms.proximal"),
        (("method=simclr", "training.cuda_graphs=true"), "training.cuda_graphs"),
    ],
)
def test_what_cannot_be_taken_as_one_is_refused(chosen, named):
    with pytest.raises(ConfigError, match=rf"engine\.side_by_side=2: must be 1 with {named}"):
        load_config(["engine=inline", "engine.side_by_side=2", *chosen])
