"""Whole federations of real processes over TLS; the heavier ones are slow."""

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path
from stat import S_ISLNK

import pytest
from safetensors.torch import load_file

from orchestra_flwr import load_encoder
from orchestra_flwr.cli import main
from orchestra_flwr.config import load_config
from orchestra_flwr.folder_lock import FolderInUseError, locked
from orchestra_flwr.models import Encoder, EncoderSpec, build_backbone, save_encoder
from orchestra_flwr.reporting import RunFolder
from tests.deployment.end_to_end.hostile_operator import assert_closed, assert_its_apps_are_refused

REPOSITORY = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(900)


def simulate(machines, names, rounds, *overrides):
    """The run of these clients in this process; its folder."""
    folder = machines.folder / "simulated"
    chosen = machines.folder / "chosen"
    chosen.mkdir()
    for name in names:
        (chosen / name).symlink_to(machines.photos / name)
    code = main(
        [*machines.small(overrides), "data=image_folder", f"data.root={chosen}",
         "partition=by_class",
         f"federation.clients={len(names)}", f"federation.rounds={rounds}", "engine=inline",
         f"run_dir={folder}", *overrides]
    )  # fmt: skip
    assert code == 0
    return folder


def assert_same_bits(one, other):
    for file in ("encoder.safetensors", "checkpoint/state.safetensors"):
        ours, theirs = load_file(one / file), load_file(other / file)
        assert ours.keys() == theirs.keys()
        assert all(ours[name].equal(theirs[name]) for name in ours), file


def assert_private(*paths):
    """Nobody but their owner can read these files and folders, or what is in them."""
    inside = [file for path in paths for file in path.rglob("*")]
    modes = {str(path): path.lstat().st_mode for path in [*paths, *inside]}
    assert {p: oct(m) for p, m in modes.items() if m & 0o077 and not S_ISLNK(m)} == {}


def save_an_encoder(machines):
    """A file that a run can begin with."""
    config = load_config([*machines.small(()), "data=image_folder", f"data.root={machines.photos}"])
    backbone = build_backbone(config.model, config.data.channels)
    file = machines.folder / "encoder.safetensors"
    save_encoder(file, Encoder(EncoderSpec.of(config), backbone))
    return file


def wait_until(condition, seconds=120):
    """What the condition returns, as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return value


@pytest.fixture
def scratch(monkeypatch):
    """Where the programs' sockets are."""
    folder = tempfile.mkdtemp(prefix="orch")  # short: sockets
    monkeypatch.setenv("TMPDIR", folder)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_two_clients_over_tls_end_in_the_bits_of_their_simulation(machines, scratch, tmp_path):
    """Whatever other apps the server's operator sends to the client that is there already."""
    machines.make_photos(a=24, b=17)
    machines.keys(
        "server", f"folder={machines.security}", "host=localhost", "client=a,b",
    )  # fmt: skip
    scored = ("evaluation.unsupervised=true", "terms.verification.weight=1",
              "terms.verification.hidden=16", f"init={save_an_encoder(machines)}")  # fmt: skip
    server = machines.server("federation.min_clients=2", "federation.rounds=1", *scored)
    server.wait_for("listening on 127.0.0.1")
    with pytest.raises(FolderInUseError, match="process "), locked(machines.run):
        pass
    one = machines.client("a")
    one.wait_for("takes part with")
    assert_closed(machines.port, scratch, server, one)
    (link,) = scratch.glob("orchestra-*/link")
    (tmp_path / "operator").mkdir()
    assert_its_apps_are_refused(tmp_path / "operator", link, machines.security / "ca.crt", one)
    two = machines.client("b")
    assert server.wait() == 0, server.text
    server.wait_for("begins with the encoder of", 5)
    for client in (one, two):
        client.end()
        assert client.wait() == 0, client.text
        client.wait_for("the encoder is here: orchestra-embed run=", 5)
    assert one.text.count("refused a message") == 1 and "refused" not in two.text
    for name in "ab":
        stored = machines.folder / "state" / name / "encoder"
        for file in ("encoder.safetensors", "encoder.json"):
            assert (stored / file).read_bytes() == (machines.run / file).read_bytes()
        assert "## Accuracy" in (stored / "README.md").read_text()
    sent = json.loads((machines.run / "summary.json").read_text())["encoder_sent"]
    weights = (machines.run / "encoder.safetensors").stat().st_size
    assert sent["clients"] == ["a", "b"] and 2 * weights < sent["bytes_down"] < 2.1 * weights
    assert_private(machines.folder / "state" / "a")
    assert_private(machines.run / "superlink.log", machines.run / "metrics.jsonl")
    simulated = simulate(machines, ["a", "b"], 1, *scored)
    assert_same_bits(machines.run, simulated)
    ours, theirs = (RunFolder(folder).read_metrics()[-1] for folder in (machines.run, simulated))
    assert ours["unsupervised"] == theirs["unsupervised"]
    assert all(r["bytes_up"] > 0 and r["seconds"] > 0 for r in machines.metrics())


