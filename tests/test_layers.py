"""Imports point down the list only."""

import ast
from pathlib import Path

import pytest

import orchestra_flwr

LAYERS = [
    ["config", "seeding", "optimizer", "heap", "graph", "files"],
    ["data", "precision", "privacy"],
    ["models"],
    ["clustering"],
    ["methods"],
    ["training"],
    ["evaluation", "merging", "experiments"],
    ["reporting"],
    ["federation"],
    ["deployment", "sweep"],
    ["cli"],
    ["__main__"],  # thin entries, python -m orchestra_flwr.<package>
]
ROOT = Path(orchestra_flwr.__file__).parent
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules() -> list[Path]:
    return [p for p in ROOT.rglob("*.py") if p.parent != ROOT or p.name != "__init__.py"]


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module)
    return found


def package(path: Path) -> str:
    if path.name == "__main__.py":
        return "__main__"
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    own = package(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "orchestra_flwr" and len(parts) > 1 and parts[1] != own:
            assert LEVEL[parts[1]] < LEVEL[own], f"{own} imports {name}"


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("flwr", {"federation", "deployment"}),
        ("hydra", {"config"}),
        ("dp_accounting", {"privacy"}),
    ],
)
def test_a_library_stays_at_home(library, home):
    users = {package(p) for p in modules() if library in {n.split(".")[0] for n in imports(p)}}
    assert users == home
