"""What docs/adapt.md and docs/deployment.md promise somebody with photographs at three places."""

import csv
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file
from safetensors.torch import save_file

from orchestra_flwr import cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SITES = {"north": 150, "south": 140, "west": 110}
SIZE = 224
CLASSES = ("across", "along")


def photograph(rng, label):
    """Smooth stripes of one of two directions, so that two classes can be told apart."""
    ramp = np.sin(np.arange(SIZE) / (6 + 10 * rng.random()) + rng.random())
    stripes = np.broadcast_to(ramp, (SIZE, SIZE)) if label else ramp[:, None].repeat(SIZE, 1)
    colours = 90 + 60 * stripes[..., None] * rng.random(3) + rng.normal(0, 8, (SIZE, SIZE, 3))
    return Image.fromarray(colours.clip(0, 255).astype(np.uint8))


def save_photographs(folder, count, rng):
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for i in range(count // 2):
            photograph(rng, label).save(folder / name / f"{i:03}.jpg")


def labels_of(machines, count):
    """A CSV with the classes of the first photographs of a site, as many of each class."""
    file = machines.folder / f"labels-{count}.csv"
    names = [f"north/{name}/{i:03}.jpg" for name in CLASSES for i in range(count // 2)]
    with file.open("w", newline="") as text:
        csv.writer(text).writerows([("path", "label"), *((n, n.split("/")[1]) for n in names)])
    return file


def run(command, *overrides):
    assert getattr(cli, f"{command}_main")(list(overrides)) == 0, command


def test_from_photographs_at_three_places_to_a_classifier_of_an_exported_encoder(machines):
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    rng = np.random.default_rng(0)
    for site, count in SITES.items():
        save_photographs(machines.photos / site, count, rng)
    weights = machines.folder / "lite0.safetensors"  # nothing can be downloaded here
    torch.manual_seed(1)
    network = timm.create_model("tf_efficientnet_lite0").train()
    for _ in range(20):  # statistics of some images, as pretrained BatchNorm has
        network(torch.rand(8, 3, 64, 64))
    save_file(network.state_dict(), weights)
    machines.keys(
        "server", f"folder={machines.security}", "host=localhost", f"client={','.join(SITES)}",
    )  # fmt: skip

    server = machines.start(
        sys.executable, "run_server.py", f"port={machines.port}", "preset=adapt",
        f"model.weights={weights}", "federation.min_clients=3", "federation.rounds=2",
        f"run_dir={machines.run}", f"security={machines.security}", "device=cpu",
        "logging.progress=plain",
    )  # fmt: skip
    server.wait_for("listening on 127.0.0.1")
    clients = [machines.client(site) for site in SITES]
    assert server.wait(1200) == 0, server.text
    for client in clients:  # they wait for another run
        client.wait_for("that was the last round")
    summary = json.loads((machines.run / "summary.json").read_text())
    assert summary["rounds"] == 2
    assert summary["bytes_up"] < 6e7  # norms and a projector, where the network has 18 MB

    compared = machines.folder / "compared"
    run("compare", f"after={machines.run}", f"images={machines.photos}",
        f"labels={labels_of(machines, 140)}", f"folder={compared}")  # fmt: skip
    assert {"comparison.json", "comparison.html"} <= {f.name for f in compared.iterdir()}

    labelled, exported = machines.folder / "labelled", machines.folder / "exported"
    run("label", f"run={machines.run}", f"images={machines.photos}",
        f"labels={labels_of(machines, 40)}", f"folder={labelled}")  # fmt: skip
    run("export", f"run={machines.run}", f"folder={exported}")
    session = onnxruntime.InferenceSession(exported / "encoder.onnx")
    classifier = load_file(labelled / "classifier.safetensors")
    right = 0
    for label in (0, 1) * 20:
        image = np.asarray(photograph(rng, label)).transpose(2, 0, 1)[None]
        (features,) = session.run(["features"], {"images": image})
        right += int((classifier["weight"] @ features[0] + classifier["bias"]).argmax() == label)
    assert right >= 28  # of 40 that nobody had seen; the network began with random weights
