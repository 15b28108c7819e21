"""Each room of the deployment imports only those before it."""

import ast
from pathlib import Path

import pytest

import orchestra_flwr.deployment

ROOT = Path(orchestra_flwr.deployment.__file__).parent
CONFIGURATION = {"addresses", "server_config", "client_config", "run_queue"}
ROOMS = [{"keys"}, CONFIGURATION, {"channel"}, {"gate"}, {"client_work"}, {"watch"}, {"processes"}]
LEVEL = {name: level for level, names in enumerate(ROOMS) for name in names}
FILES = [p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py"]


def room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("orchestra_flwr.deployment"):
            parts = node.module.split(".")[2:]
            yield from [parts[0]] if parts else [alias.name for alias in node.names]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_those_before_it(path):
    for name in imports(path):
        assert name == room(path) or LEVEL[name] <= LEVEL[room(path)], name
        if name in ROOMS[2] | ROOMS[3] and room(path) not in {name, "processes"}:
            raise AssertionError("only processes knows the gate and the channel")
