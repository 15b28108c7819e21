"""The fault suite: every check fails where it should, every fault is real."""

import base64
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def echo():
    """A server that sends back what it gets; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(connection):
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data)

        def accept():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=[connection], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]


def connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_link_passes_stalls_and_is_cut(echo):
    from faults.link import Link

    with Link(echo) as link, connected(link.port) as client:
        client.sendall(b"one")
        assert client.recv(10) == b"one"
        link.stall()
        time.sleep(0.1)
        client.sendall(b"two")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(10)
        link.mend()
        client.settimeout(5)
        assert client.recv(10) == b"two"  # held up, not lost
        link.cut()
        with pytest.raises(ConnectionError):
            assert client.recv(10) == b""
            raise ConnectionResetError
        with pytest.raises(ConnectionError), connected(link.port) as refused:
            refused.sendall(b"x")
            assert refused.recv(10) == b""
            raise ConnectionResetError
        link.mend()
        with connected(link.port) as again:
            again.sendall(b"three")
            assert again.recv(10) == b"three"


def test_requests_are_found_in_pieces_of_bytes():
    from faults.link import header, requests_of, with_header

    one = b"POST /a HTTP/1.1\r\nContent-Length: 5\r\nflwr-timestamp: now\r\n\r\nhello"
    other = b"POST /b HTTP/1.1\r\nhost: x\r\n\r\n"
    requests = []
    listen = requests_of(requests)
    for i in range(0, len(one + other), 7):
        listen((one + other)[i : i + 7])
    assert requests == [one, other]
    assert header(one, "flwr-timestamp") == "now" and header(other, "flwr-timestamp") is None
    assert header(with_header(one, "flwr-timestamp", "then"), "flwr-timestamp") == "then"
    assert with_header(one, "flwr-timestamp", "then").endswith(b"hello")


@pytest.mark.slow
def test_a_clock_jumps_in_a_running_process(tmp_path):
    from faults.clock import Clock

    try:
        clock = Clock(tmp_path / "clock")
    except OSError as error:
        pytest.skip(str(error))
    code = "import time\nwhile input(): print(time.time(), time.monotonic(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **clock.environment},
    ) as process:  # fmt: skip

        def read():
            process.stdin.write("x\n")
            process.stdin.flush()
            return [float(word) for word in process.stdout.readline().split()]

        assert abs(read()[0] - time.time()) < 5
        clock.set(-4000)
        now, monotonic = read()
        assert abs(now + 4000 - time.time()) < 5
        assert abs(monotonic - time.monotonic()) < 5
        clock.set(0)
        assert abs(read()[0] - time.time()) < 5
        process.stdin.close()
        process.kill()


@pytest.mark.skipif(not ROOT, reason="needs root, to mount a small disk")
def test_a_disk_is_full_and_then_is_not(tmp_path):
    """In mount namespaces of their own, as the suite's."""
    code = """
import sys
from pathlib import Path
from faults.disk import full, small_disk

folder = Path(sys.argv[1])
with small_disk(folder):
    with full(folder):
        try:
            (folder / "file").write_bytes(b"x" * 5000)
        except OSError as error:
            print(error.strerror)
    (folder / "file").write_bytes(b"x" * 5000)
    print("written")
print(list(folder.iterdir()))
"""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", code,
         tmp_path / "disk"],
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout == "No space left on device\nwritten\n[]\n", done.stderr


