"""compose.yaml, the chart and the units start commands of the project with keys that it knows.

`make lint-deploy` has Helm itself and the schemas of Kubernetes; without them the few marks that
the templates use are filled in here.
"""

import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from orchestra_flwr.config import load
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.server_config import ServerConfig

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
CHART = ROOT / "deploy/helm/orchestra-flwr"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
KINDS = {"server": ServerConfig, "client": ClientConfig}
VERSION = re.search(r'(?m)^version = "(.*?)"', (ROOT / "pyproject.toml").read_text())[1]
HOME, SECURITY, TEMPORARY = "/var/lib/orchestra", "/etc/orchestra/security", "/tmp"  # noqa: S108


def arguments(target, command):
    """Those of the program in an image, with what follows its entry point."""
    stage = DOCKERFILE.split(f" AS {target}\n")[1].split("\nFROM ")[0]
    program, *first = json.loads(re.search(r"(?m)^ENTRYPOINT (.*)$", stage)[1])
    assert program == f"orchestra-{target}"
    return [*first, *command]


def target_of(image):
    name, _, tag = image.partition(":")
    assert tag == VERSION
    return name.removeprefix("orchestra-")


def check_command(target, command):
    config = load(KINDS[target], arguments(target, command), all_read=True)
    assert config.security == SECURITY and config.tls
    if target == "server":
        assert (config.host, config.port, config.queue) == ("0.0.0.0", 8443, "runs")
    else:
        assert config.data.root == "/data" and config.server.endswith(":8443")


@pytest.mark.parametrize("name", COMPOSE["services"])
class TestCompose:
    def test_starts_a_command_with_keys_that_it_knows(self, name):
        service = COMPOSE["services"][name]
        target = target_of(service["image"])
        assert service["build"] == {"context": "..", "target": target}
        check_command(target, service["command"])

    def test_is_locked_up(self, name):
        service = COMPOSE["services"][name]
        assert (
            service["read_only"]
            and service["cap_drop"] == ["ALL"]
            and service["tmpfs"] == TEMPORARY
        )
        assert service["user"] == "10001:10001" and service["restart"] == "unless-stopped"
        assert service["security_opt"] == ["no-new-privileges:true"]

    def test_asks_for_its_health_as_its_image_does(self, name):
        *_, test = COMPOSE["services"][name]["healthcheck"]["test"]
        assert test in DOCKERFILE

    def test_has_its_keys_as_files_and_no_others(self, name):
        service = COMPOSE["services"][name]
        files = {
            secret["target"]: COMPOSE["secrets"][secret["source"]]["file"]
            for secret in service["secrets"]
        }
        bundle = "./security" if name == "server" else f"./security/bundles/{name}"
        names = {"server": ["server.crt", "server.key"]}.get(name, ["client.key", "client.pub"])
        assert files == {f"{SECURITY}/ca.crt": "./security/ca.crt"} | {
            f"{SECURITY}/{file}": f"{bundle}/{file}" for file in names
        }
        assert service["volumes"][0] == f"{name}:{HOME}"


class Filled(dict):
    """The templates as Helm fills them, of what they use: values, toJson, one `if` around all."""

    def __init__(self, values):
        for file in sorted((CHART / "templates").glob("*.yaml")):
            head, *body, tail = file.read_text().strip().splitlines()
            key = re.fullmatch(r"\{\{- if \.Values\.(\w+)\.enabled \}\}", head)[1]
            assert tail == "{{- end }}"
            if values[key]["enabled"]:
                text = re.sub(
                    r"\{\{ (.*?) \}\}", lambda m: self._value(m[1], values), "\n".join(body)
                )
                self[file.name] = text

    def _value(self, mark, values):
        if mark == ".Release.Name":
            return "fl"
        section, key = re.fullmatch(r"(?:toJson )?\.Values\.(\w+)\.(\w+)", mark).groups()
        value = values[section][key]
        return json.dumps(value) if mark.startswith("toJson") else str(value)


def enabled(kind):
    return {k: {**VALUES[k], "enabled": k == kind} for k in KINDS}


def objects(kind, filled=Filled):
    manifests = filled(enabled(kind)).values()
    return [manifest for text in manifests for manifest in yaml.safe_load_all(text) if manifest]


def by_helm(values):
    helm = pytest.importorskip("helm_python", reason="needs the extra deploy")
    with helm.Chart.load(str(CHART)) as chart:
        return dict(sorted(chart.render(values, name="fl").items()))


