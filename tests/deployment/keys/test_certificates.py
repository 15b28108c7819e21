"""Certificates as OpenSSL, HTTP clients and gRPC see them, and every way to get them wrong."""

import http.server
import os
import re
import shutil
import socket
import ssl
import threading
from collections.abc import Sequence
from concurrent import futures
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from orchestra_flwr.config import ConfigError
from orchestra_flwr.deployment.keys import certificates
from orchestra_flwr.deployment.keys.client_keys import client_files
from orchestra_flwr.deployment.keys.command_line import main
from orchestra_flwr.deployment.keys.server_keys import ServerFiles, server_files

HOSTS = ["example.org", "10.0.0.5", "2001:db8::5"]
LOCAL = ["localhost", "127.0.0.1", "::1"]


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def day(shift: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=shift)


def private_pem(key, password=None) -> bytes:
    form, locked = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    if password:
        locked = serialization.BestAvailableEncryption(password)
    return key.private_bytes(serialization.Encoding.PEM, form, locked)


def write_authority(folder: Path, start: datetime) -> None:
    authority = certificates.new_authority(start)
    (folder / "ca.crt").write_bytes(certificates.certificate_pem(authority.certificate))
    (folder / "ca.key").write_bytes(private_pem(authority.key))


def handshake(folder: Path, ca: Path, host: str) -> dict:
    """One strict TLS handshake over two sockets; returns the server's certificate."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(folder / "server.crt", folder / "server.key")
    ours = ssl.create_default_context(cafile=ca)
    ours.verify_flags |= ssl.VERIFY_X509_STRICT
    assert ours.verify_mode == ssl.CERT_REQUIRED and ours.check_hostname
    near, far = socket.socketpair()

    def serve():
        try:
            with theirs.wrap_socket(far, server_side=True) as server:
                server.sendall(server.recv(4))
        except OSError:  # the client hung up, and says why on its side
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    near.settimeout(10)
    try:
        with near, ours.wrap_socket(near, server_hostname=host) as client:
            client.sendall(b"ping")
            assert client.recv(4) == b"ping"
            return client.getpeercert()
    finally:
        thread.join(10)
        assert not thread.is_alive()


def reissue(
    folder: Path, start: datetime, days: int = 30, hosts: Sequence[str] = tuple(LOCAL)
) -> None:
    """Replaces the server's certificate by one made at another time, or for other hosts."""
    authority = certificates.load_authority(folder / "ca.crt", folder / "ca.key")
    key = certificates.load_private_key(folder / "server.key", "")
    names = [certificates.parse_host(host) for host in hosts]
    certificate = certificates.new_server_certificate(authority, key, names, start, days)
    (folder / "server.crt").write_bytes(certificates.certificate_pem(certificate))


@pytest.mark.parametrize("host", [*HOSTS, *LOCAL, "EXAMPLE.org"])
def test_a_client_that_has_the_bundle_trusts_the_server(security, bundle, host):
    assert handshake(security, bundle / "ca.crt", host)["subjectAltName"]


@pytest.mark.parametrize("host", ["example.com", "www.example.org", "10.0.0.6", "::2"])
def test_another_host_name_is_refused(security, host):
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        handshake(security, security / "ca.crt", host)
    assert caught.value.verify_code in (62, 64)  # X509_V_ERR_HOSTNAME_ / IP_ADDRESS_MISMATCH


def test_another_authority_is_refused(keys, security, tmp_path):
    assert keys("server", "folder=other", "host=localhost")[0] == 0
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        handshake(security, tmp_path / "other" / "ca.crt", "localhost")
    assert caught.value.verify_code == 20  # X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY


@pytest.mark.parametrize(("shift", "code"), [(-60, 10), (60, 9)])
def test_a_certificate_out_of_its_dates_is_refused(security, shift, code):
    reissue(security, datetime.now(UTC) + timedelta(days=shift))
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        handshake(security, security / "ca.crt", "localhost")
    assert caught.value.verify_code == code  # X509_V_ERR_CERT_HAS_EXPIRED / _NOT_YET_VALID


