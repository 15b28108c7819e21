"""What deploy/ and the Dockerfile say about the project is still true."""

import datetime
import http.server
import importlib.util
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pathspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from orchestra_flwr.cli import client_main
from orchestra_flwr.config import load
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.server_config import ServerConfig

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = re.sub(r"(?m)^\s*#.*\n", "", (ROOT / "Dockerfile").read_text()).replace("\\\n", " ")
UNITS = sorted(DEPLOY.glob("*.service"))


def copied_files():
    """Sources of COPY that are files of the project."""
    for arguments in re.findall(r"(?m)^COPY (.+)$", DOCKERFILE):
        words = shlex.split(arguments)
        if not words[0].startswith("--from="):
            yield from words[:-1]


class TestDockerfile:
    def test_has_both_targets(self):
        targets = re.findall(r"(?m)^FROM \S+ AS (\w+)$", DOCKERFILE)
        assert targets[-2:] == ["server", "client"]

    @pytest.mark.parametrize("path", sorted(set(copied_files())))
    def test_copies_what_exists_and_is_not_ignored(self, path):
        rules = (ROOT / ".dockerignore").read_text().splitlines()
        ignored = pathspec.GitIgnoreSpec.from_lines(rules)
        source = ROOT / path
        files = [f for f in [source, *source.rglob("*.py"), *source.rglob("*.yaml")] if f.is_file()]
        assert files
        assert not [file for file in files if ignored.match_file(file.relative_to(ROOT))]

    @pytest.mark.parametrize("path", ["outputs/a/config.yaml", "data/x.jpg", "security/ca.key"])
    def test_sends_nothing_private_to_the_builder(self, path):
        rules = (ROOT / ".dockerignore").read_text().splitlines()
        assert pathspec.GitIgnoreSpec.from_lines(rules).match_file(path)

    def test_has_the_oldest_python_of_the_project(self):
        base = re.search(r"(?m)^ARG BASE=python:([\d.]+)-", DOCKERFILE)
        assert PROJECT["requires-python"] == f">={base[1]}"

    @pytest.mark.parametrize("target", ["server", "client"])
    def test_starts_a_command_of_the_project(self, target):
        stage = DOCKERFILE.split(f" AS {target}\n")[1].split("\nFROM ")[0]
        assert f'\nENTRYPOINT ["orchestra-{target}"' in stage
        assert f"orchestra-{target}" in PROJECT["scripts"]

    def test_asks_for_the_port_and_the_folder_that_are_the_defaults(self, monkeypatch):
        server = (ROOT / "conf/server.yaml").read_text()
        (port,) = re.findall(r'"/opt/health.py", "(\d+)"', DOCKERFILE)
        assert re.search(rf"(?m)^port: {port}\b", server)
        assert f"\nEXPOSE {port}\n" in DOCKERFILE
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        monkeypatch.setenv("HOME", "/var/lib/orchestra")
        client = load(ClientConfig, ["server=a:1", "data.root=x"])
        assert client.state == "/var/lib/orchestra/.local/state/orchestra_flwr"
        assert " .local/state/orchestra_flwr/*/alive" in DOCKERFILE

    def test_runs_as_an_ordinary_user(self):
        assert re.search(r"(?m)^USER 10001:10001$", DOCKERFILE)

    def test_tells_nobody(self):
        for off in ["FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"]:
            assert off in DOCKERFILE


class TestRequirements:
    def print_for(self, torch):
        command = [sys.executable, DEPLOY / "requirements.py", torch]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def test_are_the_dependencies_of_the_project(self):
        assert self.print_for("") == [
            *PROJECT["dependencies"],
            *PROJECT["optional-dependencies"]["server"],
            "",
        ]

    def test_take_the_torch_that_is_named(self):
        assert self.print_for("torch==2.10.*")[-1] == "torch==2.10.*"

    def test_keep_the_torch_that_is_there(self):
        torch, torchvision = self.print_for("base")[-2:]
        assert torch == f"torch=={importlib.metadata.version('torch')}"
        assert torchvision.startswith("torchvision==")


