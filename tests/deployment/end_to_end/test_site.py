"""A site is one folder and one command: from zero to a trained round."""

import sys
from pathlib import Path

import pytest

from orchestra_flwr import load_encoder

pytestmark = pytest.mark.timeout(900)


@pytest.mark.slow
def test_two_sites_from_their_folders_to_a_trained_round(machines, monkeypatch):
    """Each makes its key itself, and prints the public half, which is registered."""
    machines.make_photos(a=24, b=24)
    table = machines.folder / "sites.csv"
    table.write_text("name,images\n" + "".join(f"{x},{machines.photos / x}\n" for x in "ab"))
    folder = f"folder={machines.security}"
    machines.keys("server", folder, "host=localhost")
    machines.keys("site", folder, f"server=localhost:{machines.port}", f"sites={table}")
    server = machines.server("federation.min_clients=2", "federation.rounds=1")
    server.wait_for("listening on")
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    for name in "ab":
        script = machines.security / "sites" / name / "start.sh"
        client = machines.start("sh", script, "device=cpu", "training.threads=1")
        client.wait_for("its key is not registered there")
        (line,) = (x for x in client.lines if x.startswith("ecdsa-") and x.endswith(f" {name}"))
        public = machines.folder / f"{name}.pub"
        public.write_text(line)
        machines.keys("register", folder, f"key={public}")
    assert server.wait() == 0, server.text
    assert load_encoder(machines.run).spec.image_size == 16
    assert machines.metrics()[-1]["clients"]["ok"] == 2
