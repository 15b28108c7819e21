"""Which release of Flower or Ray broke this package, said by the first test that notices."""

import ast
import importlib
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import orchestra_flwr.flower

ROOM = Path(orchestra_flwr.flower.__file__).parent
FILES = sorted(path for path in ROOM.glob("*.py") if path.stem != "__init__")
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation", "ray"}
CHECKED = re.compile(r"\b(Flower|Ray) (\d+\.\d+(?: and \d+\.\d+)*)")
DISTRIBUTION = {"Flower": "flwr", "Ray": "ray"}


def checked(path: Path) -> dict[str, list[str]]:
    """By product, the releases that a file says it was checked against."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    _, _, text = docstring.partition("Checked against ")
    return {
        product: releases.split(" and ")
        for product, releases in CHECKED.findall(" ".join(text.split()))
    }


def imported_names(path: Path) -> list[tuple[str, str]]:
    """What a file imports of Flower and Ray, as (module, name)."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and node.module
        and node.module.split(".")[0] in ("flwr", "ray")
        for alias in node.names
    ]


def exists(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_says_what_it_was_checked_against(path):
    """A newer release in pyproject.toml fails here, until somebody has looked at these files."""
    assert checked(path), f"{path.name} names no version"
    for product, releases in checked(path).items():
        installed = version(DISTRIBUTION[product])
        assert installed.rpartition(".")[0] in releases, (
            f"{path.name} was checked against {product} {releases}; {installed} is installed"
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_pyproject_admits_is_what_was_checked(path):
    project = tomllib.loads((ROOM.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    required = map(Requirement, project["project"]["dependencies"])
    (flower,) = (requirement.specifier for requirement in required if requirement.name == "flwr")
    admitted = [f"1.{minor}" for minor in range(100) if f"1.{minor}.0" in flower]
    assert checked(path).get("Flower", admitted) == admitted


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_private_name_is_still_there(path):
    for module, name in imported_names(path):
        assert exists(module, name), (
            f"flwr {version('flwr')}, ray {version('ray')}: {module} has no {name}, "
            f"which {path.name} needs"
        )


def test_a_name_that_is_gone_is_noticed():
    assert not exists("flwr.app", "NoSuchName")
    assert not exists("flwr.no_such_module", "Message")


def test_there_are_private_names_to_look_at():
    private = {m for path in FILES for m, _ in imported_names(path)} - PUBLIC
    assert {
        "flwr.supercore.task_identity",
        "flwr.superlink.grid.http_grid",
        "ray._private",
    } <= private
