"""What deploy/compose.yaml starts, as processes of this machine: its paths are folders here."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from orchestra_flwr.cli import submit_main

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "deploy" / "compose.yaml"
pytestmark = pytest.mark.timeout(900)


def container(machines, services, secrets, name):
    """A service's folder: its keys where its secrets are put, and its command for this machine."""
    folder = machines.folder / name
    for secret in services[name]["secrets"]:
        target = folder / secret["target"].lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(machines.folder / secrets[secret["source"]]["file"], target)
        target.chmod(0o600)
    for volume in services[name]["volumes"][1:]:  # the first one is its home
        source, _, target = volume.removesuffix(":ro").rpartition(":")
        inside = folder / target.lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        place = machines.photos / name if source.startswith("$") else machines.folder / source
        inside.symlink_to(place)
    text = json.dumps(services[name]["command"])
    for here, there in {
        "/etc/": f"{folder}/etc/",
        "=/data": f"={folder}/data",
        "queue=": f"queue={folder}/",
        "server=server:8443": f"server=localhost:{machines.port}",
    }.items():
        text = text.replace(here, there)
    return folder, json.loads(text)


@pytest.mark.slow
def test_what_compose_starts_trains_a_round_and_goes_on_when_it_is_started_again(machines):
    compose = yaml.safe_load(FILE.read_text())
    services, secrets = compose["services"], compose["secrets"]
    made = next(x for x in FILE.read_text().splitlines() if "orchestra-keys server" in x)
    words = made.split("orchestra-keys ")[1].split()
    folder = f"folder={machines.security}"
    machines.keys(*(folder if w.startswith("folder=") else w for w in words))
    machines.make_photos(a=32, b=32)
    home, arguments = container(machines, services, secrets, "server")

    def serve():
        command = [sys.executable, "run_server.py", "host=0.0.0.0", f"port={machines.port}"]
        return machines.start(*command, *arguments)

    server = serve()
    server.wait_for("listening on")
    small = [override for override in machines.small(()) if not override.startswith("logging.")]
    assert submit_main([f"queue={home}/runs", *small, "federation.rounds=4"]) == 0
    clients = {}
    for name in "ab":
        _, words = container(machines, services, secrets, name)
        state = f"state={machines.folder / name / '.local/state/orchestra_flwr'}"
        program = [sys.executable, "run_client.py", "device=cpu", "training.threads=1"]
        clients[name] = machines.start(*program, *words, state)
    assert is_well(machines.port)
    server.wait_for("round 1/4")
    server.send(signal.SIGKILL)
    server.wait()
    again = serve()
    again.wait_for("run 0001: goes on")
    again.wait_for("run 0001: done")
    summary = json.loads((home / "runs" / "0001" / "run" / "summary.json").read_text())
    assert summary["encoder_sent"]["clients"] == ["a", "b"]
    for name in "ab":
        *_, test = services[name]["healthcheck"]["test"]
        done = subprocess.run(["sh", "-c", test], cwd=machines.folder / name, check=False)
        assert done.returncode == 0, clients[name].text


def is_well(port):
    """As the server's health check asks, within a minute."""
    spec = importlib.util.spec_from_file_location("health", ROOT / "deploy" / "health.py")
    health = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(health)
    deadline = time.monotonic() + 60
    while not health.is_well(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
