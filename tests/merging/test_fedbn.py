import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from orchestra_flwr.config import ConfigError
from orchestra_flwr.merging import ClientState, keeps_state
from orchestra_flwr.methods import KeepsState, Role
from orchestra_flwr.models import BatchNormPolicy
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round

METHODS = (
    "byol", "dino", "mocov2", "orchestra", "rotpred", "simclr", "simsiam", "specloss",
    "supervised", "swav",
)  # fmt: skip


def images(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=generator)


def norm_tensors(learner):
    """Names of all floats of BatchNorms, found by going through the modules."""
    return {
        f"{path}.{name}"
        for path, module in learner.method.named_modules()
        if isinstance(module, _BatchNorm)
        for name, tensor in module.state_dict().items()
        if tensor.is_floating_point()
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["convnet", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_all_of_every_batch_norm_is_local_and_all_else_as_ever(tiny, method, model):
    overrides = (f"method={method}", f"model={model}")
    plain = build_learner(tiny(*overrides), 1)
    learner = build_learner(tiny(*overrides, "merging=fedbn"), 1)
    norms = norm_tensors(learner)
    assert norms and any("running_mean" in name for name in norms)
    assert set(learner.state(Role.LOCAL)) == norms
    assert set(learner.state(Role.SHARED)) == set(plain.state(Role.SHARED)) - norms
    for role in (Role.SERVER, Role.TRANSIENT):
        assert learner.state(role).keys() == plain.state(role).keys()


def test_targets_norms_stay_and_targets_travel(tiny):
    learner = build_learner(tiny("merging=fedbn"), 1)
    local, shared = learner.state(Role.LOCAL), learner.state(Role.SHARED)
    assert any(name.startswith("target_backbone.") for name in local)
    assert any(name.startswith("target_backbone.") for name in shared)


@pytest.mark.parametrize("method", ["byol", "mocov2", "dino"])
def test_a_target_that_travels_stays_as_received_at_a_clients_first_training(tiny, method):
    learner = build_learner(tiny("merging=fedbn", f"method={method}"), 1)
    targets = {n: t for n, t in learner.state(Role.SHARED).items() if n.startswith("target_")}
    for tensor in targets.values():
        tensor.add_(1)
    before = {name: tensor.clone() for name, tensor in targets.items()}
    learner.method.start_local_state()
    assert targets and all(torch.equal(t, before[n]) for n, t in targets.items())


def test_by_type_and_not_by_name(tiny):
    """A layer that is called like a norm is shared; a norm that is called otherwise is local."""
    config = tiny("method=rotpred", "merging=fedbn")
    method = build_learner(config, 1).method
    method.backbone.norm = nn.Linear(2, 2)
    method.backbone.other = nn.BatchNorm1d(2)
    local = BatchNormPolicy.of(config).kept_by_clients(method)
    assert "backbone.other.weight" in local and "backbone.norm.weight" not in local


def test_where_there_is_no_batch_norm_it_is_refused(tiny):
    config = tiny("merging=fedbn", "method=supervised", "model.norm=group")
    with pytest.raises(ConfigError, match="merging=fedbn: .* no BatchNorm"):
        build_learner(config, 1)


def a_round(config, sent, state, seed):
    """A client's round as `federation` runs it: receive, recall, merge, train, keep."""
    learner = build_learner(config, 1)
    for role in (Role.SHARED, Role.SERVER):
        for name, tensor in learner.state(role).items():
            tensor.copy_(sent[name])
    if state is None:
        if isinstance(learner.method, KeepsState):
            learner.method.start_local_state()
    else:
        for name, tensor in learner.state(Role.LOCAL).items():
            tensor.copy_(state.tensors[name])
    merging = config.merging.build()
    merging.merge(learner, state)
    started = {name: t.clone() for name, t in learner.state(Role.LOCAL).items()}
    train_round(learner, images(int(seed.client)), config, seed)
    kept = merging.keep(learner)
    local = {name: t.clone() for name, t in learner.state(Role.LOCAL).items()}
    return started, ClientState({**local, **kept.tensors}, kept.values), learner


@pytest.mark.parametrize("method", ["orchestra", "byol"])
def test_norms_begin_as_the_models_and_are_then_the_clients_own(tiny, method):
    config = tiny("merging=fedbn", f"method={method}")
    server = build_learner(config, 1)
    assert keeps_state(config, server)
    sent = {**server.state(Role.SHARED), **server.state(Role.SERVER)}
    states = {}
    for client in ("0", "1"):
        started, states[client], trained = a_round(config, sent, None, ClientSeed(0, 1, client))
        assert all(torch.equal(t, server.state(Role.LOCAL)[n]) for n, t in started.items())
        assert not any(name in started for name in trained.state(Role.SHARED))
    name = "backbone.layers.1.running_mean"
    assert not torch.equal(states["0"].tensors[name], states["1"].tensors[name])
    started, _, _ = a_round(config, sent, states["1"], ClientSeed(0, 2, "1"))
    assert all(torch.equal(t, states["1"].tensors[n]) for n, t in started.items())
