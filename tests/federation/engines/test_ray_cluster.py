"""A run on a Ray cluster of two nodes, both on this machine, each a tree of processes."""

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
RAY = Path(sys.executable).parent / "ray"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def cluster(request):
    """Starts a head and a second node; returns the address, the environment and the nodes.

    The head has one core, or as many as the test asks for; the other one has one.
    """
    port, nodes, cores = free_port(), [], getattr(request, "param", 1)
    with tempfile.TemporaryDirectory(prefix="or", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "RAY_TMPDIR": folder, "PYTHONPATH": str(REPOSITORY)}
        common = ["--node-ip-address=127.0.0.1", "--disable-usage-stats", "--block",
                  "--object-store-memory=100000000"]  # fmt: skip
        roles = (
            ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}/r",
             f"--num-cpus={cores}", *common],
            [f"--address=127.0.0.1:{port}", "--num-cpus=1", *common],
        )  # fmt: skip
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
            wait_for(lambda: raylets(nodes) == [1, 1], 180)
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
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_text().replace("\0", " ")
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            table[int(entry.name)] = (int(parent), title)
    return table


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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cluster_gives_the_same_bits_and_every_node_works(cluster, tmp_path, tiny_overrides):
    address, environment, nodes = cluster
    long = ["federation.rounds=3", "training.local_epochs=10", "seed=4"]
    inline, remote = tmp_path / "inline", tmp_path / "cluster"
    assert main([*tiny_overrides, *long, f"run_dir={inline}"]) == 0
    log = tmp_path / "log"
    run = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "run_sim.py"), *tiny_overrides, *long, "engine=ray",
         f"engine.address={address}", f"run_dir={remote}"],
        env=environment, cwd=tmp_path, stdout=log.open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    worked = [set(), set()]
    try:
        while run.poll() is None:
            for pids, node in zip(worked, nodes, strict=True):
                pids.update(under(node, "ClientAppActor.run"))
            time.sleep(0.05)
    finally:
        run.kill()
    assert run.wait() == 0, log.read_text()
    assert all(worked), f"clients were trained by {worked}"
    a, b = (load_file(folder / "encoder.safetensors") for folder in (inline, remote))
    assert a.keys() == b.keys()
    assert all((a[name] == b[name]).all() for name in a)
    records = [json.loads(line) for line in (remote / "metrics.jsonl").read_text().splitlines()]
    assert [record["clients"]["ok"] for record in records] == [4] * 4
    assert raylets(nodes) == [1, 1]  # the run has left the cluster as it was


@pytest.fixture
def lose_in_mid_round(cluster, tmp_path, tiny_overrides):
    """Starts a run on the cluster, kills the second node at work; returns exit code, log, folder.

    Where the head has one core, it is taken: the clients of the lost node find no free one.
    """
    address, environment, nodes = cluster
    runs = []

    def lose(*overrides):
        folder, log = tmp_path / "cluster", tmp_path / "log"
        runs.append(subprocess.Popen(
            [sys.executable, str(REPOSITORY / "run_sim.py"), *tiny_overrides, *overrides,
             "engine=ray", f"engine.address={address}", f"run_dir={folder}"],
            env=environment, cwd=tmp_path, stdout=log.open("w"), stderr=subprocess.STDOUT,
        ))  # fmt: skip
        metrics = folder / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 1, 200)
        wait_for(lambda: under(nodes[1], "ClientAppActor.run"), 60)
        for pid in under(nodes[1], ""):
            os.kill(pid, signal.SIGKILL)
        return runs[-1].wait(150), log.read_text(), folder

    yield lose
    for run in runs:
        run.kill()
        run.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_clients_of_a_lost_node_are_trained_by_the_others(
    lose_in_mid_round, tmp_path, tiny_overrides
):
    long = ["federation.rounds=20", "training.local_epochs=20", "evaluation.every=20"]
    inline = tmp_path / "inline"
    assert main([*tiny_overrides, *long, f"run_dir={inline}"]) == 0
    code, log, remote = lose_in_mid_round(*long)
    assert code == 0, log
    assert log.count("was lost: ") == 1, log
    a, b = (load_file(folder / "encoder.safetensors") for folder in (inline, remote))
    assert a.keys() == b.keys()
    assert all((a[name] == b[name]).all() for name in a)
    records = [json.loads(line) for line in (remote / "metrics.jsonl").read_text().splitlines()]
    assert [record["clients"]["ok"] for record in records] == [4] * 21


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cluster", [0], indirect=True)
def test_a_run_whose_last_node_is_lost_ends_in_a_line(lose_in_mid_round):
    code, log, folder = lose_in_mid_round("federation.rounds=9", "training.local_epochs=20")
    assert code == 1, log
    (error,) = [line for line in log.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: engine=ray: no machine of the cluster "), log
    advice = f"continue with: python run_sim.py resume={folder}"
    assert log.splitlines()[-1].partition("; ")[0] == advice
    assert "Traceback" not in log


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
