"""A client as it starts, before it connects."""

import os

import pytest

from orchestra_flwr.config import ConfigError, load
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.processes.client_process import run_client
from orchestra_flwr.deployment.processes.supernode import Supernode


@pytest.mark.parametrize("left", [b"", b"../other", b"\xff\xfe"])
def test_a_damaged_name_is_named_and_not_used(tmp_path, photos, left):
    """It is a folder's name, and the server's for this client."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state/name").write_bytes(left)
    keys = ["server=127.0.0.1:1", "security=none", "device=cpu"]
    config = load(ClientConfig, [*keys, f"data.root={photos}", f"state={tmp_path / 'state'}"])
    with pytest.raises(ConfigError, match="state/name holds no name of a client: put it back"):
        run_client(config)
    assert [each.name for each in (tmp_path / "state").iterdir()] == ["name"]


def test_a_temporary_folder_without_programs_is_refused_at_once(tmp_path, photos, monkeypatch):
    """Later only a line in a log would say that Flower's own program runs."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK)
    monkeypatch.setattr(Supernode, "start", lambda _: pytest.fail("it connects"))
    keys = ["server=127.0.0.1:1", "security=none", "device=cpu"]
    config = load(ClientConfig, [*keys, f"data.root={photos}", f"state={tmp_path / 'state'}"])
    with pytest.raises(PermissionError, match="set TMPDIR to a folder"):
        run_client(config)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"not looked into before it connects")
    return folder
