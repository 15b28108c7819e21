"""A network of two convolutions, for numbers worked by hand."""

import pytest
import torch
from torch import nn

from orchestra_flwr.merging import ClientState
from orchestra_flwr.methods import Method, Role, role_of
from orchestra_flwr.training import Learner

ROLES = dict.fromkeys(("backbone", "predictor", "target_backbone"), Role.SHARED)


class Toy(Method):
    """Two convolutions with 9 equal weights each, a shortcut, a BatchNorm and a predictor."""

    def __init__(self):
        nn.Module.__init__(self)
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 1, 3, bias=False),
            nn.BatchNorm2d(1),
            nn.Conv2d(1, 1, 3, bias=False),
            nn.Conv2d(1, 1, 1, bias=False),
        )
        self.predictor = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
        self.target_backbone = nn.Conv2d(1, 1, 3).requires_grad_(False)

    def role(self, name):
        return role_of(name, ROLES)

    def recipes(self):
        return ()

    def loss(self, batch):
        raise NotImplementedError

    def backbones(self):
        return {"online": self.backbone}


class ToyLearner(Learner):
    """All floats of its state begin as 0."""

    def __init__(self):
        super().__init__(Toy())
        self.fill(0)

    def fill(self, value):
        """Every float of the state becomes `value`."""
        for tensor in self.state(Role.SHARED).values():
            tensor.fill_(value)

    @torch.no_grad()
    def set_convolutions(self, first, second):
        self.method.backbone[0].weight.fill_(first)
        self.method.backbone[2].weight.fill_(second)

    def values(self, module):
        """The first element of each float tensor of a child."""
        state = self.method.get_submodule(module).state_dict()
        return {n: t.flatten()[0].item() for n, t in state.items() if t.is_floating_point()}


@pytest.fixture
def toy():
    return ToyLearner


@pytest.fixture
def stored():
    """A client's state as it comes back from disk."""
    return lambda state: ClientState(
        {name: tensor.clone() for name, tensor in state.tensors.items()}, dict(state.values)
    )
