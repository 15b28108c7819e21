"""Authorities and keys change while clients run, by the steps in docs/deployment.md."""

import shutil
import time

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_an_authority_and_a_clients_key_are_replaced_and_the_client_takes_part(machines):
    machines.make_photos(a=24)
    security, new = machines.security, machines.folder / "new"
    bundle = security / "bundles" / "a"
    machines.keys("server", f"folder={security}", "host=localhost", "client=a")
    (security / "ca.key").rename(machines.folder / "ca.key")  # kept elsewhere from the start

    # Steps 1 to 3: clients trust both, the server still has its old certificate.
    machines.keys("server", f"folder={new}", "host=localhost")
    both = (security / "ca.crt").read_bytes() + (new / "ca.crt").read_bytes()
    for folder in (security, bundle):
        (folder / "ca.crt").write_bytes(both)
    server = machines.server("federation.min_clients=1", "federation.rounds=1")
    server.wait_for("listening on 127.0.0.1")
    client = machines.client("a")
    assert server.wait() == 0, server.text

    # Step 4: the server has the new one; the same process of the client connects again.
    for name in ("server.crt", "server.key"):
        shutil.copy(new / name, security / name)
    waiting = ("federation.min_clients=2", f"run_dir={machines.folder / 'run2'}")
    server = machines.server(*waiting)
    server.wait_for("client a joined")
    assert "does not vouch for" not in client.text

    # Step 5: the old one goes, first at clients.
    (bundle / "ca.crt").write_bytes((new / "ca.crt").read_bytes())
    client.end()

    # A client's key is replaced under its name, in a running server.
    fresh = machines.folder / "fresh"
    machines.keys("client", f"folder={fresh}", "name=a")
    machines.keys("revoke", "name=a", f"folder={security}")
    machines.keys("register", f"key={fresh / 'client.pub'}", f"folder={security}")
    for name in ("client.key", "client.pub"):
        shutil.copy(fresh / name, bundle / name)
    seen = server.text.count("client a joined")
    client = machines.client("a")
    deadline = time.monotonic() + 120
    while server.text.count("client a joined") == seen:
        assert time.monotonic() < deadline, server.text + client.text
        time.sleep(0.2)
    assert [path.name for path in (machines.folder / "state").iterdir()] == ["a"]
