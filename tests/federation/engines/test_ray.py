"""Real Flower on real Ray: the same bits by every road, and what happens when workers die."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import pytest
from safetensors.torch import load_file

from orchestra_flwr.cli import main
from orchestra_flwr.data import load_dataset
from orchestra_flwr.federation import simulation
from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.engines import ray as ray_engine
from orchestra_flwr.federation.engines.inline import InlineGrid
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import CONFIG
from orchestra_flwr.federation.population import Population
from orchestra_flwr.flower.ray_start import NICENESS, RayStart
from orchestra_flwr.reporting import Progress

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def sim(tmp_path, tiny_overrides):
    """Starts `run_sim.py` as a process of its own; returns the process and its run folder."""
    processes = []

    def start(name, *overrides, tiny=tiny_overrides):
        folder = tmp_path / name
        command = [sys.executable, str(REPOSITORY / "run_sim.py"), *overrides]
        if not any(o.startswith("resume=") for o in overrides):
            command += [*tiny, *overrides, f"run_dir={folder}"]
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
    assert process.wait(timeout=400) == code, log.read_text()
    return log.read_text()


def metrics(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_round(process, folder, number):
    deadline = time.monotonic() + 300
    while not any(record["round"] >= number for record in metrics(folder)):
        assert process.poll() is None, "the run ended early"
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.02)


def actors(process, at_work=False):
    """Ray's client actors under a run, found by the run's own process ids."""
    return below(process.pid, "ClientAppActor.run" if at_work else "ClientAppActor")


def below(root, name):
    """Ids of the processes under another one whose command lines hold a name."""
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
            if pid == root:
                return True
            pid = parents[pid][0]
        return False

    return [p for p, (_, title) in parents.items() if name in title and descends(p)]


def assert_same_bits(first, second):
    a, b = load_file(first / "encoder.safetensors"), load_file(second / "encoder.safetensors")
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert (tensor == b[name]).all(), name


def assert_same_run(first, second):
    assert_same_bits(first, second)
    ours, theirs = (
        [(r["round"], r["loss"], r.get("scores")) for r in metrics(f)] for f in (first, second)
    )
    assert ours == theirs


@pytest.mark.timeout(900)
def test_same_bits_inline_and_on_ray_with_a_killed_worker(
    sim, tmp_path, tiny_overrides, exact_probes
):
    """One start of Ray with two workers; the killed one's client is trained again.

    None of the three imports what lies in the folder in which the command is called.
    """
    for name in ("orchestra_flwr", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    long = ["federation.participation=0.75", "seed=3", "training.local_epochs=20"]
    long += ["terms.verification.weight=1", "terms.verification.hidden=16"]  # rows by numbers
    inline = tmp_path / "inline"
    assert main([*tiny_overrides, *long, f"run_dir={inline}"]) == 0

    process, folder = sim("ray", *long, "engine=ray", "engine.workers=2")
    wait_for_round(process, folder, 1)
    wait_until(lambda: actors(process, at_work=True), 90)
    os.kill(actors(process)[0], signal.SIGKILL)
    finish(process, folder)

    assert_same_run(inline, folder)
    assert [r["clients"]["ok"] for r in metrics(folder)] == [3] * 3


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("adaptation", ["full", "blocks"])
def test_killed_on_ray_and_resumed_with_another_number_of_workers(
    sim, tmp_path, tiny_overrides, adaptation
):
    """The whole run is killed in mid-round; what nobody trains is what it was."""
    long = ["federation.rounds=3", "seed=3", "training.local_epochs=30", f"adaptation={adaptation}"]
    inline = tmp_path / "inline"
    assert main([*tiny_overrides, *long, f"run_dir={inline}"]) == 0

    process, folder = sim("ray", *long, "engine=ray", "engine.workers=2")
    wait_for_round(process, folder, 1)
    wait_until(lambda: actors(process, at_work=True), 90)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "encoder.safetensors").exists()
    resumed, _ = sim("resumed", f"resume={folder}", "engine.workers=1")
    finish(resumed, folder.parent / "resumed")
    assert_same_run(inline, folder)
    frozen = [{f.name: f.read_bytes() for f in run_folder.glob("checkpoint/frozen/*")}
              for run_folder in (inline, folder)]  # fmt: skip
    assert frozen[0] == frozen[1] and bool(frozen[0]) == (adaptation != "full")


def releases(folder):
    path = folder / "checkpoint" / "releases.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_the_ledger_is_exact_after_sigkill_and_resume(sim, tmp_path, tiny_overrides):
    """Killed after the clients of round 3 were asked and before the round was over."""
    private = [o for o in tiny_overrides if not o.startswith("clustering.memory")]
    private += ["clustering=private", "privacy.epsilon=20", "seed=8"]
    private += ["privacy.total_epsilon=38", "federation.rounds=4", "federation.participation=0.5"]
    private += ["training.local_epochs=12", "evaluation.every=100"]
    whole = tmp_path / "whole"
    assert main([*private, f"run_dir={whole}"]) == 0

    process, folder = sim("killed", *private, tiny=())
    wait_until(lambda: any(line["round"] == 3 for line in releases(folder)), 200)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert [record["round"] for record in metrics(folder)] == [0, 1, 2]
    resumed, _ = sim("resumed", f"resume={folder}")
    finish(resumed, folder.parent / "resumed")

    # Round 3 stands in the record twice, with the same clients and the same noise: one release.
    assert [line["round"] for line in releases(folder)] == [2, 3, 3, 4]
    ours, theirs = (json.loads((f / "summary.json").read_text()) for f in (folder, whole))
    assert ours["privacy"] == theirs["privacy"]
    assert ours["epsilon_spent"] == theirs["epsilon_spent"] > 20
    counts = ours["privacy"]["centroids"]["releases"]
    assert sum(counts.values()) < 3 * 2  # somebody had spent the total, and was not asked again
    spent = [[r["privacy"] for r in metrics(f)] for f in (folder, whole)]
    assert spent[0] == spent[1]
    assert_same_bits(folder, whole)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_client_that_kills_every_actor_is_dropped_and_the_round_goes_on(sim):
    """Ray tries a client twice, and once more when no other one is under way.

    Six kills are two of the first client, two of the second, and two of the first alone.
    """
    process, folder = sim(
        "run", "engine=ray", "federation.rounds=2", "training.local_epochs=100", "engine.workers=1",
        "federation.min_success=0.25", "federation.participation=0.5",
    )  # fmt: skip
    wait_for_round(process, folder, 1)
    killed = set()
    while len(killed) < 6:
        time.sleep(0.3)
        assert process.poll() is None, "the run ended early"
        fresh = set(actors(process, at_work=True)) - killed
        for victim in fresh:
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
    finish(process, folder)
    dropped = metrics(folder)[-1]["clients"]["dropped"]
    assert len(dropped) == 1 and "Actor" in dropped[0]["reason"]
    assert metrics(folder)[-1]["clients"]["ok"] == 1
    assert (folder / "encoder.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", ["raylet/raylet", "gcs/gcs_server"])
def test_a_run_whose_ray_is_killed_ends_in_a_line(tmp_path, tiny_overrides, program):
    """Below process 1, as a service: there Ray itself would end the run without a word.

    No client counts as failed for it, though the round could do without one.
    """
    folder, log = tmp_path / "run", tmp_path / "log"
    command = [sys.executable, str(REPOSITORY / "run_sim.py"), *tiny_overrides, "engine=ray",
               "federation.rounds=50", "federation.min_success=0.25", "engine.workers=2",
               "training.local_epochs=1000", f"run_dir={folder}"]  # fmt: skip
    shell = ["sh", "-c", f"{shlex.join(command)} >{log} 2>&1 & echo $!"]
    pid = int(subprocess.run(shell, capture_output=True, text=True, check=True).stdout)
    try:
        wait_until(lambda: metrics(folder) or "error" in log.read_text(), 500)
        wait_until(lambda: len(below(pid, f"/{program}\0")) == 1, 200)  # two where it just forks
        # While a client is being given to a worker Ray itself may end the process (load_ray).
        wait_until(lambda: len(below(pid, "ClientAppActor.run")) == 2, 200)
        (victim,) = below(pid, f"/{program}\0")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), 200)
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
    lines = log.read_text().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, lines
    assert errors[0].startswith(
        f"error: engine=ray: Ray's process {Path(program).name} was killed by signal 9"
    )
    assert lines[-1].partition("; ")[0] == f"continue with: python run_sim.py resume={folder}"
    assert not any("Traceback" in line for line in lines)
    assert all(record["clients"]["dropped"] == [] for record in metrics(folder))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_run_says_how_it_goes_on(sim, number, code):
    process, folder = sim("run", "engine=ray", "federation.rounds=200", "engine.workers=1")
    wait_for_round(process, folder, 1)
    os.kill(process.pid, number)
    log = finish(process, folder, code)
    done, advice = re.search(r"stopped after round (\d+) of 200; (continue .*)\n$", log).groups()
    command = f"python run_sim.py resume={folder}"
    end = f"{command} federation.rounds={done}"
    assert advice == f"continue with: {command}; or end it there: {end}"
    assert "Traceback" not in log
    assert not actors(process)


@pytest.mark.slow
@pytest.mark.parametrize("busy", ["clients at the same time: 2", "round 1/1 training"])
def test_a_run_that_is_stopped_while_workers_start_or_train_for_long_ends(sim, busy):
    process, folder = sim("run", "engine=ray", "engine.workers=2", "training.local_epochs=100000",
                          "federation.rounds=1")  # fmt: skip
    log = folder.parent / "run.log"
    wait_until(lambda: busy in log.read_text(), 200)
    if "training" in busy:
        wait_until(lambda: actors(process, at_work=True), 60)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=100) == 130, log.read_text()
    advice = f"was done; continue with: python run_sim.py resume={folder}"
    assert log.read_text().rstrip().endswith(advice)


@pytest.mark.parametrize("gone", [False, True])
def test_clients_are_ended_before_ray(gone):
    """Where Ray cannot be asked any more, threads may still come back by themselves."""

    class Grid:
        unanswered: ClassVar = {"a", "b"}
        asked: ClassVar = []

        def pull_messages(self, ids):
            assert ids == self.unanswered and ended
            self.asked.append(ids)
            self.unanswered -= {"a"} if len(self.asked) == 2 else set()
            self.unanswered -= {"b"} if len(self.asked) == 4 else set()

    ended = []

    class Workers:
        def terminate_all_actors(self):
            ended.append("workers")
            if gone:
                raise ConnectionError("the cluster's head is gone")

    ray_engine._stop_clients(Grid(), Workers())
    assert len(Grid.asked) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_servers_thread_before_ray(number):
    over, served, ended = threading.Event(), threading.Event(), []

    def serve():
        over.wait()
        ended.append("server")
        served.set()

    def stop(number, frame):
        ended.append("command")
        raise KeyboardInterrupt

    before = signal.signal(number, stop)
    try:
        threading.Thread(target=serve).start()
        with pytest.raises(KeyboardInterrupt), ray_engine._ended_before_ray(over, served):
            os.kill(os.getpid(), number)
            time.sleep(20)
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)
    assert ended == ["server", "command"]


def test_ray_that_does_not_start_is_one_line(tiny, monkeypatch):
    """Really Ray: it refuses to start with less than no core."""
    backend = {"init_args": {"num_cpus": -1}, "client_resources": {"num_cpus": 1, "num_gpus": 0}}
    monkeypatch.setattr("orchestra_flwr.federation.engines.ray.ray_backend", lambda config: backend)
    config = tiny("engine=ray")
    before = signal.getsignal(signal.SIGTERM)
    line = "^engine=ray: Ray does not start here: .*engine=inline needs no Ray"
    engine = config.engine.build(config)
    engine.begin()
    with pytest.raises(FederationError, match=line) as error:
        engine.run(lambda grid, workers: {}, 1)
    assert "\n" not in str(error.value)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("own", [None, "7"])
def test_rays_processes_find_the_same_modules_and_workers_give_way_to_nobody(monkeypatch, own):
    if own is None:
        monkeypatch.delenv(NICENESS, raising=False)
    else:
        monkeypatch.setenv(NICENESS, own)
    import ray

    before, seen = dict(os.environ), {}
    monkeypatch.setattr(ray, "init", lambda **options: seen.update(os.environ))
    start = RayStart({})
    start.wait()
    start.end()
    assert seen[NICENESS] == (own or "0")
    assert seen["PYTHONPATH"].split(os.pathsep) == sys.path
    assert dict(os.environ) == before


def test_ray_is_started_a_second_time(monkeypatch, caplog):
    asked = []

    import ray

    def fail_once(num_cpus, **others):
        asked.append(num_cpus)
        if len(asked) == 1:
            raise RuntimeError("timed out during startup")

    monkeypatch.setattr(ray, "init", fail_once)
    start = RayStart({"num_cpus": 1})
    start.wait()
    start.end()
    assert asked == [1, 1]
    assert "Ray did not start: starting it again" in caplog.text


@pytest.mark.slow
def test_all_clients_failing_is_exit_code_1_with_the_first_error(sim):
    log = finish(*sim("run", "engine=ray", "training.lr=1e30", "training.local_epochs=4"), code=1)
    assert ": TrainingError" in log
    assert "Traceback" not in log


def peak_memory(process):
    """The process's own peak resident memory in MB, without its workers, once it has ended."""
    peak = 0
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = max(
            [peak, *(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)]
        )
        time.sleep(0.1)
    return peak / 1024


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_hundred_clients_of_resnet18_in_the_servers_flat_memory(sim):
    """One round of 50 and one of 15 clients, 90 MB each way: the server's memory is the same.

    Holding the replies of 50 clients would take 3.1 GB more than those of 15.
    """
    run = ["model=resnet18", "model.width=64", "model.projector_dim=512", "data.train_limit=300"]
    run += ["engine=ray", "federation.rounds=1", "federation.participation=0.5", "partition=iid"]
    peaks = {}
    for clients in (30, 100):
        process, folder = sim(str(clients), *run, f"federation.clients={clients}")
        peaks[clients] = peak_memory(process)
        finish(process, folder)
        record = metrics(folder)[-1]
        assert record["clients"]["ok"] == record["clients"]["cohort"] == clients // 2
        assert record["bytes_up"] > clients // 2 * 89e6
    print(f"peak memory of the server in MB by clients: {peaks}")
    assert peaks[100] < peaks[30] + 700, peaks


