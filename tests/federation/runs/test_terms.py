"""FedProx in whole runs: beside every wire and every merging policy."""

import numpy as np
import pytest
import torch

BRIGHTNESS = {"a": (0, 4), "b": (0.2, 6), "c": (0.4, 8), "d": (1, 10)}
MU = 0.5


def same_bits(one, other):
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


def test_a_weight_of_0_leaves_bits_and_bytes(toy, federate):
    config = ("federation.rounds=2", "training.local_epochs=2", "federation.wire=int8")
    without = federate(toy(*config), evaluate=False)
    zero = federate(toy(*config, "terms.proximal.weight=0", run="0"),
                    evaluate=False)  # fmt: skip
    assert same_bits(without.state, zero.state)
    for key in ("bytes_up", "bytes_down", "loss"):
        assert [r[key] for r in without.records] == [r[key] for r in zero.records]


@pytest.mark.parametrize(
    ("wire", "tolerance"), [("float32", 1e-6), ("float16", 1e-3), ("int8", 1e-2)]
)
def test_clients_are_pulled_towards_what_they_received(toy, federate, wire, tolerance):
    """Two steps of lr 0.5: w1 = w + (b - w) / 2, w2 = w1 + (b - w1) / 2 - MU (w1 - w) / 2."""
    config = toy("federation.rounds=2", "training.local_epochs=2",
                 f"terms.proximal.weight={MU}", f"federation.wire={wire}")  # fmt: skip
    state = 0.0
    for _ in range(2):
        trained = []
        for brightness, _ in BRIGHTNESS.values():
            first = (state + brightness) / 2
            trained.append(first + (brightness - first) / 2 - MU * (first - state) / 2)
        state = np.average(trained, weights=[size for _, size in BRIGHTNESS.values()])
    run = federate(config, evaluate=False)
    values = torch.cat([run.state["weights"].reshape(-1), run.state["bias"]]).numpy()
    np.testing.assert_allclose(values, np.full(8, state), atol=tolerance)
    assert run.records[1]["loss"]["proximal"] > 0


@pytest.mark.parametrize(
    "merging",
    ["fedu", *(pytest.param(m, marks=pytest.mark.slow) for m in ("fedbn", "replace", "fedema"))],
)
def test_it_works_with_every_merging_policy(tiny, tmp_path, federate, merging):
    def run(weight):
        config = tiny("method=byol", f"merging={merging}", "federation.wire=int8",
                      "training.local_epochs=2", "training.lr=0.03", "data.train_limit=80",
                      f"terms.proximal.weight={weight}",
                      f"run_dir={tmp_path / str(weight)}")  # fmt: skip
        return federate(config, evaluate=False)

    without, pulled = run(0), run(10)
    assert not same_bits(without.state, pulled.state)
    assert "proximal" not in without.records[1]["loss"]
    assert all(0 < r["loss"]["proximal"] < np.inf for r in pulled.records[1:])
    assert [r["clients"]["ok"] for r in pulled.records[1:]] == [4, 4]
