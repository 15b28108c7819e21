"""The command: what it makes, bad input, and what is left when it breaks off."""

import errno
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestra_flwr.deployment.keys import key_files
from orchestra_flwr.deployment.keys.client_keys import client_files, load_public_key
from orchestra_flwr.deployment.keys.client_registry import registered
from orchestra_flwr.deployment.keys.command_line import SUBCOMMANDS, main
from orchestra_flwr.deployment.keys.server_keys import server_files


def tree(path: Path) -> list[Path]:
    return sorted(path.rglob("*"))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), "a command must be given: one of server, client, site, register, revoke, list"),
        (("make",), "make"),
        (("server", "folder=s"), "host: must be given"),
        (("server", "folder=s", "client=a"), "host: must be given"),
        (("server", "folder=s", "host=a", "days=0"), "days=0: "),
        (("server", "folder=s", "host=a", "days=3651"), "days=3651: "),
        (("server", "folder=s", "host=a", "days=soon"), "days=soon: "),
        (("server", "folder=s", "host=a", "client=../x"), "'../x'"),
        (("server", "folder=file", "host=a"), "file"),
        (("server", "folder=file/s", "host=a"), "file"),
        (("client", "folder=s", "name=a b"), "'a b'"),
        (("client", "folder=s", "name="), "''"),
        (("client", "folder=file"), "file"),
        (("register", "key=file", "folder=missing"), "missing"),
        (("register", "key=missing.pub", "folder=."), "missing.pub"),
        (("register", "key=.", "folder=."), "cannot be read"),
        (("register", "folder=."), "key: must be given"),
        (("register", "key=x", "nmae=a"), "nmae: unknown key (did you mean name"),
        (("server", "host=a", "host=b"), "host: is given twice; several "),
        (("server", "--client=a"), "--client: unknown key"),
        (("register", "client.pub"), "client.pub: must be written as key=value"),
        (("revoke", "name=a", "folder=missing"), "missing"),
        (("revoke", "name=a", "folder=."), "no client a"),
        (("revoke", "name=../file", "folder=."), "'../file'"),
        (("list", "folder=missing"), "missing"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(refused, tmp_path, arguments, names):
    (tmp_path / "file").write_text("")
    assert names in refused(*arguments)


def test_what_the_server_makes(keys, tmp_path):
    previous = os.umask(0)  # modes must not rest on a person's umask
    try:
        code, out, _ = keys(
            "server", "folder=a/security", "host=example.org", "client=x,y,x",
        )  # fmt: skip
    finally:
        os.umask(previous)
    assert code == 0
    modes = {str(p.relative_to(tmp_path)): mode(p) for p in tree(tmp_path)}
    private = {name: permissions for name, permissions in modes.items() if permissions != 0o644}
    assert set(modes) - set(private) == {
        "a/security/ca.crt",
        "a/security/server.crt",
        *(f"a/security/bundles/{n}/{f}" for n in "xy" for f in ("ca.crt", "client.pub")),
        *(f"a/security/clients/{n}.pub" for n in "xy"),
    }
    assert private == {
        "a": 0o700,
        "a/security": 0o700,
        "a/security/bundles": 0o700,
        "a/security/bundles/x": 0o700,
        "a/security/bundles/y": 0o700,
        "a/security/clients": 0o700,
        "a/security/ca.key": 0o600,
        "a/security/server.key": 0o600,
        "a/security/bundles/x/client.key": 0o600,
        "a/security/bundles/y/client.key": 0o600,
    }
    for named in ("ca.crt", "server.crt for example.org", "bundles/x", "bundles/y", "register"):
        assert named in out
    assert "PRIVATE" not in out


def test_no_private_key_is_ever_open_and_no_public_one_half_there(keys, tmp_path, monkeypatch):
    sync, seen = os.fsync, set()

    def watched(descriptor):
        sync(descriptor)
        for path in tree(tmp_path):
            if path.is_file() and b"PRIVATE KEY" in path.read_bytes():
                assert mode(path) == 0o600 and mode(path.parent) == 0o700
                seen.add(path.suffix)
        for path in (tmp_path / "s" / "clients").glob("*.pub"):
            load_public_key(path)
            seen.add(path.name)

    monkeypatch.setattr(os, "fsync", watched)
    assert keys("server", "folder=s", "host=a", "client=x,y")[0] == 0
    assert seen == {".tmp", ".key", "x.pub", "y.pub"}


def test_a_bundle_is_never_overwritten(refused, keys, security):
    err = refused("server", f"folder={security}", "client=site-1")
    assert "bundles/site-1 exists already: choose another name" in err
    assert keys("revoke", "name=site-1", f"folder={security}")[0] == 0
    assert "site-1" in refused("server", f"folder={security}", "client=n,site-1")


def test_a_bundle_does_not_take_a_registered_name(refused, keys, security, new_line, tmp_path):
    (tmp_path / "key.pub").write_bytes(new_line("mine"))
    assert keys("register", "key=key.pub", f"folder={security}")[0] == 0
    assert "mine is taken" in refused("server", f"folder={security}", "client=mine")


def test_clients_may_be_added_later(keys, security, bundle, contents):
    before = contents(bundle)
    assert keys("server", f"folder={security}", "client=later")[0] == 0
    assert list(registered(security)) == ["later", "site-1"]
    assert client_files(security / "bundles" / "later").name == "later"
    assert contents(bundle) == before


def test_a_private_key_that_others_can_read_is_warned_of(security, bundle, caplog):
    (security / "server.key").chmod(0o644)
    (bundle / "client.key").chmod(0o640)
    server_files(security)
    client_files(bundle)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2 and all("chmod 600" in text for text in texts)


def test_a_group_may_read_a_key_of_another_user(security, caplog, monkeypatch):
    """So Kubernetes mounts a Secret: `chmod` would be refused."""
    monkeypatch.setattr(os, "geteuid", lambda: (security / "server.key").stat().st_uid + 1)
    (security / "server.key").chmod(0o440)
    server_files(security)
    assert not caplog.records
    (security / "server.key").chmod(0o444)
    server_files(security)
    assert "chmod 600" in caplog.text


COMMANDS = {
    "server": ("server", "folder=new/s", "host=a", "client=x,y"),
    "renewal": ("server", "folder=security", "client=x"),
    "client": ("client", "folder=new/c"),
    "client beside others": ("client", "folder=security"),
    "register": ("register", "key=client.pub", "folder=security"),
}
WRITE = key_files.write_atomically
OPERATIONS = [
    (Path, "mkdir"),
    (key_files, "write_atomically"),
    (key_files, "name_new"),
    (Path, "replace"),
]
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("reason", "code"), [(FULL, 2), (KeyboardInterrupt(), 130)])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_breaks_off_anywhere_leaves_nothing(
    keys, security, public, contents, tmp_path, monkeypatch, command, reason, code
):
    before, calls = contents(tmp_path), 0

    def breaking_off(real, step):
        def operation(*arguments, **options):
            nonlocal calls
            calls += 1
            number = calls  # a write renames, which counts as well
            if real is WRITE:  # a full disk shows when a part is written
                real(*arguments, **options)
            if number == step:
                raise reason
            return None if real is WRITE else real(*arguments, **options)

        return operation

    for step in itertools.count(1):
        calls = 0
        with monkeypatch.context() as patch:
            for owner, name in OPERATIONS:
                patch.setattr(owner, name, breaking_off(getattr(owner, name), step))
            exit_code, out, err = keys(*COMMANDS[command])
        if calls < step:
            break
        assert (exit_code, out, err.count("\n")) == (code, "", 1)
        assert code == 130 or err.endswith("No space left on device)\n")
        assert contents(tmp_path) == before
    assert step > 2 and exit_code == 0 and contents(tmp_path) != before


