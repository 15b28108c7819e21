"""The verdict on what pip-audit reports; entries are as it writes them."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "deploy" / "audit.py"
CLEAN = {"name": "numpy", "version": "2.4.1", "vulns": []}
FLAWED = {
    "name": "pillow",
    "version": "10.0.0",
    "vulns": [
        {"id": "PYSEC-2023-175", "fix_versions": ["10.0.1"], "aliases": [], "description": ""}
    ],
}
UNKNOWN = {
    "name": "torch",
    "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.15.0+cpu)",
}
OWN = {"name": "orchestra-flwr", "skip_reason": "distribution marked as editable"}


@pytest.fixture
def audit():
    spec = importlib.util.spec_from_file_location("audit", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nothing_known_against_what_was_looked_up(audit, capsys):
    assert audit.verdict([CLEAN, UNKNOWN, OWN]) == 0
    assert capsys.readouterr().out == (
        "1 of 2 packages looked up, 0 vulnerable\nunknown to the database: torch\n"
    )


def test_a_vulnerable_package_is_named_with_its_remedy(audit, capsys):
    assert audit.verdict([CLEAN, FLAWED, OWN]) == 1
    assert "pillow 10.0.0: PYSEC-2023-175, mended in 10.0.1\n" in capsys.readouterr().out


def test_a_database_out_of_reach_is_no_clean_verdict(audit, capsys):
    assert audit.verdict([UNKNOWN, OWN]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: none of 1 packages could be looked up")
    assert error.count("\n") == 1


def test_no_pip_audit_is_no_clean_verdict(audit, capsys, monkeypatch, tmp_path):
    """A Python that has no such module writes no JSON."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "pip_audit.py").write_text("raise SystemExit('No module named pip_audit')\n")
    assert audit.main() == 2
    assert capsys.readouterr().err == (
        "error: the packages were not looked up: No module named pip_audit\n"
    )
