"""Adapters alone: peft puts them on timm's own network, to the features of the run's encoder."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from orchestra_flwr import load_encoder
from orchestra_flwr.cli import export_main, main

peft = pytest.importorskip("peft", reason="needs the extra timm")
timm = pytest.importorskip("timm", reason="needs the extra timm")

RUN = (
    "model=timm", "model.timm=test_vit", "adaptation=lora",
    "data.image_size=32", "data.train_limit=60", "data.test_limit=20", "federation.clients=2",
    "federation.participation=1", "engine=inline", "training.lr=0.05", "evaluation.every=9",
)  # fmt: skip


def network():
    return timm.create_model("test_vit", img_size=32, in_chans=1, num_classes=0)


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(1)
    save_file(network().state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def run(folder, weights, *overrides):
    command = [*RUN, f"model.weights={weights}", f"run_dir={folder}", *overrides]
    assert main(command) == 0
    return folder


@pytest.mark.parametrize("method", [pytest.param("simclr", marks=pytest.mark.slow), "byol"])
def test_peft_makes_the_same_features_of_timms_network(method, weights, tmp_path):
    folder = run(tmp_path / "run", weights, f"method={method}", "federation.rounds=2")
    assert export_main([f"run={folder}", "format=peft"]) == 0
    written = sorted(path.name for path in (folder / "export").iterdir())
    assert written == ["adapter_config.json", "adapter_model.safetensors"]
    assert len({path.stat().st_mode for path in (folder / "export").iterdir()}) == 1
    plain = network()
    plain.load_state_dict(load_file(weights))
    images = torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    scaled = (images - 0.5) / 0.5  # data.normalise=half
    with torch.no_grad():
        start = plain.eval()(scaled)
        adapted = peft.PeftModel.from_pretrained(plain, folder / "export").eval()
        features, wanted = adapted(scaled), load_encoder(folder)(images)
    torch.testing.assert_close(features, wanted, rtol=1e-4, atol=1e-5)
    assert (features - start).abs().max() > 1e-3  # the adapters do something


@pytest.mark.slow
def test_what_has_no_adapters_of_its_encoder_is_refused_in_a_line(weights, tmp_path, capsys):
    full = run(
        tmp_path / "full", weights, "method=simclr", "federation.rounds=1", "adaptation=head"
    )
    assert export_main([f"run={full}", "format=peft"]) == 2
    assert "must have model=timm adaptation=lora" in capsys.readouterr().err
    assert not (full / "export").exists()
    alone = tmp_path / "alone"
    alone.mkdir()
    for file in ("encoder.json", "encoder.safetensors"):
        (alone / file).write_bytes((full / file).read_bytes())
    assert export_main([f"run={alone}", "format=peft"]) == 2
    assert "is no run folder, which would have the adapters" in capsys.readouterr().err


def test_adapters_of_weights_that_nobody_else_has_are_refused(weights, tmp_path, capsys):
    folder = run(tmp_path / "run", weights, "method=simclr", "federation.rounds=1")
    file = folder / "config.yaml"
    written = file.read_text()
    for old, new, named in (
        (f"weights: {weights}", "weights: null", "random weights"),
        ("init: null", "init: elsewhere", "the weights of init=elsewhere"),
    ):
        assert written.count(f"{old}\n") == 1
        file.write_text(written.replace(f"{old}\n", f"{new}\n"))
        assert export_main([f"run={folder}", "format=peft"]) == 2
        error = capsys.readouterr().err
        assert f"began with {named}, " in error and "format=timm" in error
        assert error.count("\n") == 1 and not (folder / "export").exists()


@pytest.mark.slow
def test_adapters_of_another_round_than_the_encoder_are_refused(weights, tmp_path, capsys):
    folder = run(tmp_path / "run", weights, "method=simclr", "federation.rounds=1")
    file = folder / "summary.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "kept_round": 0}))
    assert export_main([f"run={folder}", "format=peft"]) == 2
    assert "kept the encoder after round 0" in capsys.readouterr().err
