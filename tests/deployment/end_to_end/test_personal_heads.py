"""Real clients judge heads of their own; some of them say how good these are."""

import json

import numpy as np
import pytest
from PIL import Image

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


def make_classes(folder, count):
    """Photographs of two classes, bright and dark."""
    rng = np.random.default_rng(count)
    for name, low in (("dark", 0), ("bright", 150)):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(low, low + 100, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i:02}.png")


def test_figures_are_of_those_clients_that_allow_it(machines):
    for number, name in enumerate(("a", "b", "c")):
        make_classes(machines.photos / name, 12 + number)
    server = machines.server(
        "federation.min_clients=3", "federation.rounds=1", "method=simclr",
        "evaluation.personal_labels=10",
    )  # fmt: skip
    server.wait_for("listening on 127.0.0.1")
    allowed = "share.personal_accuracy=true"
    clients = {
        "a": machines.client("a", allowed),
        "b": machines.client("b"),
        "c": machines.client("c", allowed),
    }
    assert server.wait(1200) == 0, server.text
    for client in clients.values():
        client.end()
        assert client.wait() == 0, client.text
    sent = {}
    for name, client in clients.items():
        lines = [line for line in client.lines if "round 1: accuracy of a head" in line]
        sent[name] = "not sent" not in lines[-1]
    assert sent == {"a": True, "b": False, "c": True}
    personal = json.loads((machines.run / "summary.json").read_text())["clients_own"]["personal"]
    assert personal["clients"] == 2
    assert 0 <= personal["worst_tenth"] <= personal["mean"] <= 1 and personal["std"] >= 0
    assert machines.metrics()[-1]["clients_own"]["personal"] == personal
    assert machines.dropped() == []
