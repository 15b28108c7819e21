"""Real clients that begin and end when they can; a replay of their run."""

import signal

import pytest
from safetensors.torch import load_file

from orchestra_flwr.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def arrivals(machines):
    return [record["exchange"]["arrivals"] for record in machines.metrics() if record["round"]]


def test_a_hanging_client_counts_late_a_killed_server_goes_on_and_a_replay_has_the_same_bits(
    machines,
):
    machines.make_photos(a=17, b=17, c=17)
    run = ("method=simclr", "exchange=buffered", "federation.rounds=12")
    server = machines.server(*run, "exchange.buffer=2", "federation.min_clients=3")
    server.wait_for("listening on 127.0.0.1")
    clients = {"c": machines.client("c")}
    server.wait_for("client c joined")
    clients["c"].send(signal.SIGSTOP)  # what follows waits for it at the server
    clients |= {name: machines.client(name) for name in "ab"}
    server.wait_for("round 4/12")
    clients["c"].send(signal.SIGCONT)
    server.wait_for("round 7/12")
    server.send(signal.SIGKILL)
    server.wait()
    again = machines.server(f"resume={machines.run}")
    assert again.wait() == 0, again.text
    for client in clients.values():
        client.end()
    assert "Traceback" not in server.text + again.text + "".join(c.text for c in clients.values())
    assert all(len(round_) == 2 for round_ in arrivals(machines))
    assert all("c" not in dict(round_) for round_ in arrivals(machines)[:3])
    late = [n - 1 - v for n, r in enumerate(arrivals(machines), 1) for name, v in r if name == "c"]
    assert max(late) >= 3  # updates of the model meanwhile
    simulated = machines.folder / "simulated"
    code = main(
        [*machines.small(run), *run, f"exchange.replay={machines.run}",
         "data=image_folder", f"data.root={machines.photos}", "partition=by_class",
         "federation.clients=3", "engine=inline", f"run_dir={simulated}"]
    )  # fmt: skip
    assert code == 0
    ours, theirs = (
        load_file(run_folder / "encoder.safetensors") for run_folder in (machines.run, simulated)
    )
    assert all(ours[name].equal(theirs[name]) for name in theirs)