@pytest.mark.slow
def test_strangers_are_refused_and_a_run_has_the_bits_of_its_simulation(machines):
    """Three registered clients over TLS, while four strangers try to get in."""
    machines.make_photos(a=64, b=37, c=20)
    machines.keys(
        "server", f"folder={machines.security}", "host=localhost",
        "client=a,b,c",
    )  # fmt: skip
    server = machines.server("federation.min_clients=3")
    server.wait_for("listening on 127.0.0.1")

    # Each stranger tries while nobody else is there, so that what is said is about it.
    stranger = machines.folder / "stranger"
    machines.keys("client", f"folder={stranger}", "name=mallory")
    (stranger / "ca.crt").write_bytes((machines.security / "ca.crt").read_bytes())
    unknown = machines.client("a", f"security={stranger}")
    other = machines.folder / "other"
    machines.keys("server", f"folder={other}", "host=localhost", "client=b")
    forged = machines.client("b", f"security={other / 'bundles' / 'b'}")
    plain = machines.client("c", "insecure=true")
    with socket.create_connection(("127.0.0.1", machines.port)) as garbage:
        garbage.sendall(os.urandom(500))
    unknown.wait_for("its key is not registered there")
    assert "is not registered here" in server.text
    forged.wait_for("does not vouch for")
    plain.wait_for("does not speak plain text")
    server.wait_for("refused: 127.0.0.1")
    for client in (unknown, forged, plain):
        client.end()
    assert "mallory" not in "".join(line for line in server.lines if "joined" in line)

    clients = [machines.client(name) for name in "abc"]
    assert server.wait() == 0, server.text
    for count, name in ((64, "a"), (37, "b"), (20, "c")):
        assert f"client {name} joined with {count} images" in server.text
    for client in clients:
        client.wait_for("round 3: ", 5)
        client.end()
        assert client.wait() == 0

    assert_same_bits(machines.run, simulate(machines, "abc", rounds=3))
    assert load_encoder(machines.run).spec.image_size == 16
    records = machines.metrics()
    assert [record["round"] for record in records] == [0, 1, 2, 3]
    assert all(r["bytes_up"] > 0 and r["bytes_down"] > 0 and r["seconds"] > 0 for r in records)
    assert machines.dropped() == []


METHOD = """
from orchestra_flwr.methods.byol import BYOL

class Mine(BYOL):
    pass
"""


@pytest.mark.slow
def test_a_users_plugin_and_other_choices_have_the_bits_of_their_simulation(machines, user_package):
    """The package lies beside the programs and is not installed; a client has to allow it."""
    programs = user_package({"methods/mine.py": METHOD}).parent
    for name in ("server", "client"):
        text = (
            f"import sys\n\nfrom orchestra_flwr.cli import {name}_main\n\nsys.exit({name}_main())\n"
        )
        (programs / f"{name}.py").write_text(text)
    machines.make_photos(a=32, b=32)
    chosen = [
        "plugins=[my_package]", "method=mine", "terms.proximal.weight=0.1", "merging=fedbn",
        "terms.verification.weight=1", "terms.verification.hidden=16", "server_optimizer=adam",
    ]  # fmt: skip
    server = machines.server(
        "federation.min_clients=2", "federation.rounds=2", f"data.root={machines.photos}", *chosen,
        program=programs / "server.py",
    )  # fmt: skip
    server.wait_for("listening on")
    wary = machines.client("b")
    server.wait_for("client b is refused: plugins_refused")
    wary.wait_for("the server asks for plugins=[my_package], this client")
    wary.end()
    for name in "ab":
        machines.client(name, "plugins=[my_package]", program=programs / "client.py")
    assert server.wait() == 0, server.text
    assert machines.dropped() == []
    assert machines.metrics()[-1]["loss"]["proximal"] > 0
    assert_same_bits(machines.run, simulate(machines, "ab", 2, *chosen))


