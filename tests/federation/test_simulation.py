"""Real Flower on real Ray: the same bits by every road, and what happens when workers die."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def sim(tmp_path, tiny_overrides):
    """Starts `run_sim.py` as a process of its own; returns the process and its run folder."""
    processes = []

    def start(name, *overrides):
        folder = tmp_path / name
        command = [sys.executable, str(REPOSITORY / "run_sim.py"), *overrides]
        if not any(o.startswith("resume=") for o in overrides):
            command += [*tiny_overrides, *overrides, f"run_dir={folder}"]
        log = (tmp_path / f"{name}.log").open("w")
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path, start_new_session=True
        )
        processes.append(process)
        return process, folder

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def finish(process, folder, code=0):
    log = folder.parent / f"{folder.name}.log"
    assert process.wait(timeout=240) == code, log.read_text()
    return log.read_text()


def metrics(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_round(process, folder, number):
    deadline = time.monotonic() + 120
    while not any(record["round"] >= number for record in metrics(folder)):
        assert process.poll() is None, "the run ended early"
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.02)


def actors(process, at_work=False):
    """Ray's client actors under a run, found by the run's own process ids."""
    name = "ClientAppActor.run" if at_work else "ClientAppActor"
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "status").read_text()
                title = (entry / "cmdline").read_text()
            except OSError:
                continue
            parent = int(status.split("PPid:")[1].split()[0])
            parents[int(entry.name)] = (parent, title)

    def descends(pid):
        while pid in parents:
            if pid == process.pid:
                return True
            pid = parents[pid][0]
        return False

    return [p for p, (_, title) in parents.items() if name in title and descends(p)]


def assert_same_bits(first, second):
    a, b = load_file(first / "encoder.safetensors"), load_file(second / "encoder.safetensors")
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert (tensor == b[name]).all(), name


def test_same_bits_inline_with_one_worker_with_two_and_after_sigkill(sim):
    """The whole determinism contract at once, since starting Ray costs seconds."""
    long = ["federation.rounds=4", "federation.participation=0.75", "seed=3"]
    inline = sim("inline", *long)
    finish(*inline)
    for name, workers in (("one", 1), ("two", 2)):
        run = sim(name, *long, "engine=ray", f"ray.workers={workers}")
        finish(*run)
        assert_same_bits(inline[1], run[1])

    process, folder = sim("killed", *long, "engine=ray", "training.local_epochs=1")
    wait_for_round(process, folder, 2)
    os.killpg(process.pid, signal.SIGKILL)  # in the middle of round 3
    process.wait()
    assert not (folder / "encoder.safetensors").exists()
    resumed, _ = sim("resumed", f"resume={folder}")
    finish(resumed, folder.parent / "resumed")
    assert_same_bits(inline[1], folder)
    told = [
        [(r["round"], r["loss"], r.get("scores")) for r in metrics(f)] for f in (inline[1], folder)
    ]
    assert told[0] == told[1]


def test_a_killed_actor_costs_nothing_but_time(sim):
    """Its client is trained again, from the same seed, and the run ends in the same bits."""
    long = ["engine=ray", "federation.rounds=2", "training.local_epochs=60", "ray.workers=2"]
    undisturbed = sim("undisturbed", *long)
    finish(*undisturbed)
    process, folder = sim("run", *long)
    wait_for_round(process, folder, 1)
    time.sleep(0.5)
    victims = actors(process)
    assert len(victims) == 2
    os.kill(victims[0], signal.SIGKILL)
    finish(process, folder)
    assert victims[0] not in actors(process)
    assert metrics(folder)[-1]["clients"]["ok"] == 4
    assert_same_bits(undisturbed[1], folder)


def test_a_client_that_kills_its_actor_twice_is_dropped_and_the_round_goes_on(sim):
    process, folder = sim(
        "run", "engine=ray", "federation.rounds=2", "training.local_epochs=100", "ray.workers=1",
        "federation.min_success=0.25",
    )  # fmt: skip
    wait_for_round(process, folder, 1)
    killed = set()
    while len(killed) < 2:
        time.sleep(0.3)
        fresh = set(actors(process, at_work=True)) - killed
        for victim in fresh:
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
    finish(process, folder)
    dropped = metrics(folder)[-1]["clients"]["dropped"]
    assert len(dropped) == 1 and "Actor" in dropped[0]["reason"]
    assert metrics(folder)[-1]["clients"]["ok"] == 3
    assert (folder / "encoder.safetensors").exists()


def test_all_clients_failing_is_exit_code_1_with_the_first_error(sim):
    log = finish(*sim("run", "engine=ray", "training.lr=1e30", "training.local_epochs=4"), code=1)
    assert "client 0: TrainingError" in log
    assert "Traceback" not in log
