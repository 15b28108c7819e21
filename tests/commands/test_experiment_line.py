from pathlib import Path

import pytest

from orchestra_flwr.commands.experiment_line import read_experiment
from orchestra_flwr.config import ConfigError


def test_an_experiments_keys_and_its_runs_are_told_apart():
    line = read_experiment(
        ["experiment=table4", "seeds=0,2", "device=cpu", "jobs=3", "transfer_root=a=b, c"], []
    )
    assert (line.experiment, line.scale, line.seeds, line.jobs) == ("table4", "small", (0, 2), 3)
    assert line.extra == ("device=cpu",) and line.transfer_root == "a=b, c"


def test_what_is_not_given_is_the_experiments_own():
    line = read_experiment(["experiment=x", "only=", "transfer_root="], [])
    assert (line.seeds, line.only, line.transfer_root, line.jobs) == (None, (), None, None)
    assert line.folder == Path("outputs/experiments") and line.extra == ()


@pytest.mark.parametrize("wrong", ["seeds=0,a", "seeds=", "jobs=0", "jobs=1.5"])
def test_what_is_no_number_is_refused(wrong):
    with pytest.raises(ConfigError, match="must be a whole number, at least"):
        read_experiment(["experiment=x", wrong], [])
    with pytest.raises(ConfigError, match="experiment: must be given, one of a, b"):
        read_experiment([wrong], ["a", "b"])
