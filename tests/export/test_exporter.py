"""`orchestra-export` as a person calls it: files that other runtimes read, checked and measured."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import orchestra_flwr
from orchestra_flwr import extras, load_encoder
from orchestra_flwr.cli import export_main
from orchestra_flwr.config import ConfigError, ModelConfig, load
from orchestra_flwr.data import UNLABELLED, Dataset
from orchestra_flwr.data.images import ImageSet
from orchestra_flwr.export.export_config import ExportConfig
from orchestra_flwr.export.exporter import _images, _labelled, _measured, made_from
from orchestra_flwr.export.programs import program_of
from orchestra_flwr.models import Encoder, EncoderSpec, save_encoder

needs_onnx = pytest.mark.skipif(
    any(extras.find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")),
    reason="needs the extra onnx",
)


@pytest.fixture
def command(capfd):
    def call(*arguments):
        code = export_main([*arguments])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


PATHS_OF_THIS_MACHINE = str(Path(orchestra_flwr.__file__).parent).encode()
WITHOUT_TORCH = """
import sys
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
(features,) = session.run(None, {"images": np.load(sys.argv[2])})
np.save(sys.argv[3], features)
assert "torch" not in sys.modules
"""


@needs_onnx
def test_onnxruntime_alone_gives_the_encoders_features(exported_run, tmp_path):
    images = torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8)
    np.save(tmp_path / "images.npy", images.numpy())
    made = exported_run / "export" / "encoder.onnx"
    files = [made, tmp_path / "images.npy", tmp_path / "features.npy"]
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *files], check=True)
    features = torch.from_numpy(np.load(tmp_path / "features.npy"))
    torch.testing.assert_close(features, load_encoder(exported_run)(images), rtol=1e-4, atol=1e-4)
    facts = json.loads((exported_run / "export" / "export.json").read_text())
    encoder, onnx, _ = facts["files"]
    assert onnx["bytes"] == made.stat().st_size and encoder["bytes"] > 0
    assert onnx["difference"] <= 1e-4 and onnx["seconds"]["32"] > 0


@needs_onnx
@pytest.mark.slow  # a process of its own
def test_onnxruntime_leaves_no_identifier_of_the_machine(make_run, tmp_path):
    """It stores one beside what it would send. In what looks like a test it never does."""
    home = tmp_path / "home"
    home.mkdir()
    script = "import sys; from orchestra_flwr.cli import export_main; sys.exit(export_main())"
    subprocess.run(
        [sys.executable, "-c", script, f"run={make_run()}"],
        env={"HOME": str(home), "PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert not [path for path in home.rglob("*") if "onnxruntime" in path.name]


@needs_onnx
def test_it_is_known_of_which_encoder_each_file_is(make_run, command):
    run = make_run()
    for format in ("onnx", "torch_export"):
        assert command(f"run={run}", f"format={format}", "any_size=false")[0] == 0
    digest = hashlib.sha256((run / "encoder.safetensors").read_bytes()).hexdigest()
    assert made_from(run / "export") == {"encoder.onnx": digest, "encoder.pt2": digest}


def test_a_file_is_of_the_encoder_that_it_was_made_from(make_run, command, monkeypatch):
    """A run that is resumed meanwhile replaces it; the new one must not pass for the source."""
    run = make_run()
    digest = hashlib.sha256((run / "encoder.safetensors").read_bytes()).hexdigest()

    def replace_and_trace(portable):
        encoder = load_encoder(run)
        with torch.no_grad():
            next(encoder.parameters()).add_(1)
        save_encoder(run / "encoder.safetensors", encoder)
        return program_of(portable)

    monkeypatch.setattr("orchestra_flwr.export.exporter.program_of", replace_and_trace)
    assert command(f"run={run}", "format=torch_export")[0] == 0
    assert made_from(run / "export") == {"encoder.pt2": digest}
    code, _, err = command(f"run={run}", "format=hub")
    assert code == 2 and "was exported from another encoder" in err


def test_the_table_shows_the_name_of_a_file_as_it_is(make_run, command, monkeypatch):
    monkeypatch.setattr("orchestra_flwr.console.phases.FIRST_SECONDS", 0.01)
    run = make_run()
    for suffix in (".safetensors", ".json"):
        (run / f"encoder{suffix}").rename(run / f"my [v2]:eye:{suffix}")
    code, out, _ = command(f"run={run}/my [v2]:eye:.safetensors", "format=torch_export")
    assert code == 0 and "| my [v2]:eye:.safetensors |" in out
    assert out.startswith("exporting, checking and measuring the encoder ...\n")


def test_int8_takes_the_labelled_ones_of_images_that_are_labelled_in_part():
    images, labels = torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([1, UNLABELLED, 0])
    train = ImageSet(images, labels, ("cat", "dog"))
    (bank, classes), _ = _labelled(Dataset("photos", train, train))
    assert classes.tolist() == [1, 0] and len(bank) == 2


def test_images_of_several_classes_are_measured_by_their_mean_average_precision():
    images = torch.randint(0, 256, (40, 1, 2, 2), dtype=torch.uint8)
    bright = images.flatten(1) > 127
    train = ImageSet(images, classes=("a", "b", "c", "d"), tags=bright)
    config = load(ExportConfig, ["run=any"], all_read=True)
    dataset = Dataset("photos", train, train)
    measured = _measured(config, lambda batch: batch.flatten(1).float(), {}, dataset)
    assert measured.keys() == {"seconds", "map"} and measured["map"] > 0.9


def test_other_images_are_scaled_to_the_encoders_size():
    spec = EncoderSpec(model=ModelConfig(name="convnet", width=8), channels=1, image_size=16)
    other = ["run=any", "int8=true", "data=digits", "data.train_limit=9"]
    config = load(ExportConfig, other, all_read=True)
    assert _images(config, Encoder(spec)).train.images.shape == (9, 1, 16, 16)
    with pytest.raises(ConfigError, match="the encoder expects images of 16 x 16 pixels"):
        _images(load(ExportConfig, [*other, "data.image_size=8"]), Encoder(spec))


@pytest.mark.parametrize("name", ["encoder.onnx", "encoder.int8.onnx"])
def test_no_path_of_this_machine_is_in_the_file(exported_run, name):
    assert PATHS_OF_THIS_MACHINE not in (exported_run / "export" / name).read_bytes()


@needs_onnx
def test_the_middle_square_of_any_image_is_taken(exported_run):
    import onnxruntime

    session = onnxruntime.InferenceSession(exported_run / "export" / "encoder.onnx")
    image = torch.randint(0, 256, (1, 1, 8, 8), dtype=torch.uint8)
    large = image.repeat_interleave(4, 2).repeat_interleave(4, 3)  # 32 x 32
    wide = torch.nn.functional.pad(large, (40, 40))
    expected = load_encoder(exported_run)(image).numpy()
    for batch in (large, wide):
        (features,) = session.run(None, {"images": batch.numpy()})
        cosine = (features * expected).sum() / np.linalg.norm(features) / np.linalg.norm(expected)
        assert cosine > 0.97


@needs_onnx
def test_int8_is_measured_on_the_runs_own_images(exported_run):
    import onnx

    facts = json.loads((exported_run / "export" / "export.json").read_text())
    assert facts["images"] == {"train": 120, "test": 60}
    encoder, plain, small = facts["files"]
    assert small["bytes"] < plain["bytes"]
    assert plain["knn"] == encoder["knn"] and 0 < plain["linear"] <= 1
    assert 0 < small["difference"] < 0.5 and abs(small["knn"] - plain["knn"]) < 0.1
    graph = onnx.load(exported_run / "export" / "encoder.int8.onnx").graph
    kinds = {node.name: node.op_type for node in graph.node}
    assert [*kinds.values()].count("Conv") == 4
    inputs = {name: node.op_type for node in graph.node for name in node.output}
    for node in graph.node:  # convolutions take 8 bits, the products that resize do not
        if node.op_type in ("Conv", "MatMul"):
            sources = {inputs.get(name) for name in node.input[:2]}
            assert (sources == {"DequantizeLinear"}) is (node.op_type == "Conv")


@needs_onnx
@pytest.mark.slow
def test_only_the_encoders_own_size_if_that_is_asked_for(make_run, command):
    import onnxruntime

    run = make_run()
    code, out, err = command(f"run={run}", "any_size=false")
    assert (code, err) == (0, "")
    assert "| encoder.onnx " in out and out.splitlines()[-1] == str(run / "export")
    session = onnxruntime.InferenceSession(run / "export" / "encoder.onnx")
    assert session.get_inputs()[0].shape[1:] == [1, 8, 8]


@pytest.mark.slow
def test_torchs_own_file_is_loaded_without_this_package(make_run, command, tmp_path):
    run = make_run()
    code, out, err = command(f"run={run}", "format=torch_export", f"folder={tmp_path / 'made'}")
    assert (code, err) == (0, "") and "encoder.pt2" in out
    assert PATHS_OF_THIS_MACHINE not in (tmp_path / "made" / "encoder.pt2").read_bytes()
    module = torch.export.load(tmp_path / "made" / "encoder.pt2").module()
    images = torch.randint(0, 256, (9, 1, 8, 8), dtype=torch.uint8)
    expected = load_encoder(run)(images)
    torch.testing.assert_close(module(images), expected, rtol=1e-4, atol=1e-4)


@needs_onnx
def test_features_outside_of_the_tolerance_are_not_written(make_run, command):
    run = make_run()
    code, out, err = command(
        f"run={run}", "tolerance=1e-30", "any_size=false"
    )  # sums in another order differ
    assert code == 1 and "|" not in out
    assert err.startswith("error: encoder.onnx: features differ") and err.count("\n") == 1
    assert not (run / "export").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "run: must be given"),
        (["run=missing"], "run=missing: missing/encoder.safetensors: no such file"),
        (["run={run}", "format=tflite"], "format=tflite"),
        (["run={run}", "format=torch_export", "int8=true"], "int8=true: needs format=onnx"),
        (["run={run}", "tolerance=0"], "tolerance=0"),
        (["run={run}", "evaluation.precision=bfloat16"], "must be float32, in which exported"),
        (["run={run}", "int8=true", "data=cifar10"], "3 channels, the encoder expects 1"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(make_run, command, arguments, says):
    run = make_run()
    code, out, err = command(*(a.replace("{run}", str(run)) for a in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and says in err and err.count("\n") == 1
    assert not (run / "export").exists()


def test_without_the_library_one_line_says_what_to_install(make_run, command, monkeypatch):
    there = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "onnx" else there(name))
    code, _, err = command(f"run={make_run()}")
    assert code == 2
    assert err == (
        "error: format=onnx: onnx is not installed; pip install 'orchestra-flwr[onnx]'\n"
    )


OPTIONS = {"vit_tiny": {"image_size": 8, "depth": 2, "width": 24}, "cct": {"image_size": 8}}


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("name", ModelConfig.room.found())
def test_every_backbone_is_exported(make_run, command, name):
    if name == "timm":
        pytest.importorskip("timm", reason="needs the extra timm")
    run = make_run(name, **OPTIONS.get(name, {}))
    code, _, err = command(f"run={run}", "int8=true")
    assert (code, err) == (0, "")
