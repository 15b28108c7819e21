import pytest
import torch

from orchestra_flwr.data import load_dataset
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.federation.server.round_report import FederationError
from orchestra_flwr.training import build_learner, torch_threads


def test_scores_of_both_backbones_leave_the_method_as_it_was(tiny):
    config = tiny()
    method = build_learner(config, 1).method.train()
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    scores = Evaluator(config, load_dataset(config.data)).scores(method)
    assert set(scores) == {"target", "online"}
    assert scores["target"] == scores["online"]  # equal at the beginning
    assert 0.3 < scores["target"]["knn"] <= 1 and 0.5 < scores["target"]["linear"] <= 1
    assert method.training and all(p.requires_grad for p in method.backbone.parameters())
    assert all(torch.equal(before[name], t) for name, t in method.state_dict().items())


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