@pytest.mark.slow
def test_clusters_of_real_clients_have_the_bits_of_their_simulation(machines):
    """One round of one model, one of two groups, one in which clients choose."""
    machines.make_photos(a=32, b=30, c=28)
    chosen = ["method=simclr", "exchange=clusters", "exchange.warm_rounds=1",
              "federation.wire=int8", "terms.alignment.weight=1"]  # fmt: skip
    server = machines.server(
        "federation.min_clients=3", f"data.root={machines.photos}", *chosen
    )  # fmt: skip
    server.wait_for("listening on")
    for name in "abc":
        machines.client(name)
    assert server.wait() == 0, server.text
    assert machines.dropped() == []
    simulated = simulate(machines, "abc", 3, *chosen)
    assert_same_bits(machines.run, simulated)
    ours, theirs = (RunFolder(folder).read_metrics() for folder in (machines.run, simulated))
    assert [r.get("exchange") for r in ours] == [r.get("exchange") for r in theirs]
    assert sum(map(len, ours[-1]["exchange"]["members"].values())) == 3
    assert all(record["loss"]["alignment"] <= 1 for record in ours[1:])


@pytest.mark.slow
def test_bad_replies_are_dropped_by_name_and_the_run_goes_on(machines):
    machines.make_photos(good=32, rogue=32)
    server = machines.server("federation.min_clients=2", "federation.rounds=5")
    server.wait_for("listening on")
    machines.client("good")
    machines.rogue("rogue", {"1": "nan", "2": "schema", "3": "huge", "4": "garbage"})
    assert server.wait() == 0, server.text
    (nan, schema, huge, garbage) = machines.dropped()
    assert nan == (1, "rogue", "shared holds values that are not finite")
    assert schema[:2] == (2, "rogue") and "schema another" in schema[2]
    assert huge[:2] == (3, "rogue")
    assert garbage[:2] == (4, "rogue") and "shared cannot be decoded" in garbage[2]
    assert machines.metrics()[-1]["clients"]["ok"] == 2  # and it is welcome again


@pytest.mark.slow
def test_an_absurd_client_of_two_harms_neither_the_run_nor_its_checkpoints(machines):
    machines.make_photos(good=32, rogue=20)
    server = machines.server("federation.min_clients=2", "federation.rounds=4")
    server.wait_for("listening on")
    machines.client("good")
    machines.rogue("rogue", {"1": "absurd", "2": "many images", "3": "loss"})
    assert server.wait() == 0, server.text
    ((round_, client, reason),) = machines.dropped()
    assert (round_, client) == (1, "rogue") and "the model's weights by" in reason
    assert "client rogue reports 1e+08 images and joined with 20, which count" in server.text
    assert "round 3: loss/cluster=3e+38 of client rogue is in no mean" in server.text
    records = machines.metrics()
    assert [r["clients"]["examples"] for r in records] == [52, 32, 52, 52, 52]
    assert all(0 < r["loss"]["total"] < 20 for r in records[1:])
    assert all(t.isfinite().all() for t in load_file(machines.run / "encoder.safetensors").values())
    again = machines.server(f"resume={machines.run}", "resume_round=2", "federation.rounds=5")
    assert again.wait() == 0, again.text
    assert "goes back to round 2" in again.text and "resumed after round 2" in again.text
    assert [record["round"] for record in machines.metrics()] == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_hanging_killed_late_and_returning_clients(machines):
    machines.make_photos(good=32, hanging=32, killed=32, late=32)
    server = machines.server(
        "federation.min_clients=3", "federation.rounds=8", "federation.round_timeout=60",
        "federation.min_success=0.3",
    )  # fmt: skip
    server.wait_for("listening on")
    machines.client("good")
    machines.rogue("hanging", {"2": "hang"})
    killed = machines.rogue("killed", {"2": "hang"})
    killed.wait_for("rogue: hang")
    killed.send(signal.SIGKILL)
    late = machines.client("late")
    server.wait_for("round 2/8")
    server.wait_for("waiting for clients")  # two of four are gone, three are wanted
    back = machines.client("killed")
    late.wait_for("round ")
    back.wait_for("round ")
    assert server.wait() == 0, server.text
    dropped = machines.dropped()
    assert {(round_, client) for round_, client, _ in dropped} == {(2, "hanging"), (2, "killed")}
    reasons = {client: reason for _, client, reason in dropped}
    assert "no reply within federation.round_timeout" in reasons["hanging"]
    assert machines.metrics()[-1]["clients"]["cohort"] == 3