@pytest.mark.parametrize("kind", KINDS)
class TestChart:
    def test_starts_a_command_with_keys_that_it_knows(self, kind):
        (container,) = pod(kind)["containers"]
        assert target_of(container["image"]) == kind and "command" not in container
        check_command(kind, container["args"])

    def test_starts_what_compose_starts(self, kind):
        """Which a slow test runs: tests/deployment/end_to_end/test_compose.py."""
        (container,) = pod(kind)["containers"]
        services = COMPOSE["services"].values()
        (command,) = {tuple(s["command"]) for s in services if target_of(s["image"]) == kind}
        there = [argument.replace("=fl.example.org:", "=server:") for argument in container["args"]]
        assert there == [*command]

    def test_is_locked_up(self, kind):
        (container,) = pod(kind)["containers"]
        inside, outside = container["securityContext"], pod(kind)["securityContext"]
        assert inside["readOnlyRootFilesystem"] and not inside["allowPrivilegeEscalation"]
        assert inside["capabilities"] == {"drop": ["ALL"]}
        assert outside["runAsNonRoot"] and outside["runAsUser"] == 10001
        assert outside["fsGroupChangePolicy"] == "OnRootMismatch"  # files keep their modes
        assert "USER 10001:10001" in DOCKERFILE

    def test_has_its_keys_from_a_secret_and_its_home_on_a_volume(self, kind):
        (container,) = pod(kind)["containers"]
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod(kind)["volumes"]}
        assert volumes["keys"]["secret"]["secretName"] == VALUES[kind]["secret"]
        keys = [p.removeprefix(SECURITY) for p, m in mounts.items() if m["name"] == "keys"]
        files = ["/ca.crt", "/server.crt", "/server.key"]
        assert keys == (files if kind == "server" else [""])
        assert mounts[HOME]["name"] == "home" and mounts[TEMPORARY]["name"] == "tmp"
        (claim,) = objects(kind)[-1]["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["name"] == "home"
        assert f"{SECURITY}/clients" in mounts or kind == "client"

    def test_helm_fills_it_as_these_tests_do(self, kind):
        assert objects(kind, by_helm) == objects(kind)

    def test_helm_and_kubernetes_accept_it(self, kind):
        helm = pytest.importorskip("helm_python", reason="needs the extra deploy")
        kubernetes = pytest.importorskip("kubernetes_validate", reason="needs the extra deploy")
        report = helm.lint(str(CHART), enabled(kind), strict=True)
        assert not report["errors"] and all(
            message["severity"] < 2 for message in report["messages"]
        )
        for manifest in objects(kind):
            kubernetes.validate(manifest, "1.30", strict=True)


def pod(kind):
    return objects(kind)[-1]["spec"]["template"]["spec"]


def test_the_servers_probes_are_its_gates_and_find_its_service():
    (container,) = pod("server")["containers"]
    port = {entry["name"]: entry["containerPort"] for entry in container["ports"]}["fleet"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {
            "path": "/health",
            "port": "fleet",
            "scheme": "HTTPS",
        }
    assert (
        'call.path == "/health"' in (ROOT / "orchestra_flwr/deployment/gate/forward.py").read_text()
    )
    service, server = objects("server")
    assert (
        service["spec"]["selector"].items()
        <= server["spec"]["template"]["metadata"]["labels"].items()
    )
    assert service["spec"]["ports"][0]["port"] == port == load(ServerConfig, []).port
    (client,) = pod("client")["containers"]
    *_, script = client["readinessProbe"]["exec"]["command"]
    assert script in DOCKERFILE


def test_versions_are_the_projects():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION


@pytest.mark.parametrize(
    ("arguments", "begun", "given"),
    [
        ("host=0.0.0.0 federation.rounds=9", False, ["run_dir=run"]),
        ("host=0.0.0.0 federation.rounds=9", True, ["resume=run"]),
        ("host=0.0.0.0 queue=runs", False, []),
        ("queue=runs", True, []),
    ],
)
def test_the_servers_unit_goes_on_with_its_run_or_its_queue(tmp_path, arguments, begun, given):
    """The line that systemd runs; in the server's place a program prints what it is given."""
    unit = (ROOT / "deploy/orchestra-server.service").read_text()
    line = re.search(r"(?m)^ExecStart=(.*)$", unit)[1]
    program = tmp_path / "server"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o700)
    words = shlex.split(line.replace("/opt/orchestra/bin/orchestra-server", str(program)))
    assert words.pop() == "$SERVER_ARGS"
    if begun:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.yaml").touch()
    done = subprocess.run(
        [*words, *arguments.split()], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [*given, f"security={SECURITY}", *arguments.split()]


def test_compose_keeps_no_log_without_limit():
    """Docker never drops a line by itself, and a gate on the internet writes some every minute."""
    for service in COMPOSE["services"].values():
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}


@pytest.mark.skipif(not find_spec("check_jsonschema"), reason="needs the extra deploy")
def test_compose_has_the_shape_that_compose_takes():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, ROOT / "deploy/compose.yaml"], check=True)
