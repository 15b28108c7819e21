"""Clients' keys as OpenSSH and Flower see them, and every way to get them wrong."""

import base64
import hashlib
import io
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys import certificates
from orchestra_flwr.deployment.keys.client_keys import (
    NAME_PATTERN,
    ClientFiles,
    PublicKey,
    client_files,
    load_public_key,
)
from orchestra_flwr.deployment.keys.client_registry import registered

ssh_keygen = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen here")


def public_line(key=None) -> bytes:
    key = key or ec.generate_private_key(ec.SECP384R1())
    form = serialization.PublicFormat.OpenSSH
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, form)
    return line + b" site-2\n"


def private_pem(key, form=serialization.PrivateFormat.PKCS8) -> bytes:
    no_password = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, no_password)


def test_what_a_client_makes(keys, tmp_path, security):
    code, out, _ = keys("client", "folder=c", "name=mine")
    assert code == 0
    assert {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "c").iterdir()} == {
        "client.key": 0o600,
        "client.pub": 0o644,
    }
    line = (tmp_path / "c" / "client.pub").read_text()
    assert line in out and line.endswith(" mine\n") and "PRIVATE" not in out
    with pytest.raises(ConfigError, match=r"ca\.crt is missing: copy ca\.crt from the server"):
        client_files(tmp_path / "c")
    shutil.copy(security / "ca.crt", tmp_path / "c")
    assert client_files(tmp_path / "c").name == "mine"


def test_the_default_name_is_the_keys_and_says_nothing_of_the_machine(keys):
    names = set()
    for folder in ("a", "b"):
        assert keys("client", f"folder={folder}")[0] == 0
        text, _, name = Path(folder, "client.pub").read_text().strip().rpartition(" ")
        assert re.fullmatch(NAME_PATTERN, name)
        assert name == f"client-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        names.add(name)
    assert len(names) == 2


@pytest.mark.parametrize("left", ["client.key", "client.pub"])
def test_a_clients_key_is_never_overwritten(keys, refused, tmp_path, left):
    assert keys("client", "folder=c")[0] == 0
    for path in (tmp_path / "c").iterdir():
        if path.name != left:
            path.unlink()
    said = refused("client", "folder=c")
    assert f"{left} exists already" in said and "remove client.key and client.pub" in said


def test_a_bundle_is_ready_for_its_client(bundle, security):
    mine = client_files(bundle)
    assert mine == ClientFiles(
        bundle / "ca.crt", bundle / "client.key", bundle / "client.pub", "site-1"
    )
    assert mine.ca.read_bytes() == (security / "ca.crt").read_bytes()
    (key,) = registered(security).values()
    assert key.pem == load_public_key(mine.public).pem


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda b: (b / "ca.crt").unlink(), r"ca\.crt is missing: copy ca\.crt from the server"),
        (lambda b: (b / "ca.crt").write_text("x"), r"ca\.crt is no certificate .* copy ca\.crt"),
        (lambda b: authority(b / "ca.crt", -4000), r"ca\.crt expired"),
        (lambda b: authority(b / "ca.crt", 4000), r"ca\.crt is valid from .* set the clock"),
        (lambda b: (b / "client.key").unlink(), r"client\.key is missing: make .* client folder="),
        (lambda b: (b / "client.pub").unlink(), r"client\.pub is missing: put it back"),
        (lambda b: (b / "client.key").write_text("x"), r"client\.key is no ECDSA key .* make"),
        (lambda b: ed(b / "client.key"), r"client\.key is no ECDSA key"),
        (lambda b: (b / "client.pub").write_text("x"), r"client\.pub is no ECDSA public key"),
        (
            lambda b: (b / "client.pub").write_bytes((b / "client.key").read_bytes()),
            r"client\.pub is a private key",
        ),
        (
            lambda b: (b / "client.pub").write_bytes(public_line()),
            r"client\.pub is not the public key of .*client\.key: put the right one back",
        ),
        (lambda b: rename(b / "client.pub", "me@home"), r"client\.pub ends in 'me@home': put"),
        (lambda b: rename(b / "client.pub", ""), r"client\.pub ends in '': put"),
    ],
)
def test_client_files_refuses_what_does_not_work_and_says_how_to_mend_it(bundle, spoil, expected):
    spoil(bundle)
    with pytest.raises(ConfigError, match=expected) as caught:
        client_files(bundle)
    assert "\n" not in str(caught.value)


def ed(path: Path) -> None:
    path.write_bytes(private_pem(ed25519.Ed25519PrivateKey.generate()))


def authority(path: Path, days: int) -> None:
    made = certificates.new_authority(datetime.now(UTC) + timedelta(days=days))
    path.write_bytes(certificates.certificate_pem(made.certificate))


def rename(path: Path, comment: str) -> None:
    kind, key, _ = path.read_text().split()
    path.write_text(f"{kind} {key} {comment}\n")


@ssh_keygen
def test_a_key_with_a_passphrase_is_refused(bundle):
    change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", bundle / "client.key"]
    subprocess.run(change, check=True, capture_output=True)
    with pytest.raises(ConfigError, match=r"client\.key .* has a passphrase"):
        client_files(bundle)


