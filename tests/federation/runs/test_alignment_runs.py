"""FeatARC's alignment in whole runs: beside every wire and every merging policy."""

import pytest
import torch


def same_bits(one, other):
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


@pytest.fixture
def run(tiny, tmp_path, federate):
    def made(name, *overrides):
        config = tiny("data.train_limit=80", "training.lr=0.03", "training.local_epochs=2",
                      f"run_dir={tmp_path / name}", *overrides)  # fmt: skip
        return federate(config, evaluate=False)

    return made


def test_a_weight_of_0_leaves_bits_and_bytes(run):
    without = run("without", "method=simclr", "federation.wire=int8")
    zero = run("zero", "method=simclr", "federation.wire=int8", "terms.alignment.weight=0")
    assert same_bits(without.state, zero.state)
    for key in ("bytes_up", "bytes_down", "loss"):
        assert [r[key] for r in without.records] == [r[key] for r in zero.records]


@pytest.mark.parametrize("merging", ["fedu", "fedbn", "replace", "fedema"])
@pytest.mark.slow
def test_it_works_with_every_merging_policy(run, merging):
    overrides = ("method=byol", f"merging={merging}", "federation.wire=int8")
    without = run("without", *overrides)
    aligned = run("aligned", *overrides, "terms.alignment.weight=1",
                  "terms.alignment.between=predictor_projector")  # fmt: skip
    assert not same_bits(without.state, aligned.state)
    assert "alignment" not in without.records[1]["loss"]
    assert all(-1 <= r["loss"]["alignment"] <= 1 for r in aligned.records[1:])
    assert [r["clients"]["ok"] for r in aligned.records[1:]] == [4, 4]
    for key in ("bytes_up", "bytes_down"):
        assert [r[key] for r in without.records] == [r[key] for r in aligned.records]
