"""Real servers and clients as processes of this machine, ended by their own process ids."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REPOSITORY = Path(__file__).parents[3]
ROGUE = Path(__file__).parent / "rogue_client.py"
SMALL = (
    "model.width=8",
    "model.projector_dim=16",
    "data.image_size=16",
    "federation.rounds=3",
    "training.local_epochs=1",
    "training.batch_size=16",
    "training.threads=1",
    "clustering.global_clusters=4",
    "clustering.local_clusters=2",
    "clustering.memory=32",
    "logging.progress=plain",
    "device=cpu",
)


def small(overrides):
    """What makes a run small, as far as its method reads it."""
    unread = ()
    if any(override.startswith("method=") for override in overrides):
        unread = ("clustering.",)
    elif "clustering=private" in overrides:
        unread = ("clustering.memory=",)
    if "logging.format=json" in overrides:
        unread += ("logging.progress=",)
    return [override for override in SMALL if not override.startswith(unread)]


PATIENCE = 400  # seconds; everything takes many times as long on a busy machine


def free_port():
    """A port of 127.0.0.1 on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Running:
    """A process with its output."""

    def __init__(self, command):
        self.lines = []
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self):
        return "\n".join(self.lines)

    @property
    def pid(self):
        return self._process.pid

    def wait_for(self, text, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} did not come:\n{self.text}"
            assert self._process.poll() is None or text in self.text, (
                f"ended before {text!r}:\n{self.text}"
            )
            time.sleep(0.1)

    def wait(self, seconds=PATIENCE):
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"did not end:\n{self.text}")
        self._reader.join(timeout=5)
        return code

    def send(self, number):
        self._process.send_signal(number)

    def end(self):
        if self._process.poll() is None:
            self.send(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _read(self):
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))


class Machines:
    """Starts servers and clients, and ends all of them with the test."""

    small = staticmethod(small)

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.run = folder / "run"
        self.security = folder / "security"
        self.photos = folder / "photos"
        self.inside = None  # the network namespace of what is started next
        self._running = []

    def start(self, *command):
        prefix = ["ip", "netns", "exec", self.inside] if self.inside else []
        running = Running([*prefix, *command])
        self._running.append(running)
        return running

    def server(self, *overrides, program="run_server.py"):
        run = (
            []
            if any(o.startswith("resume=") for o in overrides)
            else [*small(overrides), f"run_dir={self.run}"]
        )
        keys = f"security={self.security}" if self.security.is_dir() else "insecure=true"
        return self.start(
            sys.executable, program, f"port={self.port}", *run, keys, *overrides,
        )  # fmt: skip

    def client(self, name, *overrides, program="run_client.py", server="127.0.0.1"):
        """A client with the photographs of its name, and with its own keys where there are any."""
        bundle = self.security / "bundles" / name
        named = [f"security={bundle}"] if bundle.is_dir() else [f"name={name}", "insecure=true"]
        return self.start(
            sys.executable, program, f"server={server}:{self.port}", *named,
            f"data.root={self.photos / name}", f"state={self.folder / 'state'}",
            "device=cpu", "training.threads=1", *overrides,
        )  # fmt: skip

    def rogue(self, name, behaviour, *overrides, server="127.0.0.1"):
        """A client that misbehaves in the rounds that `behaviour` names."""
        os.environ["ROGUE"] = json.dumps(behaviour)
        try:
            return self.client(name, *overrides, program=ROGUE, server=server)
        finally:
            del os.environ["ROGUE"]

    def keys(self, *arguments):
        command = [sys.executable, "-m", "orchestra_flwr.deployment.keys", *arguments]
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def make_photos(self, **counts):
        """Folders of photographs of any size, each with as many as given."""
        rng = np.random.default_rng(0)
        for name, count in counts.items():
            (self.photos / name).mkdir(parents=True)
            for i in range(count):
                size = (int(rng.integers(20, 60)), int(rng.integers(20, 60)), 3)
                pixels = rng.integers(0, 256, size, dtype=np.uint8)
                Image.fromarray(pixels).save(self.photos / name / f"{i:03}.png")

    def metrics(self):
        return [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]

    def dropped(self):
        """(round, client, reason) of everything that was not used."""
        return [
            (record["round"], entry["client"], entry["reason"])
            for record in self.metrics()
            for entry in record["clients"]["dropped"]
        ]

    def end(self):
        for running in reversed(self._running):
            running.end()
            print(running.text)  # pytest shows it of a test that failed


@pytest.fixture
def machines(tmp_path):
    machines = Machines(tmp_path)
    yield machines
    machines.end()