def test_an_orphan_is_found_and_ended(tmp_path):
    """In a process of its own, which adopts it."""
    code = """
import subprocess, sys
from faults.processes import adopt_orphans, left_over
adopt_orphans()
inner = "import subprocess; subprocess.Popen(['sleep', '60'])"
subprocess.run([sys.executable, "-c", inner], check=True)
print(len(left_over([], 0.5)), len(left_over([], 0.5)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "1 0\n"


def ended(lines, log=Path("server.log")):
    return SimpleNamespace(lines=lines, log=log, has=lambda text: any(text in x for x in lines))


GOOD = ["error: the disk is full", "continue with: resume=/run"]


@pytest.mark.parametrize(
    ("code", "lines", "forgiven", "problem"),
    [
        (0, [], set(), None),
        (1, GOOD, set(), None),
        (130, ["stopped; continue with: resume=/run"], {130}, None),
        (-9, [], {-9}, None),
        (130, ["stopped; continue with: resume=/run"], set(), "exit code 130"),
        (-9, [], set(), "exit code -9"),
        (-6, GOOD, {130, 143}, "exit code -6"),
        (1, ["continue with: resume=/run"], set(), "0 lines"),
        (1, ["error: one", *GOOD], set(), "2 lines"),
        (1, GOOD[:1], set(), "how to continue"),
        (1, ["Traceback (most recent call last):", *GOOD], set(), "tracebacks"),
    ],
)
def test_an_ending_is_documented_and_says_why_in_one_line(code, lines, forgiven, problem):
    from faults.invariants import exit_problems

    problems = exit_problems(ended(lines), code, forgiven)
    assert (problems == []) if problem is None else (problem in problems[0])


def a_run(folder, value=0.0, rounds=(0, 1, 2, 3)):
    (folder / "checkpoint").mkdir(parents=True)
    for name in ("encoder.safetensors", "checkpoint/state.safetensors"):
        save_file({"w": torch.full((2,), value)}, folder / name)
    text = "".join(json.dumps({"round": number}) + "\n" for number in rounds)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_other_bits_and_rounds_are_found(tmp_path):
    from faults.invariants import bit_problems

    reference = a_run(tmp_path / "reference")
    assert bit_problems(a_run(tmp_path / "same"), reference, 3) == []
    assert len(bit_problems(a_run(tmp_path / "other", 1e-7), reference, 3)) == 2
    (twice,) = bit_problems(a_run(tmp_path / "twice", rounds=(0, 1, 1, 2, 3)), reference, 3)
    assert "[0, 1, 1, 2, 3]" in twice
    assert len(bit_problems(tmp_path / "missing", reference, 3)) == 3


def attacked(folder, value=1.0, dropped=(1,), loss=2.0):
    """A run with two checkpoints, the older of which holds `value`."""
    a_run(folder, 0.5)
    save_file({"w": torch.full((2,), value)}, folder / "checkpoint" / "state-2.safetensors")
    records = [
        {"round": n, "loss": {"total": loss} if n else {},
         "clients": {"dropped": [{"client": "b"}] if n in dropped else []}}
        for n in range(4)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"value": float("nan")}, "state-2.safetensors: w reaches nan"),
        ({"value": -1e30}, "state-2.safetensors: w reaches 1e+30"),
        ({"dropped": ()}, "refused were [] instead of [(1, 'b')]"),
        ({"dropped": (1, 2)}, "refused were [(1, 'b'), (2, 'b')]"),
        ({"loss": 3e38}, "round 1: a loss of 3e+38"),
    ],
)
def test_what_a_hostile_client_has_done_is_found(tmp_path, changes, problem):
    from faults.invariants import hostile_problems

    run, reference = attacked(tmp_path / "run", **changes), a_run(tmp_path / "reference", 0.5)
    problems = hostile_problems(run, reference, "b", [1])
    assert (problems == []) if problem is None else (problem in problems[0])


@pytest.mark.parametrize(
    ("clients", "is_right"),
    [
        ({"cohort": 2, "ok": 1, "late": ["b"], "dropped": []}, True),
        ({"cohort": 2, "ok": 1, "late": [], "dropped": [{"client": "b"}]}, True),
        ({"cohort": 0, "ok": 0, "dropped": []}, True),
        ({"cohort": 2, "ok": 2, "late": ["b"], "dropped": []}, False),
        ({"cohort": 2, "ok": 0, "late": ["a", "b"], "dropped": []}, False),
    ],
)
def test_a_round_says_of_each_client_what_became_of_it(tmp_path, clients, is_right):
    from faults.invariants import late_problems

    (tmp_path / "metrics.jsonl").write_text(json.dumps({"round": 1, "clients": clients}))
    assert (late_problems(tmp_path) == []) is is_right


def test_a_hostile_client_does_what_the_seed_says():
    from faults.cases import FAULTS, hostile_rounds

    def drawn(seed):
        return hostile_rounds(random.Random(seed), "1e30")  # noqa: S311 (no secret)

    assert {len(drawn(seed)) for seed in range(30)} == {1, 2, 3}
    assert {*drawn(0).values()} == {"1e30"} and "1e30" in FAULTS["hostile"]
    assert drawn(7) == drawn(7)


def test_every_attack_changes_a_reply_into_another_finite_one():
    import numpy as np
    from faults.hostile_client import REFUSED, TAKEN
    from flwr.app import Array, ArrayRecord, MetricRecord

    for name, attack in (REFUSED | TAKEN).items():
        state, rows = np.ones(9, np.float32), np.eye(3, dtype=np.float32)
        arrays = ArrayRecord({"shared": Array(state), "local_centroids": Array(rows)})
        before = {"examples": 20, "loss/cluster": 2.0, "seconds": 1.0, "smallest_group": 3}
        metrics = MetricRecord(dict(before))
        attack(arrays, metrics)
        sent = [array.numpy() for array in arrays.values()]
        assert all(np.isfinite(array).all() and array.dtype == np.float32 for array in sent)
        same = all(map(np.array_equal, sent, (state, rows)))
        assert not same or dict(metrics) != before, name


def test_what_a_stranger_brought_leaves_a_marker_when_it_runs(tmp_path):
    from faults.hostile_files import stub_ghostscript
    from faults.hostile_server import EVIL, write_evil_package
    from faults.invariants import code_problems

    folder = tmp_path / "evil"
    marker = write_evil_package(folder)
    stub_ghostscript(folder, marker)
    commands = [[sys.executable, "-c", f"import {EVIL}"], ["gs", "x.ps"]]
    for command in commands:
        assert code_problems(marker) == []
        path = os.pathsep.join([str(folder), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder)}
        subprocess.run(command, env=environment, check=False)
        assert code_problems(marker) == ["code from a stranger was run"]
        marker.unlink()


def test_images_names_and_keys_are_found_in_what_was_sent(tmp_path):
    from faults.federation import make_keys, make_photos
    from faults.invariants import leak_problems

    from orchestra_flwr.square_image import decode_image

    make_keys(tmp_path / "security", "client=a")
    key = tmp_path / "security/bundles/a/client.key"
    make_photos(tmp_path / "pictures", {"a": 2})
    root = tmp_path / "pictures" / "a"
    photo = root / "000.png"

    def found(sent):
        return leak_problems(sent, root, 16, key, "site-packages")

    assert found(os.urandom(50_000)) == []
    pixels = torch.from_numpy(decode_image(photo.read_bytes(), 16)).float() / 255
    for leak in (
        photo.read_bytes(), pixels.numpy().tobytes(), b"x site-packages x", b"/000.png ",
        key.read_bytes(), tmp_path.name.encode(),
    ):  # fmt: skip
        (problem,) = found(os.urandom(999) + leak + os.urandom(999))
        assert problem.startswith("the client sent ")
    assert "nothing at all" in found(b"")[0]


def test_every_attack_of_a_server_is_a_message_and_is_in_the_cases():
    from faults.cases import FAULTS
    from faults.hostile_server import ATTACKS, content_of

    assert FAULTS["server"] == tuple(ATTACKS)
    contents = [content_of(changes) for _, _, changes in ATTACKS.values()]
    configs = [content.config_records["config"]["config"] for content in contents]
    assert len({*configs}) == 6  # the others differ in their app, or in what they ask for


@pytest.mark.parametrize("which", ["a run of aliases of aliases", "a run that names packages"])
def test_a_foreign_configuration_is_another_one(which):
    from faults.hostile_files import RUNS

    text = "plugins: []\nrun_dir: x\n"
    assert RUNS[which](text) != text


def ledgers(folder, asked, released):
    (folder / "run" / "checkpoint").mkdir(parents=True)
    lines = [json.dumps({"round": number, "clients": names}) + "\n" for number, names in asked]
    (folder / "run" / "checkpoint" / "releases.jsonl").write_text("".join(lines))
    for name, rounds in released.items():
        (folder / "state" / name).mkdir(parents=True)
        text = "".join(json.dumps({"run": "x", "round": number}) + "\n" for number in rounds)
        (folder / "state" / name / "releases.jsonl").write_text(text)
    return folder / "run", folder / "state"


@pytest.mark.parametrize(
    ("asked", "released", "problem"),
    [
        ([(0, "ab"), (1, "ab")], {"a": [0, 1], "b": [0]}, None),  # b was asked and did not answer
        ([(0, "a")], {"a": [0, 1]}, "released 1 times in round 1"),
        ([(0, "a")], {"a": [0, 0]}, "released 2 times in round 0"),
        ([(0, "a"), (1, "a"), (2, "a")], {"a": [0, 1]}, "3 releases in the server's ledger"),
    ],
)
def test_ledgers_that_disagree_are_found(tmp_path, asked, released, problem):
    from faults.invariants import ledger_problems

    asked = [(number, list(names)) for number, names in asked]
    problems = ledger_problems(*ledgers(tmp_path, asked, released), most=2)
    assert (problems == []) if problem is None else (problem in problems[0])


def test_secrets_that_others_can_read_are_found(tmp_path):
    from faults.invariants import mode_problems

    state = tmp_path / "state" / "a"
    state.mkdir(parents=True)
    (state / "releases.jsonl").touch(mode=0o644)
    assert "others can read 1 files in state/a: releases.jsonl (0644)" in mode_problems(tmp_path)[0]
    state.chmod(0o700)  # nobody else enters it
    assert mode_problems(tmp_path) == []
    (tmp_path / "server.key").touch(mode=0o640)  # the group is others as well
    assert len(mode_problems(tmp_path)) == 1
    (tmp_path / "server.key").chmod(0o600)
    (tmp_path / "ca.crt").touch(mode=0o644)
    assert mode_problems(tmp_path) == []


def test_what_is_left_of_a_start_is_found(tmp_path):
    from faults.invariants import temporary_problems

    assert temporary_problems(tmp_path) == []
    (tmp_path / "orch1234").mkdir()
    assert temporary_problems(tmp_path) == ["1 temporary folders are left: orch1234"]


def test_a_seed_gives_the_same_cases_and_every_fault_comes_up():
    from faults.cases import FAULTS, TURN, faults_in_turn

    first, again, other = (faults_in_turn(seed, []) for seed in (3, 3, 4))
    numbers = range(1, 40)
    assert [first(n) for n in numbers] == [again(n) for n in numbers]
    assert [first(n) for n in numbers] != [other(n) for n in numbers]
    assert {first(n)[0] for n in range(1, len(TURN) + 1)} == set(FAULTS)
    for kind, faults in FAULTS.items():
        alone = faults_in_turn(3, [kind])
        assert {alone(n) for n in range(1, len(faults) + 1)} == {(kind, fault) for fault in faults}


def test_faults_can_be_chosen_by_their_words():
    from faults.cases import faults_in_turn
    from run_faults import options

    chosen = options(["only=ray:SIGKILL to simulation/raylet,disk:state"])["only"].split(",")
    faults = {faults_in_turn(0, chosen)(n) for n in range(1, 5)}
    assert faults == {("ray", "SIGKILL to simulation/raylet"), ("disk", "state")}
    with pytest.raises(SystemExit, match="only=disk:moon: must be of run, state, tmp"):
        options(["only=disk:moon"])
    with pytest.raises(SystemExit, match="only=weather: must be of signals, link,"):
        options(["only=weather"])


@pytest.mark.parametrize(
    ("which", "of_a", "of_b", "old"),
    [
        ("expired", True, False, True),
        ("signed by another", False, True, False),
        ("with an altered signature", False, False, False),
    ],
)
def test_requests_are_signed_as_wrongly_as_they_say(tmp_path, which, of_a, of_b, old):
    """By Flower's own check, with the keys of real clients."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from faults.cases import _as_asked
    from faults.federation import make_keys
    from faults.link import header
    from flwr.supercore.primitives.asymmetric import verify_signature

    security = tmp_path / "security"
    make_keys(security, "client=a,b")
    request = b"POST /v1/fleet/x HTTP/1.1\r\nflwr-timestamp: t\r\nflwr-signature: s\r\n\r\nbody"
    rng = random.Random(0)  # noqa: S311 (which bit to change)
    again = _as_asked(which, request, SimpleNamespace(security=security), rng)
    text, signature = header(again, "flwr-timestamp"), header(again, "flwr-signature")

    def is_signed_by(name):
        public = (security / "bundles" / name / "client.pub").read_bytes()
        return verify_signature(
            load_ssh_public_key(public), text.encode(), base64.b64decode(signature)
        )

    assert (is_signed_by("a"), is_signed_by("b")) == (of_a, of_b)
    age = (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()
    assert (age > 300) == old and again.endswith(b"body")


def test_a_signal_reaches_the_process_that_was_drawn(tmp_path):
    """A SuperLink by its command line, below a server; SIGKILL is not explained by a role below."""
    from faults.cases import signals
    from faults.processes import Command

    child = "import time\ntime.sleep(60)  # flower-superlink"
    code = (
        "import subprocess, sys, time\nprint('round 1/', 'round 2/', 'joined with', flush=True)\n"
    )
    code += f"print(subprocess.run([sys.executable, '-c', {child!r}]).returncode)"
    server = Command(["-c", code], tmp_path / "log", {})
    run = SimpleNamespace(server=server, forgiven=set(), killed=set(), clients={})
    draws = iter(["a", "round 1/"])
    rng = SimpleNamespace(choice=lambda of: next(draws, of[0]), uniform=lambda *_: 0.0)
    line = signals(rng, run, "SIGKILL to server/superlink")
    assert line.startswith("SIGKILL to server/superlink, 0.0 s after")
    assert server.process.wait(20) == 0
    assert server.lines[-1] == "-9" and run.forgiven == set()


@pytest.mark.parametrize(("which", "lost"), [("lost", [2]), ("all lost", [1, 2]), ("asleep", [])])
def test_a_node_is_lost_with_all_its_processes(tmp_path, which, lost):
    from faults.cases import machines
    from faults.processes import Command, descendants, send

    child = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    node = ["-c", f"import subprocess, sys\nsubprocess.run({child})"]
    server = Command(["-c", "import time\nprint('joined with', flush=True)\ntime.sleep(60)"],
                     tmp_path / "log", {})  # fmt: skip
    nodes = [Command(node, tmp_path / f"{number}.log", {}) for number in range(3)]
    trees = []
    try:
        for command in nodes:
            while not (below := descendants(command.pid)):
                time.sleep(0.05)
            trees.append([command.pid, *below])
        run = SimpleNamespace(server=server, nodes=nodes)
        rng = SimpleNamespace(choice=lambda of: of[0], uniform=lambda *_: 0, randint=lambda *_: 2)
        assert which in machines(rng, run, which)
        time.sleep(0.5)
        states = [[state_of(pid) for pid in pids] for pids in trees]
        assert [
            place for place, letters in enumerate(states) if not {*letters} & {"R", "S"}
        ] == lost
        assert all({*letters} <= {"R", "S"} for n, letters in enumerate(states) if n not in lost)
    finally:
        for pids in ([server.pid], *trees):
            for pid in pids:
                send(pid, signal.SIGKILL)


def state_of(pid):
    """Of a process, as in `/proc`: R and S for one that lives."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_suite_itself_does_a_fault_and_tells(tmp_path):
    """One fault; what it finds is the suite's business, that it hits and tells is this test's."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "run_faults.py", "minutes=0", "seed=2", "only=link",
         f"kept={tmp_path}"],
        env={k: v for k, v in os.environ.items() if k != "TMPDIR"},  # short paths, for sockets
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    line = done.stdout.splitlines()[0]
    assert "seed 2 case 1 link" in line and "link of client" in line, done.stdout + done.stderr
    assert "other bits" not in line
    verdict = line.rpartition(": ")[2]
    assert verdict in ("ok", "failed") and done.returncode == (verdict == "failed")
    assert f"1 cases, {done.returncode} failed" in done.stdout
    assert (tmp_path / "seed-2.json").exists()