class TestHealth:
    @pytest.fixture
    def is_well(self):
        spec = importlib.util.spec_from_file_location("health", DEPLOY / "health.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.is_well

    @pytest.fixture
    def is_well_with_proxies(self, monkeypatch, request):
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        return request.getfixturevalue("is_well")

    @pytest.fixture
    def serve(self):
        servers = []

        def start(code, certificate=None):
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_response(code if self.path == "/health" else 404)
                    self.end_headers()

                def log_message(self, *_):
                    pass

            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            if certificate:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(certificate)
                server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            servers.append(server)
            return server.server_port

        yield start
        for server in servers:
            server.shutdown()
            server.server_close()

    @pytest.fixture
    def certificate(self, tmp_path):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
        now = datetime.datetime.now(datetime.UTC)
        signed = (
            x509.CertificateBuilder(name, name, key.public_key(), 1, now, now.replace(year=9999))
        ).sign(key, hashes.SHA256())
        file = tmp_path / "server.pem"
        pem = serialization.Encoding.PEM
        private = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(private + signed.public_bytes(pem))
        return file

    def test_well_without_tls(self, is_well, serve):
        assert is_well(serve(200))

    def test_a_proxy_of_the_environment_is_not_asked(
        self, serve, certificate, is_well_with_proxies
    ):
        """As Docker puts it into every container of a user who has one."""
        assert is_well_with_proxies(serve(200))
        assert is_well_with_proxies(serve(200, certificate))

    def test_well_with_a_certificate_of_our_own(self, is_well, serve, certificate):
        assert is_well(serve(200, certificate))

    def test_not_well(self, is_well, serve):
        assert not is_well(serve(503))

    def test_nobody_there(self, is_well):
        assert not is_well(1)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
class TestUnits:
    def test_starts_a_command_of_the_project(self, unit):
        text = unit.read_text()
        commands = set(re.findall(r"/opt/orchestra/bin/([\w-]+)", text))
        assert commands == {unit.stem}
        assert commands <= PROJECT["scripts"].keys()
        assert set(re.findall(r"/opt/orchestra/[^\s/:]*", text)) == {"/opt/orchestra/bin"}

    def test_has_an_example_of_its_arguments(self, unit):
        text = unit.read_text()
        (file,) = re.findall(r"EnvironmentFile=/etc/orchestra/(\S+)", text)
        variable = file.partition(".")[0].upper() + "_ARGS"
        (line,) = re.findall(rf"(?m)^{variable}='(.*)'$", (DEPLOY / file).read_text())
        assert f"${variable}" in text
        kind = {"client": ClientConfig, "server": ServerConfig}[file.partition(".")[0]]
        load(kind, shlex.split(line))

    @pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
    def test_systemd_accepts_it(self, unit, tmp_path):
        here = tmp_path / unit.name
        # The installation is not on this machine.
        installed = re.sub(r"/opt/orchestra/bin/[\w-]+", sys.executable, unit.read_text())
        here.write_text(installed)
        done = subprocess.run(
            ["systemd-analyze", "verify", here], capture_output=True, text=True, check=False
        )
        complaints = [
            line
            for line in done.stderr.splitlines()
            if unit.name in line and not re.search("RestartSteps|RestartMaxDelaySec", line)
        ]
        assert (done.returncode, complaints) == (0, [])


@pytest.mark.parametrize("script", sorted(DEPLOY.glob("*.sh")), ids=lambda script: script.name)
def test_scripts_parse_and_explain_themselves(script):
    subprocess.run(["bash", "-n", script], check=True)
    done = subprocess.run(["bash", script, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage:")


def test_a_client_is_started_again_after_what_may_pass(tmp_path, capsys):
    """Images on a disk that is not mounted yet are refused like a wrong argument."""
    assert client_main(["server=127.0.0.1:1", f"data.root={tmp_path / 'not mounted'}"]) == 2
    assert "not mounted" in capsys.readouterr().err
    unit = (DEPLOY / "orchestra-client.service").read_text()
    assert "\nRestart=on-failure\n" in unit and "\nRestartPreventExitStatus=" not in unit
