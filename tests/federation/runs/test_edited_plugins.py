"""A user's package is edited between runs: nobody takes old results or old code for the new."""

import json
import sys

import pytest

from orchestra_flwr import simulate
from orchestra_flwr.cli import main
from orchestra_flwr.config import ConfigError, load_config, without_unread
from orchestra_flwr.experiments.sweep import of_other_code
from orchestra_flwr.plugins import fingerprint

METHOD = """
    from orchestra_flwr.methods.rotpred import RotPred

    class Mine(RotPred):
        def loss(self, batch):
            step = super().loss(batch)
            step.losses["rotation"] = FACTOR * step.losses["rotation"]
            return step
"""


@pytest.fixture
def edited(user_package):
    """Writes the method with a factor; with `forget` as a new process finds it."""

    def write(factor, forget=True):
        user_package({"methods/mine.py": METHOD.replace("FACTOR", str(factor))})
        if forget:
            for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
                del sys.modules[name]

    return write


@pytest.fixture
def overrides(edited, tiny_overrides, tmp_path):
    edited(1)
    mine = ["plugins=[my_package]", "method=mine", "federation.rounds=1", f"run_dir={tmp_path}/run"]
    return without_unread(load_config([*tiny_overrides, *mine]), [*tiny_overrides, *mine])


def test_a_resumed_run_and_a_sweep_say_that_earlier_results_are_of_other_code(
    edited, overrides, tmp_path, capsys
):
    run = tmp_path / "run"
    assert main(overrides) == 0
    before = fingerprint(["my_package"])
    assert json.loads((run / "summary.json").read_text())["versions"]["my_package"] == before
    configs = {"run": load_config(overrides), "missing": load_config(overrides)}
    resume = [f"resume={run}", "plugins=[my_package]"]
    assert main([*resume, "federation.rounds=2"]) == 0
    assert "other code" not in capsys.readouterr().out
    assert [*of_other_code(configs, tmp_path)] == []
    edited(20)
    assert main([*resume, "federation.rounds=3"]) == 0
    says = "my_package has changed since the last round: earlier rounds are of other code"
    assert says in capsys.readouterr().out
    assert [*of_other_code(configs, tmp_path)] == []  # the summary is of the new code
    edited(30)
    (line,) = of_other_code(configs, tmp_path)
    assert line.startswith("1 of these runs exist already and are of other code: my_package has")


def test_a_server_says_it_whose_task_names_no_run_to_resume(edited, overrides, federate, capsys):
    first = federate(load_config(overrides))
    edited(20)
    config = load_config([*overrides, "federation.rounds=2"])
    assert config.resume is None  # as :meth:`ServerConfig.for_clients` makes it
    federate(config, folder=first.folder, shown="plain")
    assert "earlier rounds are of other code" in capsys.readouterr().out


def test_a_notebook_is_told_that_it_still_has_the_earlier_code(edited, overrides):
    simulate(overrides)
    edited(20, forget=False)
    again = [line for line in overrides if not line.startswith("run_dir=")]
    with pytest.raises(ConfigError, match=r"^plugins=\[my_package\]: its files have changed since"):
        simulate(again)
