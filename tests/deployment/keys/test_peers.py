"""The list of all clients' keys, which a client holds up against its server."""

import shutil

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys.client_keys import client_files
from orchestra_flwr.deployment.keys.peers import is_signed, read_peers, signatures


@pytest.fixture
def clients(keys, security, bundle):
    """The bundles of site-1 and site-2, each with the list of both."""
    keys("server", f"folder={security}", "client=site-2")
    code, out, _ = keys("peers", f"folder={security}")
    assert code == 0 and "with the keys of 2 clients" in out
    folders = [bundle, security / "bundles" / "site-2"]
    for folder in folders:
        shutil.copy(security / "peers.pem", folder)
    return folders


def test_what_one_client_signs_the_other_knows(clients):
    one, other = (signatures(client_files(folder)) for folder in clients)
    assert one.peers == 2
    signed = one.sign(b"text")
    assert other.verify("site-1", b"text", signed) and one.verify("site-1", b"text", signed)
    assert not other.verify("site-2", b"text", signed)
    assert not other.verify("site-1", b"texts", signed)
    assert not other.verify("site-1", b"text", signed[:-1])
    assert not other.verify("site-3", b"text", signed)


def test_the_server_knows_who_is_registered_now(clients, keys, security):
    """As long as it runs: its folder is read each time."""
    signed = signatures(client_files(clients[0])).sign(b"text")
    assert is_signed(security, "site-1", b"text", signed)
    for wrong in ((b"texts", "site-1"), (b"text", "site-2"), (b"text", "../site-1")):
        assert not is_signed(security, wrong[1], wrong[0], signed)
    keys("revoke", f"folder={security}", "name=site-1")
    assert not is_signed(security, "site-1", b"text", signed)


def test_without_the_list_nobody_is_known(bundle):
    alone = signatures(client_files(bundle))
    assert alone.verify is None and alone.peers == 0 and len(alone.sign(b"text")) > 64


def test_the_list_follows_who_is_registered(clients, keys, security):
    keys("revoke", "name=site-2", f"folder={security}")
    keys("peers", f"folder={security}")
    assert read_peers(security / "peers.pem").keys() == {"site-1"}
    shutil.copy(security / "peers.pem", clients[1])
    with pytest.raises(ConfigError, match="does not hold the key of site-2: register it"):
        signatures(client_files(clients[1]))


@pytest.mark.parametrize("damage", [
    lambda text: text[:-9], lambda text: text + "x", lambda text: "", lambda text: text + text,
    lambda text: text.replace("site-1", "site 1"), lambda text: text.replace("site-1", "site-2"),
    lambda text: text.replace("A", "B"), lambda text: f"site-0{text[6:]}{text}",
    lambda text: text + "../x\\n",
    lambda text: text.replace("site-1", "site-3").replace("site-2", "site-1"),  # another's key
])  # fmt: skip
def test_a_damaged_list_is_refused(clients, damage):
    path = clients[0] / "peers.pem"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ConfigError, match="peers.pem (is no list of|does not hold)") as caught:
        signatures(client_files(clients[0]))
    assert "\n" not in str(caught.value)


def test_there_is_no_list_of_nobody(refused, security):
    (security / "clients" / "site-1.pub").unlink()
    assert "no client is registered in" in refused("peers", f"folder={security}")
