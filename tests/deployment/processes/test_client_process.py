"""A client as it starts, before it connects."""

import re

import httpx
import pytest

from orchestra_flwr.config import ConfigError, load
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.keys.command_line import main
from orchestra_flwr.deployment.processes import client_process
from orchestra_flwr.deployment.processes.client_process import run_client
from orchestra_flwr.folder_lock import locked


@pytest.mark.parametrize("left", [b"", b"../other", b"\xff\xfe"])
def test_a_damaged_name_is_named_and_not_used(tmp_path, photos, left):
    """It is a folder's name, and the server's for this client."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state/name").write_bytes(left)
    keys = ["server=127.0.0.1:1", "insecure=true", "device=cpu"]
    config = load(ClientConfig, [*keys, f"data.root={photos}", f"state={tmp_path / 'state'}"])
    with pytest.raises(ConfigError, match="state/name holds no name of a client: put it back"):
        run_client(config)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["name"]


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"not looked into before it connects")
    return folder


@pytest.mark.parametrize("names", [["name=name", "name=null"], ["name=null", "name=name"]])
def test_a_client_may_be_called_like_the_file_of_names(
    tmp_path, photos, monkeypatch, capsys, names
):
    def start(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(client_process.Supernode, "start", start)
    keys = ["server=127.0.0.1:1", "insecure=true", "device=cpu", f"data.root={photos}"]
    for name in names * 2:
        with pytest.raises(KeyboardInterrupt):
            run_client(load(ClientConfig, [*keys, name, f"state={tmp_path / 'state'}"]))
    assert len([path for path in (tmp_path / "state").iterdir() if path.is_dir()]) == 2


@pytest.mark.parametrize(("security", "key"), [(None, "name"), ("keys/bundles/a", "state")])
def test_a_second_process_is_told_what_it_can_have_of_its_own(tmp_path, photos, security, key):
    """A key has its name: in another federation a second client of this name has a `state`."""
    assert main(["server", f"folder={tmp_path / 'keys'}", "host=127.0.0.1", "client=a"]) == 0
    keys = f"security={tmp_path / security}" if security else "insecure=true"
    shared = ["server=127.0.0.1:1", keys, "device=cpu", "name=a"]
    config = load(ClientConfig, [*shared, f"data.root={photos}", f"state={tmp_path / 'state'}"])
    (tmp_path / "state/a").mkdir(parents=True)
    running = f"a is already running here .*; give another one {key}="
    with locked(tmp_path / "state/a", "lock"), pytest.raises(ConfigError, match=running):
        run_client(config)


def test_a_client_can_be_watched_while_it_connects(tmp_path, photos, monkeypatch, capsys):
    class Supernode:
        socket, trouble = None, ""

        def __init__(self, *_, **__):
            pass

        def start(self):
            address = re.search("to be watched at (.*)", capsys.readouterr().out)[1]
            shown = httpx.get(f"{address}status", trust_env=False).json()
            assert (shown["state"], shown["images"], shown["name"]) == ("connecting", 1, "a")
            raise KeyboardInterrupt

    monkeypatch.setattr(client_process, "Supernode", Supernode)
    keys = ["server=127.0.0.1:1", "insecure=true", "device=cpu", "name=a", "watch.port=0"]
    config = load(ClientConfig, [*keys, f"data.root={photos}", f"state={tmp_path / 'state'}"])
    with pytest.raises(KeyboardInterrupt):
        run_client(config)
