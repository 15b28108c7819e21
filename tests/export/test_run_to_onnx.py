"""A run's encoder classifies as well by onnxruntime alone as the run's summary says."""

import json
import subprocess
import sys

import numpy as np
import pytest

from orchestra_flwr.cli import export_main, main
from orchestra_flwr.data import load_dataset

KNN = """
import sys
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
images = np.load(sys.argv[2])
bank, queries = (session.run(None, {"images": images[n]})[0] for n in ("train", "test"))
bank, queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (bank, queries))
cosines = queries @ bank.T
nearest = np.argsort(-cosines, axis=1)[:, :12]
weights = np.exp(np.take_along_axis(cosines, nearest, 1) / 0.1)
votes = np.zeros((len(queries), 10))
for column in range(nearest.shape[1]):
    votes[np.arange(len(queries)), images["train_labels"][nearest[:, column]]] += weights[:, column]
assert not {"torch", "orchestra_flwr"} & {*sys.modules}
print((votes.argmax(1) == images["test_labels"]).mean())
"""


@pytest.mark.slow
def test_simulated_exported_and_classified_without_torch(tiny, tiny_overrides, tmp_path):
    for library in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(library, reason="needs the extra onnx")
    run = tmp_path / "run"
    assert main([*tiny_overrides, f"run_dir={run}"]) == 0
    assert export_main([f"run={run}", "int8=true"]) == 0
    data = load_dataset(tiny().data)
    np.savez(
        tmp_path / "images.npz",
        train=data.train.images,
        train_labels=data.train.labels,
        test=data.test.images,
        test_labels=data.test.labels,
    )
    expected = json.loads((run / "summary.json").read_text())["knn"]
    measured = json.loads((run / "export" / "export.json").read_text())["files"]
    assert measured[0]["knn"] == pytest.approx(expected, abs=1 / 60 + 1e-9)
    for name, tolerance in (("encoder.onnx", 1 / 60), ("encoder.int8.onnx", 0.1)):
        command = [sys.executable, "-c", KNN, run / "export" / name, tmp_path / "images.npz"]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert float(out) == pytest.approx(expected, abs=tolerance + 1e-9)
    assert export_main([f"run={run}", "format=hub"]) == 0
    card = (run / "hub" / "README.md").read_text()
    assert "| kNN, target" in card and "4 simulated clients" in card
