"""A server optimizer of a user's own package, and the files beside the classes of ours."""

import sys
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import ServerOptimizerConfig

TOY = '''
import numpy as np
from pydantic import Field

from orchestra_flwr.config import Section
from orchestra_flwr.federation.server_optimizers import ElementwiseOptimizer


class Decayed(ElementwiseOptimizer):
    """The change of a round, divided by how many there were."""

    class Settings(Section):
        lr: float = Field(1.0, gt=0)

    def initial_moments(self):
        return {}

    def change(self, update, moments):
        return self.settings.lr * update / self.steps
'''


@pytest.fixture
def choose(tmp_path, monkeypatch):
    room = tmp_path / "server_toys" / "server_optimizers"
    room.mkdir(parents=True)
    for folder in (room.parent, room):
        (folder / "__init__.py").write_text("")
    (room / "decayed.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)

    def make(**options):
        choice = ServerOptimizerConfig(**options)
        choice.look_in(("server_toys",))
        return choice

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == "server_toys"]:
        del sys.modules[name]


def test_one_file_is_a_server_optimizer(choose):
    optimizer = choose(name="decayed", lr=0.5).build(3)
    state = np.zeros(3, np.float32)
    trained = [slice(0, 2)]
    for expected in ([0.5, 0.5, 1], [0.75, 0.75, 2]):
        state = optimizer.step(state, state + 1, trained)
        assert state.tolist() == expected
    again = choose(name="decayed", lr=0.5).build(3)
    again.load_moments(optimizer.moments())
    assert again.steps == 2


def test_its_options_are_checked_and_its_name_is_listed(choose):
    with pytest.raises(ConfigError, match=r"server_optimizer\.lr=-1: input should be greater"):
        choose(name="decayed", lr=-1).build(3)
    with pytest.raises(ConfigError, match="must be one of .*, decayed"):
        choose(name="decayde").build(3)


@pytest.mark.parametrize("name", sorted(ServerOptimizerConfig.room.found()))
def test_the_file_in_conf_says_what_the_class_says(name):
    file = Path(__file__).parents[3] / "conf" / "server_optimizer" / f"{name}.yaml"
    values = OmegaConf.to_container(OmegaConf.load(file), resolve=True)  # without a preset
    choice = ServerOptimizerConfig.model_validate(values)
    assert choice.name == name
    assert choice.options == choice.plugin.Settings().model_dump()
