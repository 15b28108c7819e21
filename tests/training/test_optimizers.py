import copy

import pytest
import torch
from torch import nn

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import OptimizerConfig
from orchestra_flwr.training.optimizers.adam import Adam
from orchestra_flwr.training.optimizers.adamw import AdamW
from orchestra_flwr.training.optimizers.sgd import SGD


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))


def trained_beside(ours, make_reference, steps):
    """Pairs of parameters after each of so many steps of two optimizers on the same losses.

    Args:
        ours: makes our optimizer of parameters.
        make_reference: makes torch's of parameters.
        steps: how many.
    """
    mine = network()
    other = copy.deepcopy(mine)
    optimizer, reference = ours(mine.parameters()), make_reference(other.parameters())
    for step in range(steps):
        images = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
        for model in (mine, other):
            model(images).square().sum().backward()
        optimizer.step()
        reference.step()
        reference.zero_grad()
        for a, b in zip(mine.parameters(), other.parameters(), strict=True):
            assert a.grad is None
            yield a, b


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_sgd_has_the_same_bits_as_torch(momentum, decay):
    settings = SGD.Settings(momentum=momentum, weight_decay=decay)
    for a, b in trained_beside(
        lambda parameters: SGD(settings, parameters, 0.1),
        lambda parameters: torch.optim.SGD(
            parameters, 0.1, momentum, weight_decay=decay, foreach=True
        ),
        5,
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("options", [{}, {"betas": (0.5, 0.9), "epsilon": 1e-3}])
@pytest.mark.parametrize("decay", [0.0, 0.01, 1.0])
def test_adamw_is_torchs(options, decay):
    betas, epsilon = options.get("betas", (0.9, 0.999)), options.get("epsilon", 1e-8)
    settings = AdamW.Settings(weight_decay=decay, **options)
    for a, b in trained_beside(
        lambda parameters: AdamW(settings, parameters, 3e-3),
        lambda parameters: torch.optim.AdamW(
            parameters, 3e-3, betas=betas, eps=epsilon, weight_decay=decay
        ),
        60,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 1e-6, 0.1])
@pytest.mark.parametrize(("ours", "theirs"), [
    (Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW),
])  # fmt: skip
def test_fifty_steps_of_adam_are_torchs(ours, theirs, decay):
    """Coupled and decoupled decay, to float32's rounding."""
    for a, b in trained_beside(
        lambda parameters: ours(ours.Settings(weight_decay=decay), parameters, 1e-3),
        lambda parameters: theirs(parameters, 1e-3, weight_decay=decay),
        50,
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_adams_decay_is_part_of_the_gradient():
    """Of a weight without a gradient Adam takes lr, whatever the decay; AdamW lr * wd of it."""
    for ours, after in ((Adam, 4 - 0.1), (AdamW, 4 - 0.2)):
        weight = nn.Parameter(torch.tensor([4.0]))
        weight.grad = torch.zeros(1)
        ours(ours.Settings(weight_decay=0.5), [weight], 0.1).step()
        assert weight.item() == pytest.approx(after, abs=1e-6)


OPTIMIZERS = [
    lambda p, lr=0.1: SGD(SGD.Settings(), p, lr),
    lambda p, lr=0.1: Adam(Adam.Settings(weight_decay=0.1), p, lr),
    lambda p, lr=0.1: AdamW(AdamW.Settings(weight_decay=0.1), p, lr),
]


def steps_of(optimizer, model, seeds):
    for seed in seeds:
        images = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))
        model(images).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_an_optimizer_goes_on_from_its_state(make):
    """Another object with the state ends in the same bits; without it in others."""
    whole = network()
    steps_of(make(whole.parameters()), whole, range(6))
    parts = network()
    first = make(parts.parameters())
    steps_of(first, parts, range(3))
    fresh = copy.deepcopy(parts)
    second = make(parts.parameters())
    second.load_state({name: tensor.clone() for name, tensor in first.state().items()})
    steps_of(second, parts, range(3, 6))
    steps_of(make(fresh.parameters()), fresh, range(3, 6))
    for a, b, c in zip(whole.parameters(), parts.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b) and not torch.equal(a, c)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_rate_in_a_tensor_is_that_rate(make):
    """Within rounding; and when the tensor is filled anew, the next step has the new rate."""
    number, tensor = network(), network()
    with_number = make(number.parameters(), 0.1)
    with_tensor = make(tensor.parameters(), torch.tensor(0.1, dtype=torch.float64))
    steps_of(with_number, number, range(3))
    steps_of(with_tensor, tensor, range(3))
    with_number.lr = 0.01
    with_tensor.lr.fill_(0.01)
    steps_of(with_number, number, range(3, 5))
    steps_of(with_tensor, tensor, range(3, 5))
    for a, b in zip(number.parameters(), tensor.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_adamws_first_steps_by_hand():
    """Step 1: mean g / (1 - b1) = g, root |g|: the weight moves by lr, after the decay lr * wd * w.

    Step 2 with gradient -g / 2: mean (.9 * .1 - .1 / 2) / .19 g, square (.99 * .01 + .01 / 4) /
    .0199 g^2, so .040 / .19 / sqrt(.01240 / .0199) = .26671.
    """
    weight = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    settings = AdamW.Settings(betas=(0.9, 0.99), epsilon=1e-12, weight_decay=0.5)
    optimizer = AdamW(settings, [weight], 0.1)
    weight.grad = torch.tensor([3.0], dtype=torch.float64)
    optimizer.step()
    after_one = 2 - 0.1 * 0.5 * 2 - 0.1
    assert weight.item() == pytest.approx(after_one, abs=1e-7)
    weight.grad = torch.tensor([-1.5], dtype=torch.float64)
    optimizer.step()
    assert weight.item() == pytest.approx(after_one * 0.95 - 0.1 * 0.26671, abs=1e-5)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_parameter_without_gradient_is_an_error(make):
    layer = nn.Linear(2, 2)
    layer.weight.grad = torch.ones(2, 2)
    with pytest.raises(ValueError, match="needs a gradient"):
        make(layer.parameters()).step()


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_the_state_is_changed_in_place(make):
    """As a captured CUDA graph demands: from the second step on, every tensor stays where it is."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = make([weight])

    def tensors():
        lists = (v if isinstance(v, list) else [v] for v in vars(optimizer).values())
        return [t.data_ptr() for values in lists for t in values if isinstance(t, torch.Tensor)]

    places = []
    for _ in range(3):
        weight.grad = torch.ones(3)
        optimizer.step()
        places.append(tensors())
    assert len(places[0]) > 1 and places[0] == places[1] == places[2]


def test_options_are_checked_by_the_optimizer_that_is_chosen(tiny):
    assert tiny().optimizer.settings == SGD.Settings(momentum=0.9, weight_decay=1e-4)
    assert tiny("optimizer=adamw").optimizer.settings == AdamW.Settings()
    for overrides, says in (
        (["optimizer=adamw", "optimizer.betas=[0.9,1]"], r"optimizer.betas.1=1"),
        (["optimizer=adamw", "optimizer.epsilon=0"], "optimizer.epsilon=0"),
        (["optimizer=adamw", "+optimizer.momentum=0.9"], "optimizer=sgd has it"),
        (["optimizer.momentum=1"], "optimizer.momentum=1"),
    ):
        with pytest.raises(ConfigError, match=says):
            tiny(*overrides)
    with pytest.raises(ConfigError, match="optimizer=lion: must be one of adam, adamw, sgd"):
        _ = OptimizerConfig(name="lion").plugin
