"""A run on a Ray cluster of three nodes, all on this machine, each a tree of processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from orchestra_flwr.cli import main

REPOSITORY = Path(__file__).parents[3]
NODES = 3
RAY = Path(sys.executable).parent / "ray"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def cluster():
    """Starts a head and two other nodes, one core each: address, environment and processes."""
    port, nodes = free_port(), []
    with tempfile.TemporaryDirectory(prefix="or", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "RAY_TMPDIR": folder, "PYTHONPATH": str(REPOSITORY)}
        common = ["--num-cpus=1", "--node-ip-address=127.0.0.1", "--disable-usage-stats", "--block",
                  "--object-store-memory=200000000", f"--temp-dir={folder}/r"]  # fmt: skip
        roles = [
            ["--head", f"--port={port}", "--include-dashboard=false", *common],
            *[[f"--address=127.0.0.1:{port}", *common[:-1]]] * (NODES - 1),
        ]
        try:
            for role in roles:
                log = (Path(folder) / f"{len(nodes)}.log").open("w")
                nodes.append(
                    subprocess.Popen(
                        [RAY, "start", *role], env=environment, stdout=log, stderr=log,
                        start_new_session=True,
                    )
                )  # fmt: skip
                wait_for(lambda: is_open(port), 120)
            wait_for(lambda: raylets(nodes) == [1] * NODES, 180)
            yield f"127.0.0.1:{port}", environment, nodes
        finally:
            for node in reversed(nodes):
                if node.poll() is None:
                    os.killpg(node.pid, signal.SIGTERM)
                node.wait(60)


def is_open(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def wait_for(happened, seconds):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.2)


def processes():
    """Parent and title of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_text().replace("\0", " ")
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            found[int(entry.name)] = (int(parent), title)
    return found


def under(node, name):
    """Ids of a node's processes whose title holds a name."""
    table = processes()

    def descends(pid):
        while pid in table and pid != node.pid:
            pid = table[pid][0]
        return pid == node.pid

    return {pid for pid, (_, title) in table.items() if name in title and descends(pid)}


def raylets(nodes):
    return [len(under(node, "/raylet/raylet ")) for node in nodes]


LONG = ("federation.rounds=3", "training.local_epochs=10", "seed=4")


class Remote:
    """A run on the cluster, in a process of its own."""

    def __init__(self, cluster, folder, overrides):
        address, environment, self.nodes = cluster
        self.folder, self.log = folder / "cluster", folder / "log"
        self.worked = [set() for _ in self.nodes]  # ids of processes that trained, by node
        self.process = subprocess.Popen(
            [sys.executable, str(REPOSITORY / "run_sim.py"), *overrides, *LONG, "engine=ray",
             f"engine.address={address}", f"run_dir={self.folder}"],
            env=environment, cwd=folder, stdout=self.log.open("w"), stderr=subprocess.STDOUT,
        )  # fmt: skip

    def watch(self, until):
        """Looks at who trains until something holds, or the run ends."""
        while self.process.poll() is None and not until():
            for pids, node in zip(self.worked, self.nodes, strict=True):
                pids.update(under(node, "ClientAppActor.run"))
            time.sleep(0.05)

    def check(self, inline):
        """It ended well, with the bits of a run in one process."""
        assert self.process.wait() == 0, self.log.read_text()
        a, b = (load_file(folder / "encoder.safetensors") for folder in (inline, self.folder))
        assert a.keys() == b.keys()
        assert all((a[name] == b[name]).all() for name in a)
        metrics = (self.folder / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["clients"]["ok"] for line in metrics] == [4] * 4


@pytest.fixture
def inline(tmp_path, tiny_overrides):
    folder = tmp_path / "inline"
    assert main([*tiny_overrides, *LONG, f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture
def remote(cluster, tmp_path, tiny_overrides):
    run = Remote(cluster, tmp_path, tiny_overrides)
    yield run
    run.process.kill()
    run.process.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cluster_gives_the_same_bits_and_several_nodes_work(inline, remote):
    remote.watch(lambda: False)
    remote.check(inline)
    assert sum(map(bool, remote.worked)) > 1, f"clients were trained by {remote.worked}"
    assert raylets(remote.nodes) == [1] * NODES  # the run has left the cluster as it was


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_that_is_lost_while_it_trains_changes_no_bit(inline, remote):
    remote.watch(lambda: any(remote.worked[1:]))  # the first one is the head
    assert remote.process.poll() is None, remote.log.read_text()
    lost = next(node for node, pids in zip(remote.nodes, remote.worked, strict=True)
                if pids and node is not remote.nodes[0])  # fmt: skip
    os.killpg(lost.pid, signal.SIGKILL)
    remote.check(inline)


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_refused_in_a_line(tmp_path, tiny_overrides):
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "run_sim.py"), *tiny_overrides, "engine=ray",
         f"engine.address=127.0.0.1:{free_port()}", f"run_dir={tmp_path / 'run'}"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "engine.address=127.0.0.1" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
