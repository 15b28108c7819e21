"""A server's folder to try things on, and the command as a person calls it."""

import os
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from orchestra_flwr.deployment.keys import main


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def contents():
    """Every path below a folder with its bytes."""

    def read(folder: Path) -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}

    return read


@pytest.fixture
def keys(tmp_path, monkeypatch, capsys):
    """Runs the command in an empty folder; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def refused(keys, contents, tmp_path):
    """Runs a command that must fail in one line and leave everything as it was."""

    def call(*arguments):
        before = contents(tmp_path)
        code, out, err = keys(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
        assert contents(tmp_path) == before
        return err

    return call


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template") / "security"
    hosts = ["--host", "example.org", "--host", "10.0.0.5", "--host", "2001:db8::5"]
    assert main(["server", "--folder", str(folder), *hosts, "--client", "site-1"]) == 0
    return folder


@pytest.fixture
def security(template, tmp_path):
    """A server's folder with one client's bundle."""
    return Path(shutil.copytree(template, tmp_path / "security"))


@pytest.fixture
def bundle(security):
    """The folder of the client site-1."""
    return security / "bundles" / "site-1"


@pytest.fixture
def new_line():
    """Makes the line of a new public key."""

    def make(name: str = "site-2") -> bytes:
        key = ec.generate_private_key(ec.SECP384R1()).public_key()
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return line + f" {name}\n".encode()

    return make


@pytest.fixture
def public(tmp_path, new_line):
    """The public key of a client, site-2, as it was brought to the server."""
    path = tmp_path / "client.pub"
    path.write_bytes(new_line())
    return path
