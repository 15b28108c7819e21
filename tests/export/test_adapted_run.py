"""What a run with low-rank adapters exports: files with the features of its saved encoder."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from orchestra_flwr import load_encoder
from orchestra_flwr.cli import export_main, main
from orchestra_flwr.reporting.kept_checkpoints import LATEST

pytest.importorskip("peft", reason="needs the extra timm")
timm = pytest.importorskip("timm", reason="needs the extra timm")

RUN = (
    "method=simclr", "model=timm", "model.timm=test_vit", "adaptation=lora", "federation.rounds=2",
    "data.image_size=32", "data.train_limit=60", "data.test_limit=20", "federation.clients=2",
    "federation.participation=1", "engine=inline", "training.lr=0.05", "evaluation.every=9",
    "device=cpu", "logging.progress=off",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted") / "run"
    assert main([*RUN, f"run_dir={folder}"]) == 0
    state = load_file(folder / "checkpoint" / LATEST)
    assert any("lora_B" in name and tensor.any() for name, tensor in state.items())
    return folder


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (5, 32, 32), dtype=np.uint8)


@pytest.fixture(scope="module")
def wanted(run, images):
    """(5, width) features of the saved encoder."""
    return torch.as_tensor(load_encoder(run).encode([*map(Image.fromarray, images)]))


def same(features, wanted):
    assert (features - wanted).norm() <= 1e-6 * wanted.norm()


def test_onnxruntime_makes_the_same_features(run, images, wanted):
    for library in ("onnx", "onnxscript"):
        pytest.importorskip(library, reason="needs the extra onnx")
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    assert export_main([f"run={run}"]) == 0
    session = runtime.InferenceSession(
        run / "export" / "encoder.onnx", providers=["CPUExecutionProvider"]
    )
    (features,) = session.run(None, {"images": images[:, None]})
    same(torch.from_numpy(features), wanted)


def test_the_folder_for_the_hub_has_the_same_encoder(run, images, wanted):
    assert export_main([f"run={run}", "format=hub"]) == 0
    encoder = load_encoder(run / "hub")
    assert torch.equal(torch.as_tensor(encoder.encode([*map(Image.fromarray, images)])), wanted)


@pytest.mark.parametrize("by", ["folder", "file"])
def test_timm_makes_the_same_features(run, images, wanted, by):
    """From the folder, and from its file of weights for timm's own network of the name."""
    assert export_main([f"run={run}", "format=timm"]) == 0
    if by == "folder":
        network = timm.create_model(f"local-dir:{run / 'export'}", pretrained=True)
    else:
        file = run / "export" / "model.safetensors"
        network = timm.create_model(
            "test_vit", checkpoint_path=file, num_classes=0, in_chans=1, img_size=32
        )
    with torch.no_grad():
        features = network.eval()(torch.from_numpy(images[:, None] / 127.5 - 1).float())
    same(features, wanted)
