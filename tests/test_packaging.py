"""What `pyproject.toml` promises: commands, the Flower app, and the files of the wheel."""

import importlib
import tomllib
from pathlib import Path

import pytest
from flwr.cli.config_utils import load_and_validate
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def named(place):
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("place", PROJECT["project"]["scripts"].values())
def test_a_command_is_there(place):
    assert callable(named(place))


def test_flwr_run_takes_the_app():
    config, warnings = load_and_validate(ROOT / "pyproject.toml", check_module=True)
    assert config["tool"]["flwr"]["app"]["config"] == {"overrides": ""} and not warnings
    apps = PROJECT["tool"]["flwr"]["app"]["components"]
    assert isinstance(named(apps["serverapp"]), ServerApp)
    assert isinstance(named(apps["clientapp"]), ClientApp)


def test_the_wheel_holds_conf():
    """`conf_dir` looks for it inside an installed package."""
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"conf": "orchestra_flwr/conf"}
    assert wheel["packages"] == ["orchestra_flwr"]
