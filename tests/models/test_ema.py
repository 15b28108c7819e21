import copy

import pytest
import torch
from torch import nn

from orchestra_flwr.models.ema import ema_update


@pytest.fixture
def networks():
    target = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    online = copy.deepcopy(target)
    with torch.no_grad():
        for tensor in [*online.parameters(), *online.buffers()]:
            tensor.add_(1)
    return target, online


@pytest.mark.parametrize("decay", [0.996, 0.99, 0.5, 0.0])
def test_the_target_moves_by_one_minus_the_decay(networks, decay):
    """The published BYOL moves it by the decay itself: 99.6 % of the way in a step."""
    target, online = networks
    before = copy.deepcopy(target)
    ema_update(target, online, decay)
    for old, new in zip(before.parameters(), target.parameters(), strict=True):
        torch.testing.assert_close(new - old, torch.full_like(old, 1 - decay), atol=1e-6, rtol=1e-3)


def test_buffers_and_the_online_network_stay(networks):
    target, online = networks
    before = copy.deepcopy(target), copy.deepcopy(online)
    ema_update(target, online, 0.9)
    for old, new in zip(before[0].buffers(), target.buffers(), strict=True):
        assert torch.equal(old, new)
    for old, new in zip(before[1].parameters(), online.parameters(), strict=True):
        assert torch.equal(old, new)


def test_many_steps_are_the_weighted_sum_of_all_online_networks():
    target, online = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    values, expected = [1.0, -2.0, 5.0], 4.0
    nn.init.constant_(target.weight, expected)
    for value in values:
        nn.init.constant_(online.weight, value)
        ema_update(target, online, 0.9)
        expected = 0.9 * expected + 0.1 * value
    assert target.weight.item() == pytest.approx(expected)
