"""Flags of the commands, in one line where they are wrong."""

import re
import runpy
import sys

import pytest

from orchestra_flwr import __version__
from orchestra_flwr.cli import client_main, evaluate_main, experiment_main, main, server_main
from orchestra_flwr.commands import usage
from orchestra_flwr.commands.flags import COMMON, read_flags
from orchestra_flwr.config import Config, ConfigError, EvaluateConfig, described
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.export.export_config import ExportConfig
from orchestra_flwr.use.use_config import EmbedConfig, LabelConfig

COMMANDS = [main, server_main, client_main, experiment_main, evaluate_main]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (usage.SIM, Config),
        (usage.SERVER, ServerConfig),
        (usage.CLIENT, ClientConfig),
        (usage.EVALUATE, EvaluateConfig),
        (usage.EXPORT, ExportConfig),
        (usage.EMBED, EmbedConfig),
        (usage.LABEL, LabelConfig),
    ],
)
def test_the_group_that_help_names_as_an_example_is_one_of_the_command(text, kind):
    named = re.findall(r"^  --help (\w+) ", text, re.MULTILINE)
    assert all(f"\n{group}:\n" in described(kind).group(group) for group in named)
    if not named:
        with pytest.raises(ConfigError, match="^--help data: there are no groups of keys"):
            described(kind).group("data")


def test_flags_and_overrides_are_told_apart():
    flags = read_flags(["seed=1", "-h", "method", "~terms.proximal"])
    assert flags.overrides == ("seed=1",) and flags.groups == ("method", "~terms.proximal")
    assert "--help" in flags
    assert read_flags(["--cfg", "job", "seed=1"]).overrides == ("seed=1",)
    assert read_flags(["seed=1", "job"]).overrides == ("seed=1", "job")


@pytest.mark.parametrize("flag", ["--nope", "-x", "--", "--config-name=x"])
def test_a_flag_that_is_not_there_is_told(flag):
    with pytest.raises(ConfigError) as error:
        read_flags([flag])
    assert str(error.value) == f"{flag}: unknown flag; there are {', '.join(COMMON)}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_knows_its_version_and_its_flags(command, capsys):
    assert command(["--version"]) == 0
    assert capsys.readouterr().out == f"orchestra-flwr {__version__}\n"
    assert command(["--nope"]) == 2
    assert capsys.readouterr().err.startswith("error: --nope: unknown flag; there are --help, ")


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("/venv/bin/orchestra-sim", "usage: orchestra-sim [key=value"),
        ("run_sim.py", "usage: run_sim.py [key=value"),
        ("/x/orchestra_flwr/__main__.py", "usage: python -m orchestra_flwr [key=value"),
        ("/x/orchestra_flwr/cli.py", "usage: python -m orchestra_flwr [key=value"),
        ("/x/pytest/__main__.py", "usage: run_sim.py [key=value"),
    ],
)
def test_usage_lines_have_the_name_that_was_called(program, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [program])
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(says) and (says.startswith("usage: run_sim")) == ("run_sim.py" in out)


def test_the_package_is_a_command(monkeypatch, capsys):
    """`python -m orchestra_flwr`."""
    monkeypatch.setattr(sys, "argv", ["orchestra_flwr", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("orchestra_flwr", run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out == f"orchestra-flwr {__version__}\n"


def test_help_of_a_group(capsys):
    assert main(["--help", "partition", "partition=skew"]) == 0
    out = capsys.readouterr().out
    assert "  partition=iid " in out and "beta: 0.1" in out and "training:" not in out
    assert main(["--help", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("error: --help nothing: must be one of method, ")