@ssh_keygen
@pytest.mark.parametrize("bits", [256, 384, 521])
def test_keys_that_ssh_keygen_makes_are_good(keys, security, tmp_path, bits):
    key = tmp_path / "client.key"
    words = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", str(bits), "-N", "", "-C", "site-9"]
    subprocess.run([*words, "-f", key], check=True)
    (tmp_path / "client.key.pub").rename(tmp_path / "client.pub")
    shutil.copy(security / "ca.crt", tmp_path)
    assert client_files(tmp_path).name == "site-9"
    code, out, _ = keys("register", "key=client.pub", f"folder={security}")
    printed = subprocess.run(
        ["ssh-keygen", "-l", "-f", "client.pub"], check=True, capture_output=True, text=True
    )
    assert code == 0 and printed.stdout.split()[1] in out
    assert load_public_key(Path("client.pub")).fingerprint == printed.stdout.split()[1]


@ssh_keygen
def test_ssh_keygen_reads_our_keys(bundle):
    def run(*words):
        done = subprocess.run(["ssh-keygen", *words], check=True, capture_output=True, text=True)
        return done.stdout.split()

    public = bundle / "client.pub"
    size, printed, name, kind = run("-l", "-f", public)
    assert (size, name, kind) == ("384", "site-1", "(ECDSA)")
    assert printed == load_public_key(public).fingerprint
    assert run("-y", "-f", bundle / "client.key")[:2] == public.read_text().split()[:2]


def test_flower_reads_our_keys_and_compares_them_as_we_do(bundle, security):
    from flwr.supercore.primitives import asymmetric

    private = serialization.load_ssh_private_key((bundle / "client.key").read_bytes(), None)
    public = serialization.load_ssh_public_key((security / "clients/site-1.pub").read_bytes())
    assert asymmetric.uses_nist_ec_curve(public)
    signature = asymmetric.sign_message(private, b"hello")
    assert asymmetric.verify_signature(public, b"hello", signature)
    stored = load_public_key(security / "clients" / "site-1.pub").pem
    assert stored == asymmetric.public_key_to_bytes(private.public_key())
    assert asymmetric.bytes_to_public_key(stored) == public


def pem(key) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


BAD_KEYS = {
    "empty": (lambda: b"", "no ECDSA public key"),
    "blank": (lambda: b" \n\n", "(one line: ecdsa-sha2-nistp384 AAAA... NAME)"),
    "text": (lambda: b"hello world\n", "no ECDSA public key"),
    "binary": (lambda: bytes(range(256)), "no ECDSA public key"),
    "utf-16": (lambda: public_line().decode().encode("utf-16"), "no ECDSA public key"),
    "ed25519": (lambda: public_line(ed25519.Ed25519PrivateKey.generate()), "no ECDSA public key"),
    "pem": (lambda: pem(ec.generate_private_key(ec.SECP384R1())), "no ECDSA public key"),
    "type only": (lambda: b"ecdsa-sha2-nistp384", "no ECDSA public key"),
    "no base64": (lambda: b"ecdsa-sha2-nistp384 !!!! a", "damaged"),
    "cut": (lambda: public_line()[:100], "damaged"),
    "another type": (lambda: public_line().replace(b"nistp384", b"nistp256", 1), "damaged"),
    "two": (lambda: public_line() + public_line(), "2 lines"),
    "private": (
        lambda: private_pem(
            ec.generate_private_key(ec.SECP384R1()), serialization.PrivateFormat.OpenSSH
        ),
        "must not leave its machine",
    ),
    "private, pem": (
        lambda: private_pem(ec.generate_private_key(ec.SECP384R1())),
        "must not leave its machine",
    ),
    "private and public": (
        lambda: public_line() + private_pem(ec.generate_private_key(ec.SECP384R1())),
        "must not leave its machine",
    ),
}


@pytest.mark.parametrize("kind", BAD_KEYS)
def test_what_is_no_public_key_is_refused(refused, security, public, monkeypatch, kind):
    make, expected = BAD_KEYS[kind]
    data = make()
    public.write_bytes(data)
    err = refused("register", f"key={public}", f"folder={security}", "name=x")
    assert expected in err and "client.pub" in err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert expected in refused("register", "key=-", f"folder={security}", "name=x")
    with pytest.raises(ConfigError, match=expected):
        load_public_key(public)


def test_a_key_with_any_byte_changed_is_refused():
    kind, key, name = public_line().split()
    blob = base64.b64decode(key)
    for place in range(len(blob)):
        changed = bytearray(blob)
        changed[place] ^= 1 << place % 8
        with pytest.raises(ConfigError):
            PublicKey.parse(b" ".join([kind, base64.b64encode(changed), name]), "it")
    empty_point = blob[: 4 + 19 + 4 + 8] + bytes(4)
    with pytest.raises(ConfigError):
        PublicKey.parse(b" ".join([kind, base64.b64encode(empty_point), name]), "it")
