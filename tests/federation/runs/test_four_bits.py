"""Models that travel in int4: how many bytes they take, and that encoders learn all the same."""

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from orchestra_flwr.config import load_config
from orchestra_flwr.federation.messages import codec
from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.flower.arrays import payload_bytes, to_record
from orchestra_flwr.methods import release_of
from orchestra_flwr.training import build_learner

MIB = 2**20


@pytest.fixture(autouse=True)
def _no_small_matrices(request, monkeypatch):
    """The matrices of such small models travel in int4, too."""
    if "resnet" not in request.node.name:
        monkeypatch.setattr(codec, "SMALL", 0)


def test_a_resnet18_with_orchestras_heads_takes_less_than_11_mib_each_way(generator):
    config = load_config(["data=cifar10", "federation.wire=int4"])
    learner = build_learner(config, 3)
    schemas = Schemas.of(learner, config)
    assert schemas.shared.size > 23_400_000

    def size(arrays):
        return payload_bytes(RecordDict({ARRAYS: to_record(arrays)}))

    rows = release_of(config).rows
    rows = {name: np.zeros(shape, np.float32) for name, shape in rows.items()}
    up = schemas.codec.encode("update", np.ones(schemas.shared.size, np.float32), generator)
    assert 10.5 * MIB < size({**up, **rows}) < 11 * MIB
    assert 10.5 * MIB < size(pack_state(learner, schemas)) < 11 * MIB


@pytest.mark.slow
def test_an_encoder_learns(tiny, federate):
    """Supervised, whose loss says whether it learns: from 1.7 to 0.9, in float32 as well."""
    config = tiny("method=supervised", "federation.wire=int4", "federation.rounds=4",
                  "training.local_epochs=4", "training.lr=0.03")  # fmt: skip
    losses = [record["loss"]["total"] for record in federate(config, evaluate=False).records[1:]]
    assert losses[0] > 1.4 and losses[-1] < 1.1


def test_the_order_in_which_clients_answer_changes_no_bit(tiny, federate, scrambled_grid, tmp_path):
    overrides = ("method=simclr", "federation.wire=int4", "data.train_limit=60")
    straight, crossed = (
        federate(tiny(*overrides, f"run_dir={tmp_path / n}"), evaluate=False, **grid).state
        for n, grid in (("straight", {}), ("crossed", {"grid": scrambled_grid}))
    )
    assert all(torch.equal(tensor, crossed[name]) for name, tensor in straight.items())
    assert straight["residuals/model"].any()
