"""Clients whose clocks are wrong by minutes, as on boards without a battery for theirs."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

pytestmark = pytest.mark.timeout(900)


@pytest.mark.slow
def test_clients_whose_clocks_are_ahead_and_behind_take_part(machines, monkeypatch):
    """Flower's own would be refused: it allows 5 s ahead and 305 s behind."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from faults.clock import Clock

    machines.make_photos(a=24, b=17)
    machines.keys("server", f"folder={machines.security}", "host=localhost", "client=a,b")
    server = machines.server("federation.min_clients=2", "federation.rounds=1")
    server.wait_for("listening on 127.0.0.1")
    clients = {}
    for name, seconds in (("a", 60), ("b", -400)):
        try:
            clock = Clock(machines.folder / "clocks" / name)
        except OSError as error:
            pytest.skip(str(error))
        clock.set(seconds)
        with monkeypatch.context() as patch:
            for variable, value in clock.environment.items():
                patch.setenv(variable, value)
            clients[name] = machines.client(name)
    assert server.wait() == 0, server.text
    assert machines.dropped() == [] and "refused" not in server.text
    ways = {"a": "60 s ahead of", "b": "400 s behind"}
    for name, client in clients.items():
        (line,) = [line for line in client.lines if "this machine's clock is" in line]
        assert f"{ways[name]} that of 127.0.0.1:{machines.port}; it takes part" in line
