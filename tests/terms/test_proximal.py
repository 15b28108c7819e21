import pytest
import torch

from orchestra_flwr.methods import Batch, Received, Role, Step
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.terms.proximal import Proximal
from orchestra_flwr.training import build_learner, train_round

METHODS = ("byol", "orchestra", "rotpred", "simclr", "simsiam", "specloss", "supervised")
SEED = ClientSeed(0, 1, "0")
LABELS = torch.arange(40) % 10


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=generator)


def a_learner(config):
    learner = build_learner(config, 1)
    for tensor in learner.state(Role.SERVER).values():
        torch.nn.init.orthogonal_(tensor, generator=torch.Generator().manual_seed(0))
    return learner


def received_by(learner, shift=0.0):
    """What the server sent: what the learner is now, plus a shift."""
    state = {**learner.state(Role.SHARED), **learner.state(Role.SERVER)}
    return Received("0", 0, 1, images(), {name: t.clone() + shift for name, t in state.items()})


def train(config, shift=0.0):
    learner = a_learner(config)
    received = received_by(learner, shift)
    result = train_round(learner, images(), config, SEED, labels=LABELS, received=received)
    return learner, received, result


def distance(learner, received):
    """Of all that is trained and shared, element by element."""
    return sum(
        (a - b) ** 2
        for name, tensor in learner.trained().items()
        for a, b in zip(
            tensor.flatten().tolist(), received.state[name].flatten().tolist(), strict=True
        )
    )


def test_half_the_squared_distance_and_its_gradient(tiny):
    """The slow way: sum of squares, element by element; the gradient is w - w_received."""
    config = tiny("method=simclr", "terms.proximal.weight=1")
    learner = a_learner(config)
    received = received_by(learner, 0.01)
    learner.start_round(received)
    term = learner.terms["proximal"]
    nothing = Batch(torch.zeros(0), (), (), torch.Generator())
    loss = term.loss(learner.method, nothing, Step({}))
    assert loss.item() == pytest.approx(distance(learner, received) / 2, rel=1e-4)
    loss.backward()
    for name, parameter in learner.method.named_parameters():
        torch.testing.assert_close(parameter.grad, parameter.detach() - received.state[name])


@pytest.mark.parametrize("mu", [0.5, 3.0])
def test_the_weight_is_mu(tiny, mu):
    """In the sum that is minimised the gradient grows by mu (w - w_received)."""
    gradients = []
    for overrides in ([], [f"terms.proximal.weight={mu}"]):
        learner = a_learner(tiny("method=rotpred", *overrides)).train()
        received = received_by(learner, 0.01)
        learner.start_round(received)
        view = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        batch = Batch(torch.arange(6), (view,), (torch.arange(6) % 4,), torch.Generator())
        sum(learner.loss(batch)[0].values()).backward()
        gradients.append({n: p.grad for n, p in learner.method.named_parameters()})
    for name, gradient in gradients[1].items():
        pull = mu * (learner.method.get_parameter(name).detach() - received.state[name])
        torch.testing.assert_close(gradient - gradients[0][name], pull, atol=1e-5, rtol=1e-3)


def test_weight_0_builds_nothing_and_leaves_the_bits(tiny):
    plain = train(tiny())
    off = train(tiny("terms.proximal.weight=0"))
    assert list(off[0].terms) == [] and not off[0].needs_received
    assert off[0].state_dict().keys() == plain[0].state_dict().keys()
    assert all(torch.equal(t, off[0].state_dict()[n]) for n, t in plain[0].state_dict().items())
    assert plain[2].losses == off[2].losses


def test_the_state_that_travels_is_the_same(tiny):
    """Names, order and shapes: the same bytes with and without."""
    shapes = [
        [(name, tensor.shape) for role in Role for name, tensor in learner.state(role).items()]
        for learner in (a_learner(tiny()), a_learner(tiny("terms.proximal.weight=1")))
    ]
    assert shapes[0] == shapes[1]


def test_the_trained_weights_stay_nearer_with_a_larger_mu(tiny):
    distances = []
    for mu in (0, 1, 10):
        config = tiny(f"terms.proximal.weight={mu}", "training.local_epochs=3", "training.lr=0.01")
        learner, received, result = train(config)
        distances.append(distance(learner, received))
        assert ("proximal" in result.losses) == (mu > 0)
    assert distances[0] > distances[1] > 1.5 * distances[2] > 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", METHODS)
def test_composes_with_every_method(tiny, method, precision):
    """One step of SGD: all that is trained moves by lr mu (w_received - w) more."""
    overrides = (f"method={method}", f"training.precision={precision}", "training.lr=0.1",
                 "training.batch_size=40")  # fmt: skip
    (free, _, plain), (held, _, result) = (
        train(tiny(*overrides, *more), shift=0.01) for more in ([], ["terms.proximal.weight=2"])
    )
    assert plain.steps == result.steps == 1
    assert set(result.losses) == {*plain.losses, "proximal"}
    count = sum(t.numel() for t in free.trained().values())
    assert result.losses["proximal"] == pytest.approx(2 / 2 * count * 0.01**2, rel=1e-3)
    for name, tensor in held.trained().items():
        moved = tensor - free.trained()[name]
        torch.testing.assert_close(moved, torch.full_like(moved, 0.1 * 2 * 0.01), atol=1e-5, rtol=0)


def test_the_weights_as_sent_and_not_as_merged_pull(tiny):
    """With fedema a client starts elsewhere than at what was sent: the first loss is not 0."""
    config = tiny("method=simsiam", "merging=fedema", "merging.scale=null",
                  "terms.proximal.weight=1", "training.lr=1e-6")  # fmt: skip
    learner = a_learner(config)
    received = received_by(learner)
    merging = config.merging.build()
    merging.merge(learner, None)
    state = merging.keep(learner)
    state = type(state)({name: t + 0.1 for name, t in state.tensors.items()}, state.values)
    merging = config.merging.build()
    merging.merge(learner, state)
    assert merging.metrics() == {"mu": pytest.approx(0.7)}
    start = distance(learner, received)
    result = train_round(learner, images(), config, SEED, received=received)
    assert start > 0.01
    assert result.losses["proximal"] == pytest.approx(start / 2, rel=1e-2)


def test_what_stays_with_the_client_is_not_pulled(tiny):
    config = tiny("merging=fedbn", "terms.proximal.weight=1")
    learner, _, result = train(config)
    term = learner.terms["proximal"]
    assert isinstance(term, Proximal) and result.losses["proximal"] > 0
    pulled = sum(t.numel() for t in term._trained)
    shared = learner.state(Role.SHARED)
    assert pulled == sum(t.numel() for n, t in learner.trained().items() if n in shared)
    assert pulled < sum(t.numel() for t in learner.trained().values())