def living():
    """The parent of every process that is not a zombie."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    return parents


def descendants(pid):
    """Process ids of all that it started, and that those started."""
    parents = living()
    pids = [pid]
    for ancestor in pids:
        pids += [child for child, parent in parents.items() if parent == ancestor]
    return pids[1:]


def released(machines, name):
    """Rounds in a client's own record of what it released."""
    file = machines.folder / "state" / name / "releases.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["round"] for line in lines]


@pytest.mark.slow
def test_a_clients_own_ledger_outlives_sigkill_and_binds_every_server(machines):
    """b allows two releases, c none that is so large; b is killed after its first one."""
    machines.make_photos(a=32, b=32, c=32)
    server = machines.server(
        "federation.min_clients=2", "federation.rounds=6", "federation.min_success=0.3",
        "clustering=private", "privacy.epsilon=20", "training.local_epochs=20",
    )  # fmt: skip
    server.wait_for("listening on")
    c = machines.client("c", "privacy.epsilon=1")
    server.wait_for("client c is refused: privacy_refused")
    c.wait_for("cannot take part: privacy.epsilon=20 at privacy.delta=0.001")
    machines.client("a")
    b = machines.client("b", "privacy.total_epsilon=34")
    b.wait_for("round 2: training")
    deadline = time.monotonic() + 100
    while not released(machines, "b"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    b.send(signal.SIGKILL)
    b.wait()
    before = len(released(machines, "b"))
    assert before in (1, 2)
    back = machines.client("b", "privacy.total_epsilon=34")
    assert server.wait() == 0, server.text
    assert len(released(machines, "b")) == 2  # with what it released before it was killed
    back.wait_for("sent no centroids: this client's own privacy.total_epsilon is spent", 5)
    assert released(machines, "a") == [2, 3, 4, 5, 6]

    other = machines.server(
        "federation.min_clients=2", "federation.rounds=1", "seed=5", "clustering=private",
        "privacy.epsilon=20", f"run_dir={machines.folder / 'other'}",
    )  # fmt: skip
    other.wait_for("client b is refused: privacy_budget_spent")
    back.wait_for("cannot take part: privacy.epsilon=20: one more release would exceed")


@pytest.mark.slow
def test_a_killed_server_is_resumed_and_ends_in_the_same_bits(machines):
    machines.make_photos(a=32, b=32)
    clients = [machines.client("a"), machines.client("b")]
    server = machines.server("federation.min_clients=2", "federation.rounds=4")
    server.wait_for("round 2/4")
    children = descendants(server.pid)
    assert len(children) == 2  # the SuperLink and the federation
    server.send(signal.SIGKILL)
    server.wait()
    deadline = time.monotonic() + 90
    while set(children) & set(living()):
        assert time.monotonic() < deadline, "children outlive a killed server"
        time.sleep(0.2)
    ended = machines.server(f"resume={machines.run}", "federation.rounds=2")
    assert ended.wait() == 0, ended.text
    simulated = simulate(machines, "ab", rounds=2)
    assert_same_bits(machines.run, simulated)
    again = machines.server(f"resume={machines.run}")  # an ended run can still go on
    assert again.wait() == 0, again.text
    assert "resumed after round 2" in again.text
    assert [record["round"] for record in machines.metrics()] == [0, 1, 2, 3, 4]
    assert main([f"resume={simulated}", "federation.rounds=4"]) == 0
    assert_same_bits(machines.run, simulated)
    for client in clients:
        assert "round 4: " in client.text  # they found the servers by themselves


@pytest.mark.slow
def test_a_client_behind_a_proxy_finds_a_server_that_was_started_again(machines, monkeypatch):
    """While the server is away the proxy takes connections and ends them: TLS fails half-way."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    from faults.link import Link

    machines.make_photos(a=32, b=32)
    machines.keys(
        "server", f"folder={machines.security}", "host=127.0.0.1", "client=a,b",
    )  # fmt: skip
    server = machines.server("federation.min_clients=2")
    server.wait_for("listening on")
    with Link(machines.port) as proxy:
        client = machines.client("a", f"server=127.0.0.1:{proxy.port}")
        machines.client("b")
        server.wait_for("round 1/3")
        server.send(signal.SIGKILL)
        server.wait()
        log = machines.folder / "state" / "a" / "supernode.log"
        deadline = time.monotonic() + 120
        while "handshake error" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        again = machines.server(f"resume={machines.run}")
        assert again.wait() == 0, again.text + client.text
    assert f"the connection to 127.0.0.1:{proxy.port} ended" in client.text
    assert_same_bits(machines.run, simulate(machines, "ab", rounds=3))


@pytest.mark.slow
def test_frozen_weights_reach_each_client_once_in_all_its_runs(machines):
    """The second run begins with the same encoder, and new processes of the same clients."""
    machines.make_photos(a=24, b=17)
    machines.keys(
        "server", f"folder={machines.security}", "host=localhost", "client=a,b",
    )  # fmt: skip
    chosen = ("method=simclr", "adaptation=blocks", f"init={save_an_encoder(machines)}")
    down = []
    for name in ("first", "second"):
        machines.run = machines.folder / name
        server = machines.server("federation.min_clients=2", "federation.rounds=2", *chosen)
        server.wait_for("listening on 127.0.0.1")
        clients = [machines.client(name) for name in ("a", "b")]
        assert server.wait() == 0, server.text
        for process in clients:
            process.end()
            assert process.wait() == 0, process.text
        down += [record["bytes_down"] for record in machines.metrics()[1:]]
    (file,) = (machines.run / "checkpoint" / "frozen").iterdir()
    sent = 2 * file.stat().st_size
    assert down[1] == down[2] == down[3] and sent < down[0] - down[1] < sent + 2 * 200
    for client in ("a", "b"):
        (kept,) = (machines.folder / "state" / client).rglob("*.float32")
        assert (kept.name, kept.read_bytes()) == (file.name, file.read_bytes())
    assert_same_bits(machines.folder / "first", machines.folder / "second")
    assert_same_bits(machines.run, simulate(machines, ["a", "b"], 2, *chosen))


@pytest.mark.slow
def test_frozen_weights_go_on_where_a_connection_was_cut(machines, monkeypatch):
    """Twice, in the middle: what has come is not sent again."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    from faults.link import Link

    machines.make_photos(a=24)
    server = machines.server(
        "federation.min_clients=1", "federation.rounds=1", "method=simclr", "model=resnet18",
        "model.width=64", "adaptation=head", "share.encoder=false",
    )  # fmt: skip
    server.wait_for("listening on 127.0.0.1")
    with Link(machines.port) as link:
        client = machines.client("a", f"server=127.0.0.1:{link.port}")
        (file,) = wait_until(lambda: [*(machines.run / "checkpoint" / "frozen").glob("*.float32")])
        size = file.stat().st_size
        for part in (0.3, 0.6):
            wait_until(lambda: link.answered > part * size)  # noqa: B023 (called at once)
            link.cut()
            assert link.answered < 0.9 * size
            time.sleep(1)
            link.mend()
        assert server.wait() == 0, server.text + client.text
        assert size < link.answered < 1.5 * size  # again: the pieces that were on their way
    assert "dropped" not in server.text
    (kept,) = (machines.folder / "state" / "a").rglob("*.float32")
    assert kept.read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_a_killed_server_still_delivers_the_encoder_also_to_one_that_was_away(machines):
    """b hangs in the last round; the server is killed while it waits for it after that."""
    machines.make_photos(a=32, b=32)
    server = machines.server(
        "federation.min_clients=2", "federation.rounds=2", "federation.min_success=0.3",
        "federation.round_timeout=30", "share.every=1", "share.wait=500",
    )  # fmt: skip
    server.wait_for("listening on")
    hanging = machines.rogue("b", {"2": "hang"})
    a = machines.client("a")
    server.wait_for("the encoder is with a, b")
    server.wait_for("round 2/2")
    a.wait_for("the encoder is here")
    assert (machines.run / "shared" / "encoder.safetensors").is_file()
    summary = machines.run / "summary.json"
    deadline = time.monotonic() + 100
    while not summary.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    server.send(signal.SIGKILL)
    server.wait()
    hanging.end()
    back = machines.client("b")
    again = machines.server(f"resume={machines.run}")
    assert again.wait() == 0, again.text
    back.wait_for("the encoder is here", 5)
    stored = machines.folder / "state" / "b" / "encoder" / "encoder.safetensors"
    assert stored.read_bytes() == (machines.run / "encoder.safetensors").read_bytes()
    assert json.loads(summary.read_text())["encoder_sent"]["clients"] == ["a", "b"]
