"""Who may take part: register, revoke, list, and what a running server reads."""

import io
import os
import re
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys import client_registry
from orchestra_flwr.deployment.keys.client_keys import load_public_key
from orchestra_flwr.deployment.keys.client_registry import RegisteredNames, path_of, registered


def test_register_revoke_and_list(keys, security, public):
    code, out, _ = keys("register", f"key={public}", f"folder={security}")
    assert code == 0 and out == f"registered site-2 ({load_public_key(public).fingerprint})\n"
    path = security / "clients" / "site-2.pub"
    assert path.read_bytes() == public.read_bytes() and path.stat().st_mode & 0o777 == 0o644
    assert path_of(security, "site-2") == path and "site-2" in registered(security)
    registered_at = datetime.now() - timedelta(days=400, hours=1)
    os.utime(path, (0, registered_at.timestamp()))
    lines = keys("list", f"folder={security}")[1].splitlines()
    assert [line.split()[0] for line in lines] == ["name", "site-1", "site-2"]
    assert re.split(" {2,}", lines[2]) == [
        "site-2",
        load_public_key(public).fingerprint,
        f"{registered_at:%Y-%m-%d %H:%M}",
        "400 days",
    ]
    assert keys("revoke", "name=site-2", f"folder={security}") == (0, "revoked site-2\n", "")
    assert list(registered(security)) == ["site-1"]
    assert keys("register", f"key={public}", f"folder={security}")[0] == 0


def test_list_of_nobody(keys):
    assert keys("list", "folder=.") == (0, "no client is registered in .\n", "")


@pytest.mark.parametrize("command", [["list"], ["register", "key=client.pub"]])
def test_a_clients_own_folder_becomes_no_list(keys, refused, tmp_path, monkeypatch, command):
    """A client was registered at its own machine, as the line said, and not let in."""
    monkeypatch.chdir(tmp_path)
    assert keys("client", "folder=.", "name=a")[0] == 0
    assert "is a client's, the list is in the server's folder" in refused(*command, "folder=.")
    assert not (tmp_path / "clients").exists()


def test_registering_again_changes_nothing(keys, security, public):
    assert keys("register", f"key={public}", f"folder={security}")[0] == 0
    before = {p: p.stat().st_mtime_ns for p in security.rglob("*")}
    code, out, _ = keys("register", f"key={public}", f"folder={security}", "name=site-2")
    assert code == 0 and "already registered" in out and "site-2" in out
    assert {p: p.stat().st_mtime_ns for p in security.rglob("*")} == before


def test_a_client_is_registered_under_the_name_that_its_key_has(refused, security, public):
    """Its client would be refused under another one, and cannot be started with that."""
    err = refused("register", f"key={public}", f"folder={security}", "name=other")
    assert "this key is named site-2" in err and "other" not in registered(security)


def test_a_key_has_one_name_and_a_name_one_key(keys, refused, security, public, new_line):
    public.write_bytes(line := new_line("me@home"))
    assert keys("register", f"key={public}", f"folder={security}", "name=other")[0] == 0
    assert path_of(security, "other").read_text().endswith(" other\n")
    public.write_bytes(line.replace(b"me@home", b"site-2"))
    assert "under the name other" in refused("register", f"key={public}", f"folder={security}")
    public.write_bytes(new_line("me@home"))
    err = refused("register", f"key={public}", f"folder={security}", "name=other")
    assert "other is taken" in err
    assert load_public_key(security / "clients/other.pub").fingerprint in err


def test_a_damaged_entry_is_not_overwritten(refused, keys, security, public):
    (security / "clients" / "site-2.pub").write_text("damaged")
    assert "revoke site-2" in refused("register", f"key={public}", f"folder={security}")
    assert keys("revoke", "name=site-2", f"folder={security}")[0] == 0
    assert keys("register", f"key={public}", f"folder={security}")[0] == 0


def test_an_entry_made_at_the_same_moment_is_not_overwritten(
    refused, security, public, new_line, monkeypatch
):
    path = security / "clients" / "site-2.pub"
    path.write_bytes(new_line())
    monkeypatch.setattr("orchestra_flwr.deployment.keys.client_registry.registered", lambda _: {})
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert f"{path}: cannot be written (File exists)" in refused(
        "register", f"key={public}", f"folder={security}"
    )


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "-a", ".a", "_a", "a b", "a\n", "é", "a" * 65, "a@b"]
)
def test_what_is_no_name_is_refused(refused, security, public, new_line, name):
    err = refused("register", f"key={public}", f"folder={security}", f"name={name}")
    assert "no name of a client" in err
    public.write_bytes(new_line(name.strip("\n") or "@"))
    if name != "a\n":
        assert "give name=" in refused("register", f"key={public}", f"folder={security}")
    assert "no name of a client" in refused("revoke", f"folder={security}", f"name={name}")
    assert "no name of a client" in refused("client", "folder=c", f"name={name}")
    assert "no name of a client" in refused("server", f"folder={security}", f"client={name}")


@pytest.mark.parametrize("name", ["a", "A" * 64, "0.a_b-C", "a..b", "x.pub"])
def test_what_is_a_name(keys, security, public, new_line, name):
    public.write_bytes(new_line("me@home"))
    assert keys("register", f"key={public}", f"folder={security}", f"name={name}")[0] == 0
    assert set(registered(security)) == {"site-1", name}