def test_a_file_system_without_links_will_do(keys, security, public, contents, monkeypatch):
    def no_links(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    assert keys("register", f"key={public}", f"folder={security}")[0] == 0
    assert (security / "clients/site-2.pub").read_bytes() == public.read_bytes()
    assert not [path for path in tree(security) if path.suffix == ".tmp"]
    before = contents(security)
    with pytest.raises(FileExistsError, match="site-2.pub"):
        key_files.write_all([key_files.NewFile(security / "clients" / "site-2.pub", b"other")])
    assert contents(security) == before


def test_the_command_starts_without_torch_and_flower():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "orchestra_flwr.deployment.keys", "--help"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    for word in ("server", "client", "register", "revoke", "list", "Exit code"):
        assert word in done.stdout
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert "cryptography" in imported
    assert not imported & {"torch", "flwr", "numpy", "matplotlib"}


@pytest.mark.parametrize("command", [*SUBCOMMANDS])
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_every_command_and_key_has_help(capsys, command, word):
    assert main([command, word]) == 0
    out = capsys.readouterr().out
    assert f"\n{command} " in out
    for key in SUBCOMMANDS[command][0].model_fields:
        assert f"\n  {key}= " in out


def test_a_name_with_an_umlaut_is_refused_by_the_letters_that_a_name_may_have(tmp_path, capsys):
    assert main(["client", f"folder={tmp_path}/s", "name=süd"]) == 2
    assert "'süd' is no name of a client: 1 to 64 of A-Z, a-z, 0-9," in capsys.readouterr().err


def test_what_to_do_next_speaks_of_another_client_only_where_one_has_its_key(tmp_path, capsys):
    for folder, arguments, whose in (("none", (), "on a"), ("one", ("client=a",), "on another")):
        assert main(["server", f"folder={tmp_path}/{folder}", "host=127.0.0.1", *arguments]) == 0
        assert f"- {whose} client's machine: copy" in capsys.readouterr().out


def test_sigterm_ends_the_command_in_one_line(security):
    command = [sys.executable, "-m", "orchestra_flwr.deployment.keys", "register", "key=-"]
    with subprocess.Popen(
        command, cwd=security.parent, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not _catches(process.pid, signal.SIGTERM):
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
        assert process.stderr.read() == "stopped; nothing was written\n"


def _catches(pid: int, number: int) -> bool:
    (line,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(line, 16) >> number - 1 & 1)
