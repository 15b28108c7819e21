"""What benchmarks and the plug-ins of results take from the package exists."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "docs" / "results").rglob("*.py")]


def _exists(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_the_package_exist(program: Path):
    """Most are run by slow tests alone, or by none: nothing else notices a name that moved."""
    missing = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(program.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orchestra_flwr")
        for alias in node.names
        if not _exists(node.module, alias.name)
    ]
    assert missing == []
