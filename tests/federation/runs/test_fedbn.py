"""BatchNorm that stays with the clients, in a whole run."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.modules.batchnorm import _BatchNorm

from orchestra_flwr import load_encoder
from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.flower.arrays import from_record
from orchestra_flwr.training import build_learner


def norms_of(config):
    """Names of all tensors of a BatchNorm but the batch counters, and how many other values."""
    method = build_learner(config, 1).method
    names = {
        f"{path}.{name}"
        for path, module in method.named_modules()
        if isinstance(module, _BatchNorm)
        for name, tensor in module.state_dict().items()
        if tensor.is_floating_point()
    }
    state = method.state_dict()
    others = [t.numel() for n, t in state.items() if n not in names and t.is_floating_point()]
    return names, sum(others)


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_norms_never_travel_and_every_client_has_its_own(tiny, tmp_path, federate, watched, wire):
    config = tiny("method=simclr", "merging=fedbn", f"federation.wire={wire}",
                  "evaluation.every=2", f"run_dir={tmp_path / 'run'}")  # fmt: skip
    norms, others = norms_of(config)
    messages = []

    def look(client, round_, sent, reply):
        messages.extend((sent[ARRAYS], reply.content[ARRAYS]))

    run = federate(config, app=watched(look))
    assert len(messages) == 2 * 2 * 4
    for record in messages:
        arrays = {n: a for n, a in from_record(record).items() if not n.endswith(".scales")}
        assert sum(array.size for array in arrays.values()) == others
    assert not norms & run.state.keys()

    states = [load_file(path) for path in sorted(run.folder.clients.rglob("2.safetensors"))]
    assert len(states) == 4 and all(state.keys() == norms for state in states)
    for name in norms:
        for k, state in enumerate(states):
            assert not any(torch.equal(state[name], other[name]) for other in states[k + 1 :]), name

    assert run.summary["batch_norm"] == "recalibrated"
    assert np.isfinite([run.summary["knn"], run.summary["linear"]]).all()
    encoder = load_encoder(run.folder.path)
    fresh = build_learner(config, 1).method.backbone.state_dict()
    moved = [n for n, t in encoder.backbone.state_dict().items()
             if n.endswith("running_mean") and not torch.equal(t, fresh[n])]  # fmt: skip
    assert len(moved) == sum(
        n.startswith("backbone.") and n.endswith("running_mean") for n in norms
    )


def test_elsewhere_norms_are_averaged_and_the_summary_says_so(tiny, tmp_path, federate):
    config = tiny("method=simclr", "federation.rounds=1", f"run_dir={tmp_path / 'run'}")
    assert federate(config).summary["batch_norm"] == "averaged"