@pytest.mark.parametrize(
    ("clients", "workers", "nodes"),
    [(30, 2, 30), (1000, 2, 100), (1000, 200, 202), (150, 200, 150)],
)
def test_a_large_population_shares_a_hundred_nodes(tiny, monkeypatch, clients, workers, nodes):
    """As many as clients can be under way at most, and no more than a hundred without need."""
    asked = []
    monkeypatch.setattr(simulation, "recorded_split", lambda *_: nullcontext())
    monkeypatch.setattr(ray_engine, "worker_count", lambda *_: workers)
    monkeypatch.setattr(ray_engine.RayEngine, "_wait_for_ray", lambda self: None)
    monkeypatch.setattr(ray_engine, "_run_ray", lambda count, *_: asked.append(count) or {})
    config = tiny("engine=ray")
    parts = dict.fromkeys(map(str, range(clients)), (0,))
    population = Population(load_dataset(config.data), parts)
    simulation.simulate(config, population, None, Progress(1), config.engine.build(config))
    assert asked == [nodes]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_flwr_run_trains_the_same_app(tmp_path, tiny_overrides):
    """`flwr run .` under a SuperLink of its own, which is ended by its id: 4 clients on 2 nodes."""
    bin_ = Path(sys.executable).parent
    home = tmp_path / "home"
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home.mkdir()
    connection = f'[superlink.own]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "own"\n{connection}')
    log = (tmp_path / "superlink.log").open("w")
    superlink = subprocess.Popen(
        [bin_ / "flower-superlink", "--insecure", "--simulation", "--port", str(port),
         "--disable-runtime-dependency-installation"],
        env=environment, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    overrides = [o for o in tiny_overrides if not o.startswith("engine=")]
    try:
        wait_until(lambda: is_open(port), 120)
        subprocess.run(
            [bin_ / "flwr", "run", str(REPOSITORY), "--federation-config", "num-supernodes=2",
             "--run-config", f"overrides='{' '.join([*overrides, f'run_dir={tmp_path}/run'])}'"],
            env=environment, check=True, timeout=300,
        )  # fmt: skip
        wait_until((tmp_path / "run" / "summary.json").exists, 900)
    finally:
        os.killpg(superlink.pid, signal.SIGKILL)
        superlink.wait()
    assert [r["clients"]["ok"] for r in metrics(tmp_path / "run")] == [4, 4, 4]
    assert (tmp_path / "run" / "partition.json").exists()


def is_open(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def wait_until(happened, seconds):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def test_every_worker_is_asked_to_load_the_runs_images(tiny):
    """Before the server does anything else; nobody waits for the answers."""
    sent = []

    class TwoNodes(InlineGrid):
        def get_node_ids(self):
            return [1, 2]

        def push_messages(self, messages):
            sent.extend(messages)
            return []

    ray_engine.warm_up(TwoNodes(client_app), 5, tiny())
    assert [message.metadata.dst_node_id for message in sent] == [1, 2, 1, 2, 1]
    assert {message.metadata.message_type for message in sent} == {"query"}
    assert {message.content[CONFIG]["config"] for message in sent} == {tiny().to_json()}
