import copy

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Batch, Role, build_method
from orchestra_flwr.methods.simsiam import symmetric_negative_cosine


@pytest.fixture
def method(tiny):
    return build_method(tiny("method=byol", "method.ema=0.9"), 1).train()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    views = tuple(torch.randn(6, 1, 8, 8, generator=generator) for _ in range(2))
    return Batch(torch.arange(6), views, (None, None), generator)


def test_the_target_moves_by_one_minus_the_decay_once_a_step(method, batch):
    """The published one moves by the decay: 99.6 % of the way to the online encoder each step."""
    with torch.no_grad():
        for part in (method.backbone, method.projector):
            for parameter in part.parameters():
                parameter.add_(1)
    before = copy.deepcopy(method)
    method.loss(batch)
    for part in ("target_backbone", "target_projector"):
        old, new = (list(getattr(m, part).parameters()) for m in (before, method))
        for a, b in zip(old, new, strict=True):
            torch.testing.assert_close(b - a, torch.full_like(a, 0.1), atol=1e-6, rtol=1e-4)


def test_each_view_predicts_the_targets_features_of_the_other(method, batch):
    same = copy.deepcopy(method)  # its target equals the online encoder: the average leaves it
    loss = method.loss(batch).losses["similarity"]
    first, second = batch.views
    predicted = [same.predictor(same.projector(same.backbone(v))) for v in (first, second)]
    wanted = [same.target_projector(same.target_backbone(v)) for v in (first, second)]
    torch.testing.assert_close(loss, symmetric_negative_cosine(predicted, wanted))


def test_only_the_online_encoder_and_the_predictor_learn(method, batch):
    method.loss(batch).losses["similarity"].backward()
    learning = {n.partition(".")[0] for n, p in method.named_parameters() if p.grad is not None}
    assert learning == {"backbone", "projector", "predictor"}


def test_target_starts_as_the_online_encoder_and_travels(method):
    for a, b in zip(method.backbone.parameters(), method.target_backbone.parameters(), strict=True):
        assert torch.equal(a, b) and a is not b
    names = [n for n, t in method.state_dict().items() if t.is_floating_point()]
    assert {method.role(name) for name in names} == {Role.SHARED}


def test_where_clients_remember_the_target_is_their_own(method):
    with torch.no_grad():
        for part in (method.target_backbone, method.target_projector):
            for parameter in part.parameters():
                parameter.add_(1)
    method.keep_locally()
    assert list(method.backbones()) == ["online"]
    for name in method.state_dict():
        local = name.startswith("target_")
        assert method.role(name) is (Role.LOCAL if local else Role.SHARED)
    method.start_local_state()
    for a, b in zip(method.backbone.parameters(), method.target_backbone.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_published_parts(tiny):
    method = build_method(tiny("method=byol", "model.projector_dim=16"), 1)

    def linear(head):
        layers = [m for m in head if isinstance(m, torch.nn.Linear)]
        return [(*m.weight.shape, m.bias is not None) for m in layers]

    assert linear(method.projector) == [(32, method.backbone.dim, False), (16, 32, False)]
    assert linear(method.predictor) == [(32, 16, False), (16, 32, True)]
    assert isinstance(method.projector[-1], torch.nn.Linear)
    assert [(r.blur_p, r.solarize_p) for r in method.recipes()] == [(1.0, 0.0), (0.1, 0.2)]
    assert list(method.backbones()) == ["online", "target"]


def test_plain_heads_keep_a_norm(tiny):
    """Without one, and without negatives, its features collapse."""
    method = build_method(tiny("method=byol", "model.projector=plain"), 1)
    for head in (method.projector, method.target_projector, method.predictor):
        kinds = [type(layer) for layer in head]
        assert kinds == [torch.nn.Linear, torch.nn.BatchNorm1d, torch.nn.ReLU, torch.nn.Linear]


def test_options_are_checked(tiny):
    with pytest.raises(ConfigError, match="method.ema=1"):
        build_method(tiny("method=byol", "method.ema=1"), 1)
