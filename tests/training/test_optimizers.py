import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from orchestra_flwr.config import load_config
from orchestra_flwr.optimizer import SGD


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
def test_same_bits_as_torch(momentum, weight_decay):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))
    theirs = copy.deepcopy(ours)
    mine = SGD(ours.parameters(), 0.1, momentum, weight_decay)
    reference = torch.optim.SGD(
        theirs.parameters(), 0.1, momentum, weight_decay=weight_decay, foreach=True
    )
    for step in range(5):
        images = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
        for model in (ours, theirs):
            model(images).square().sum().backward()
        mine.step()
        reference.step()
        reference.zero_grad()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)
            assert a.grad is None


def test_a_parameter_without_gradient_is_told():
    with pytest.raises(ValueError, match="needs a gradient"):
        SGD(nn.Linear(2, 2).parameters(), 0.1, 0.9, 0.0).step()


def test_clients_do_not_pay_for_what_they_do_not_use():
    """A process a message: its imports leave out scipy and, like a round, the compiler."""
    script = """if True:
        import sys, torch
        def refuse(*heavy):
            imported = set(heavy) & set(sys.modules)
            if imported:
                sys.exit(f"imported {imported}")
        import orchestra_flwr.federation.client_app
        from orchestra_flwr.config import Config
        from orchestra_flwr.federation.client import OrchestraClient
        from orchestra_flwr.federation.wire import Schemas, from_record, pack_state
        config = Config.from_json(sys.argv[1])
        client = OrchestraClient(config, "0", torch.zeros(8, 1, 8, 8, dtype=torch.uint8))
        refuse("scipy")
        down = list(from_record(pack_state(client.method, client.schemas)).values())
        client.fit(down, {"round": 1, "train": True})
        refuse("torch._dynamo", "torchvision", "sklearn", "matplotlib", "pandas", "ray")
    """
    config = load_config(["model.width=8", "training.local_epochs=1"]).to_json()
    subprocess.run([sys.executable, "-c", script, config], check=True)
