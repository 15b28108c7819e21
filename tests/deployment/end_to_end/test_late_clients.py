"""Real rounds that end without a slow client, which comes back when it is free."""

import signal

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_rounds_go_on_without_a_client_that_hangs_and_ask_it_again_when_it_is_free(machines):
    machines.make_photos(a=17, b=17, c=17)
    server = machines.server(
        "method=simclr", "federation.min_clients=3", "federation.rounds=12", "federation.enough=2"
    )
    server.wait_for("listening on 127.0.0.1")
    clients = {"c": machines.client("c")}
    server.wait_for("client c joined")
    clients["c"].send(signal.SIGSTOP)  # what follows waits for it at the server
    clients |= {name: machines.client(name) for name in "ab"}
    server.wait_for("round 1: 1 of 3 clients were late, and their work does not count: c")
    server.wait_for("round 3/12")
    clients["c"].send(signal.SIGCONT)
    assert server.wait() == 0, server.text
    for client in clients.values():
        client.end()
    assert clients["c"].wait() == 0, clients["c"].text
    rounds = [record["clients"] for record in machines.metrics()][1:]
    assert rounds[0]["late"] == ["c"] and rounds[0]["ok"] == 2 and rounds[0]["dropped"] == []
    # It is not asked while it works, and asked again.
    assert [round_["cohort"] for round_ in rounds[:3]] == [3, 2, 2]
    assert 3 in [round_["cohort"] for round_ in rounds[3:]]
    assert all(round_["counted_so_far"] >= 2 / 3 for round_ in rounds)
    assert "Traceback" not in server.text + clients["c"].text
