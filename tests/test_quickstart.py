"""The notebook of docs/ runs from its first cell to its last."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs" / "quickstart.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_notebook_runs(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=1500, resources=resources).execute()

    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 3  # split, curves, map
    texts = [o["data"]["text/plain"] for o in outputs if "text/plain" in o.get("data", {})]
    accuracy = ast.literal_eval(next(text for text in texts if text.startswith("{'encoder'")))
    encoder, pixels = (float(accuracy[key].split()[0]) for key in ("encoder", "pixels"))
    assert encoder > 55 and encoder > pixels + 5  # chance: 10
    (run,) = (tmp_path / "outputs").glob("*/*")
    assert (run / "encoder.safetensors").is_file()
    summary = json.loads((run / "summary.json").read_text())
    for score in ("knn", "linear"):  # what training is for
        assert summary[score] > summary["untrained"][score] + 0.02