def test_a_name_cannot_write_to_the_terminal(refused, security, public, new_line):
    public.write_bytes(new_line("\x1b[31mred"))
    assert "\x1b" not in refused("register", f"key={public}", f"folder={security}")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: b"\xef\xbb\xbf" + line,
        lambda line: line.replace(b"\n", b"\r\n"),
        lambda line: b"\n  " + line.replace(b" ", b" \t ") + b"\n\n",
        lambda line: line.strip(),
    ],
    ids=["mark", "windows", "blanks", "bare"],
)
def test_a_key_survives_mail_and_editors(keys, security, public, wrap):
    line = public.read_bytes()
    public.write_bytes(wrap(line))
    assert keys("register", f"key={public}", f"folder={security}")[0] == 0
    assert (security / "clients" / "site-2.pub").read_bytes() == line


def test_the_line_that_the_client_prints_registers_it(keys, security, monkeypatch):
    out = keys("client", "folder=c", "name=mine")[1]
    (line,) = re.findall(r"echo '([^']+)' \| .* register key=-", out)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line.encode())))
    assert keys("register", "key=-", f"folder={security}")[0] == 0
    assert registered(security)["mine"] == load_public_key(Path("c/client.pub"))


def test_a_closed_input_holds_no_key(refused, security, monkeypatch):
    """As in `register key=- <&-`, or in a service."""
    monkeypatch.setattr(sys, "stdin", None)
    err = refused("register", "key=-", f"folder={security}")
    assert "standard input is no ECDSA public key" in err


def test_the_folder_may_be_below_the_users_home(keys, security, public, monkeypatch):
    """A shell leaves the tilde behind an equals sign: keys were made in a folder of that name."""
    monkeypatch.setenv("HOME", str(security.parent))
    assert keys("register", f"key={public}", f"folder=~/{security.name}")[0] == 0
    assert [*registered(security)] == ["site-1", "site-2"]


def test_registered_skips_what_is_no_client_and_says_so(security, new_line, caplog):
    clients = security / "clients"
    for name in ("b", "a.c", "a-b", "a", "B"):
        (clients / f"{name}.pub").write_bytes(new_line())
    shutil.copy(clients / "b.pub", clients / "c.pub")
    shutil.copy(clients / "b.pub", clients / "._b.pub")
    (clients / "damaged.pub").write_bytes(new_line()[:90])
    (clients / "folder.pub").mkdir()
    (clients / ".new.pub.1234.tmp").write_bytes(b"half")
    (clients / "README").write_text("not a key, and not said to be one")
    names = ["B", "a", "a-b", "a.c", "b", "site-1"]
    assert [*registered(security)] == names
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 4 and all("is skipped" in text for text in texts)
    for part in ("._b.pub", "c.pub is skipped: the same key as b", "damaged.pub", "folder.pub"):
        assert any(part in text for text in texts)


def test_registered_without_a_list_is_nobody_but_an_unreadable_list_is_an_error(tmp_path):
    assert registered(tmp_path) == {}
    (tmp_path / "clients").write_text("")
    with pytest.raises(ConfigError, match="clients cannot be read: Not a directory"):
        registered(tmp_path)


def test_a_run_sees_who_is_registered_now(security, bundle, monkeypatch):
    names, key = RegisteredNames(security), load_public_key(bundle / "client.pub").pem
    assert names() == {key: "site-1"}
    clients = security / "clients"
    (clients / "site-1.pub").rename(clients / "kitchen.pub")
    assert names() == {key: "kitchen"}
    monkeypatch.setattr("orchestra_flwr.deployment.keys.client_registry.registered", None)
    assert names() == {key: "kitchen"}  # read once, however often it is asked
    monkeypatch.undo()
    clients.rename(security / "away")
    clients.write_text("no folder")
    assert names() == {key: "kitchen"}  # a list that cannot be read revokes nobody
    clients.unlink()
    (security / "away").rename(clients)
    (clients / "kitchen.pub").unlink()
    assert names() == {}


def test_a_run_sees_a_key_that_was_copied_with_the_time_of_the_one_before(security, new_line):
    names, file = RegisteredNames(security), security / "clients/site-1.pub"
    before, times = names(), file.stat()
    file.write_bytes(new_line("site-1"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert names() == {load_public_key(file).pem: "site-1"} != before


def test_a_revoked_key_is_off_the_disk(keys, security, monkeypatch):
    synced = []
    monkeypatch.setattr(
        client_registry, "sync_folder", lambda folder: synced.append([*folder.iterdir()])
    )
    assert keys("revoke", "name=site-1", f"folder={security}")[0] == 0
    assert synced == [[]]


def test_a_run_counts_a_key_that_cannot_be_read_for_a_moment(
    security, bundle, monkeypatch, unreadable
):
    now = 0.0
    monkeypatch.setattr(client_registry.time, "monotonic", lambda: now)
    names, key = RegisteredNames(security), load_public_key(bundle / "client.pub").pem
    with unreadable():
        assert names() == {}
    now += client_registry.AGAIN_SECONDS
    assert names() == {key: "site-1"}
    os.utime(security / "clients/site-1.pub")
    with unreadable():
        assert names() == {key: "site-1"}
