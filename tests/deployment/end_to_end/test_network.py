"""A server and two clients in network namespaces of their own, joined by links that can be cut."""

import os
import shutil
import subprocess
import sys
import time

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        shutil.which("ip") is None or os.geteuid() != 0, reason="needs iproute2 and root"
    ),
]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """A bridge in the server's namespace; each client's namespace hangs on it by a veth pair."""

    def __init__(self, clients):
        self.server = f"orch{os.getpid()}s"
        self.clients = {name: f"orch{os.getpid()}{i}" for i, name in enumerate(clients)}
        self._made = []
        self._make(self.server)
        ip("-n", self.server, "link", "add", "hub", "type", "bridge")
        ip("-n", self.server, "addr", "add", "10.77.0.1/24", "dev", "hub")
        ip("-n", self.server, "link", "set", "hub", "up")
        for i, name in enumerate(clients):
            self._attach(i, self.clients[name])

    def cut(self, client):
        """No packet passes between this client and the server."""
        ip("-n", self.clients[client], "link", "set", "up0", "down")

    def mend(self, client):
        ip("-n", self.clients[client], "link", "set", "up0", "up")

    def remove(self):
        for namespace in self._made:
            subprocess.run(["ip", "netns", "del", namespace], check=False)

    def _make(self, namespace):
        ip("netns", "add", namespace)
        self._made.append(namespace)
        ip("-n", namespace, "link", "set", "lo", "up")

    def _attach(self, number, namespace):
        self._make(namespace)
        ip("-n", self.server, "link", "add", f"down{number}", "type", "veth",
           "peer", "name", "up0", "netns", namespace)  # fmt: skip
        ip("-n", self.server, "link", "set", f"down{number}", "master", "hub", "up")
        ip("-n", namespace, "addr", "add", f"10.77.0.{number + 2}/24", "dev", "up0")
        ip("-n", namespace, "link", "set", "up0", "up")


@pytest.fixture
def network():
    try:
        network = Network("ab")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    yield network
    network.remove()


def test_a_link_is_cut_in_a_round_and_nothing_is_lost(machines, network):
    machines.make_photos(a=32, b=32)
    machines.keys(
        "server", f"folder={machines.security}", "host=10.77.0.1", "client=a,b",
    )  # fmt: skip
    machines.inside = network.server
    server = machines.server("host=0.0.0.0", "federation.min_clients=2")
    server.wait_for("listening on 0.0.0.0")
    machines.inside = network.clients["b"]
    machines.client("b", server="10.77.0.1")
    machines.inside = network.clients["a"]
    slow = machines.rogue("a", {"2": "slow"}, server="10.77.0.1")
    slow.wait_for("rogue: slow")
    network.cut("a")
    time.sleep(15)  # it ends its training and finds nobody to send it to
    network.mend("a")
    assert server.wait() == 0, server.text
    assert machines.dropped() == []
    assert [record["clients"]["ok"] for record in machines.metrics()] == [2, 2, 2, 2]


def test_from_the_network_only_the_gate_is_reached(machines, network):
    machines.make_photos(a=16)
    machines.keys("server", f"folder={machines.security}", "host=10.77.0.1")
    machines.inside = network.server
    machines.server("host=0.0.0.0", "federation.min_clients=1").wait_for("listening on 0.0.0.0")
    listening = subprocess.run(
        ["ip", "netns", "exec", network.server, "ss", "-Hltn"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    addresses = [line.split()[3] for line in listening.splitlines()]
    open_to_all = [a for a in addresses if not a.startswith(("127.", "[::1]"))]
    assert open_to_all == [f"0.0.0.0:{machines.port}"]
    asked = subprocess.run(
        ["ip", "netns", "exec", network.clients["a"], sys.executable, "-c",
         "import httpx, sys; r = httpx.post(sys.argv[1], verify=False); print(r.status_code)",
         f"https://10.77.0.1:{machines.port}/v1/control/start-run"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    assert asked == "404"