def test_a_renewed_certificate_is_trusted_by_those_who_have_the_old_authority(
    keys, security, bundle, contents
):
    old = contents(security)
    code, out, _ = keys("server", f"folder={security}", "host=new.example.org")
    assert code == 0 and f"kept {security}/ca.crt" in out and "made security/ca.crt" not in out
    changed = {name for name, data in contents(security).items() if old.get(name) != data}
    assert changed == {security / "server.crt"}
    handshake(security, bundle / "ca.crt", "new.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(security, bundle / "ca.crt", "example.org")
    server_files(security)


def test_an_expired_certificate_is_renewed_for_the_hosts_that_it_had(keys, security):
    hosts = certificates.certificate_hosts(load(security / "server.crt"))
    assert hosts == HOSTS + LOCAL
    reissue(security, datetime.now(UTC) - timedelta(days=60))
    assert keys("server", f"folder={security}")[0] == 0
    assert certificates.certificate_hosts(load(security / "server.crt")) == LOCAL
    server_files(security)


def test_a_deleted_server_key_is_made_anew(keys, security, bundle):
    old = (security / "server.key").read_bytes()
    (security / "server.key").unlink()
    assert keys("server", f"folder={security}")[0] == 0
    assert (security / "server.key").read_bytes() != old
    handshake(security, bundle / "ca.crt", "example.org")


@pytest.fixture
def https(security):
    """A web server with the certificate; returns its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(security / "server.crt", security / "server.key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_the_http_clients_that_flower_uses_trust_the_server(https, bundle, keys, tmp_path):
    httpx, requests = pytest.importorskip("httpx"), pytest.importorskip("requests")
    assert keys("server", "folder=other", "host=localhost")[0] == 0
    good, bad = bundle / "ca.crt", tmp_path / "other" / "ca.crt"
    with requests.Session() as session:
        session.trust_env = False
        assert session.get(https, verify=str(good)).status_code == 204
        with pytest.raises(requests.exceptions.SSLError):
            session.get(https, verify=str(bad))
    trust = ssl.create_default_context(cafile=good)
    assert httpx.get(https, verify=trust, trust_env=False).status_code == 204
    with pytest.raises(httpx.ConnectError):
        httpx.get(https, verify=ssl.create_default_context(cafile=bad), trust_env=False)


def test_grpc_trusts_the_server(security, bundle):
    grpc = pytest.importorskip("grpc")
    pair = ((security / "server.key").read_bytes(), (security / "server.crt").read_bytes())
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    trust = grpc.ssl_channel_credentials((bundle / "ca.crt").read_bytes())
    try:
        with grpc.secure_channel(f"127.0.0.1:{port}", trust) as channel:
            grpc.channel_ready_future(channel).result(timeout=10)
    finally:
        server.stop(None)


def test_the_dates(keys, tmp_path):
    now = datetime.now(UTC)
    assert keys("server", "folder=s", "host=localhost", "days=100")[0] == 0
    for name, days in (("ca.crt", 3652), ("server.crt", 100)):
        certificate = load(tmp_path / "s" / name)
        for moment, expected in (
            (certificate.not_valid_before_utc, now - timedelta(days=1)),
            (certificate.not_valid_after_utc, now + timedelta(days=days)),
        ):
            assert abs(moment - expected) < timedelta(minutes=5)


def test_a_server_certificate_does_not_outlive_its_authority():
    authority = certificates.new_authority(datetime.now(UTC) - timedelta(days=3600))
    names = [certificates.parse_host("localhost")]
    made = certificates.new_server_certificate(
        authority, authority.key, names, datetime.now(UTC), 825
    )
    assert made.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_two_authorities_have_two_names(security, keys):
    assert keys("server", "folder=other", "host=localhost")[0] == 0
    assert load(security / "ca.crt").subject != load(Path("other/ca.crt")).subject


def test_hosts_are_normalised_and_given_once(keys):
    names = [
        "Example.ORG",
        "example.org",
        "localhost",
        "0:0:0:0:0:0:0:1",
        "my_server",
        "xn--mnchen-3ya.de",
    ]
    assert keys("server", "folder=s", f"host={','.join(names)}")[0] == 0
    hosts = certificates.certificate_hosts(load(Path("s/server.crt")))
    assert hosts == ["example.org", "localhost", "::1", "my_server", names[-1], "127.0.0.1"]


@pytest.mark.parametrize(
    "host",
    [
        "https://example.org",
        "example.org:9092",
        "[::1]",
        "*.example.org",
        "example..org",
        "example.org.",
        "-x.org",
        "münchen.de",
        "two words",
        "a\nb",
        "",
        "10.0.0",
        "10.0.0.256",
        "10.0.0.0/8",
        "0.0.0.0",
        "::",
        "fe80::1%eth0",
        "a" * 64 + ".org",
        ".".join(["a" * 60] * 5),
    ],
)
def test_what_is_no_host_is_refused(refused, host):
    assert "host=" in refused("server", "folder=s", f"host=good.org,{host}")


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (["ca.crt"], "ca.crt is missing: put it back"),
        (["ca.key"], "ca.key is missing: put it back"),
        (["ca.crt", "ca.key"], "no ca.crt and ca.key: put them back"),
        (["ca.crt", "server.crt", "server.key"], "ca.crt is missing: put it back"),
    ],
)
def test_an_incomplete_authority_is_not_replaced(refused, security, missing, expected):
    for name in missing:
        (security / name).unlink()
    assert expected in refused("server", f"folder={security}", "host=localhost")


def test_an_authority_of_two_halves_is_not_used(refused, keys, security, tmp_path):
    assert keys("server", "folder=other", "host=localhost")[0] == 0
    shutil.copy(tmp_path / "other" / "ca.key", security / "ca.key")
    assert "ca.key is not the key of" in refused("server", f"folder={security}")


def test_an_expired_authority_signs_nothing(refused, security):
    write_authority(security, datetime.now(UTC) - timedelta(days=4000))
    err = refused("server", f"folder={security}")
    assert "ca.crt expired" in err and "new folder" in err


def test_a_damaged_server_key_is_not_overwritten(refused, security):
    (security / "server.key").write_text("damaged")
    assert "delete it" in refused("server", f"folder={security}")


def test_hosts_cannot_be_kept_from_a_damaged_certificate(refused, keys, security):
    (security / "server.crt").write_text("damaged")
    assert "host=" in refused("server", f"folder={security}")
    assert keys("server", f"folder={security}", "host=example.org")[0] == 0
    server_files(security)


def test_server_files(security, caplog):
    places = ServerFiles(security / "ca.crt", security / "server.crt", security / "server.key")
    assert server_files(security) == places
    assert caplog.records == []


def test_server_files_takes_an_rsa_key_of_someone_elses_making(security):
    key = rsa.generate_private_key(65537, 2048)
    (security / "server.key").write_bytes(private_pem(key))
    assert main(["server", f"folder={security}"]) == 0
    server_files(security)
    handshake(security, security / "ca.crt", "localhost")


def forge(folder: Path) -> None:
    """A certificate with the authority's name, but of another's hand."""
    real = load(folder / "ca.crt")
    liar = ec.generate_private_key(ec.SECP384R1())
    key = certificates.load_private_key(folder / "server.key", "")
    forged = certificates.new_server_certificate(
        certificates.Authority(real, liar), key, [x509.DNSName("localhost")], day(0), 30
    )
    (folder / "server.crt").write_bytes(certificates.certificate_pem(forged))


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (
            lambda s: (s / "ca.crt").unlink(),
            r"ca\.crt is missing: make it with: orchestra-keys server ",
        ),
        (lambda s: (s / "server.crt").unlink(), r"server\.crt is missing: make it with: "),
        (lambda s: (s / "server.key").unlink(), r"server\.key is missing: make it with: "),
        (shutil.rmtree, r"ca\.crt is missing: .* server folder=.* host="),
        (lambda s: (s / "ca.crt").write_text("x"), r"ca\.crt is no certificate .*: make it with"),
        (lambda s: (s / "server.crt").write_bytes(bytes(9)), r"server\.crt is no certificate"),
        (lambda s: (s / "server.crt").write_bytes(bytes(2**21)), r"server\.crt is too large"),
        (lambda s: (s / "server.key").write_text("x"), r"server\.key is no EC or RSA key"),
        (lambda s: encrypt(s / "server.key"), r"server\.key is .* encrypted"),
        (lambda s: ed(s / "server.key"), r"server\.key is no EC or RSA key"),
        (lambda s: shutil.copy(s / "ca.key", s / "server.key"), r"key is not the key of .*crt: "),
        (lambda s: write_authority(s, day(0)), r"server\.crt is not signed by .*ca\.crt: make"),
        (forge, r"server\.crt is not signed by .*ca\.crt: make"),
        (lambda s: reissue(s, day(-60)), r"server\.crt expired on \d{4}-\d\d-\d\d: make it with"),
        (lambda s: reissue(s, day(60)), r"server\.crt is valid from .* on, .* set the clock"),
        (
            lambda s: reissue(s, day(0), hosts=["fl.example.org"]),
            r"server\.crt is not for 127\.0\.0\.1, .*: make it with: .* host=HOST",
        ),
        (lambda s: write_authority(s, day(-4000)), r"ca\.crt expired on .* new folder"),
        (lambda s: replace_by_folder(s / "server.key"), r"server\.key cannot be read: Is a dir"),
        (lambda s: replace_by_pipe(s / "server.crt"), r"server\.crt is a named pipe, no file"),
    ],
)
def test_server_files_refuses_what_does_not_work_and_says_how_to_mend_it(security, spoil, expected):
    spoil(security)
    with pytest.raises(ConfigError, match=expected) as caught:
        server_files(security)
    assert "\n" not in str(caught.value)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def encrypt(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(private_pem(key, password=b"secret"))


def ed(path: Path) -> None:
    path.write_bytes(private_pem(ed25519.Ed25519PrivateKey.generate()))


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(("days", "warned"), [(29, True), (31, False)])
def test_a_certificate_has_a_warning_a_month_ahead(security, days, warned):
    reissue(security, datetime.now(UTC), days)
    authority, server = server_files(security).dated
    assert authority.warning() is None
    assert (server.warning() is not None) == warned
    if warned:
        said = r"server\.crt expires on .*: make it with: .* server folder=.*, and start the server"
        assert re.search(said, server.warning())


# From one authority to another, step by step as docs/deployment.md has it.


def trusting_both(security, tmp_path, keys):
    """The file of steps 1 and 2: a new authority in a folder of its own, and ca.crt with both."""
    assert keys("server", "folder=new", "host=example.org")[0] == 0
    both = (security / "ca.crt").read_bytes() + (tmp_path / "new/ca.crt").read_bytes()
    (tmp_path / "both.crt").write_bytes(both)
    return tmp_path / "both.crt"


def test_who_trusts_both_authorities_trusts_either_server(security, tmp_path, keys):
    both = trusting_both(security, tmp_path, keys)
    handshake(security, both, "localhost")
    handshake(tmp_path / "new", both, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "new", security / "ca.crt", "localhost")


def test_a_server_and_a_client_start_with_both_authorities(security, bundle, tmp_path, keys):
    both = trusting_both(security, tmp_path, keys)
    for folder in (security, tmp_path / "new", bundle):
        shutil.copy(both, folder / "ca.crt")
    assert len(server_files(security).dated) == 3  # signed by the first
    server_files(tmp_path / "new")  # signed by the second
    assert len(client_files(bundle).dated) == 2
    # The key that is there signs: of the new authority in its folder, of the old one in the other.
    for folder, place in ((security, 0), (tmp_path / "new", 1)):
        assert keys("server", f"folder={folder}")[0] == 0
        issuers = x509.load_pem_x509_certificates(both.read_bytes())
        load(folder / "server.crt").verify_directly_issued_by(issuers[place])


def test_an_authority_that_has_expired_may_stand_beside_a_good_one(security, tmp_path):
    old = certificates.new_authority(datetime.now(UTC) - timedelta(days=4000)).certificate
    good = (security / "ca.crt").read_bytes()
    for both in (
        certificates.certificate_pem(old) + good,
        good + certificates.certificate_pem(old),
    ):
        (security / "ca.crt").write_bytes(both)
        assert len(server_files(security).dated) == 2
    (security / "ca.crt").write_bytes(certificates.certificate_pem(old))
    with pytest.raises(ConfigError, match=r"ca\.crt expired on"):
        server_files(security)


def test_a_server_starts_without_its_authoritys_key_and_is_renewed_where_it_is(
    security, tmp_path, keys, refused
):
    """ca.key is kept elsewhere; a copy of the folder comes there, server.crt goes back."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(security, elsewhere)
    (security / "ca.key").unlink()
    server_files(security)
    assert "ca.key is missing: put it back" in refused("server", f"folder={security}")
    (elsewhere / "server.key").unlink()  # it stays at the server
    before = load(security / "server.crt")
    shutil.copy(security / "server.key", elsewhere / "server.key")
    assert keys("server", f"folder={elsewhere}", "host=new.example.org")[0] == 0
    shutil.copy(elsewhere / "server.crt", security / "server.crt")
    server_files(security)
    handshake(security, security / "ca.crt", "new.example.org")
    assert load(security / "server.crt") != before


def test_a_new_server_key_is_made_where_the_old_one_was_deleted(security, keys):
    old = (security / "server.key").read_bytes()
    (security / "server.key").unlink()
    assert keys("server", f"folder={security}")[0] == 0
    assert (security / "server.key").read_bytes() != old
    server_files(security)
    handshake(security, security / "ca.crt", "example.org")
