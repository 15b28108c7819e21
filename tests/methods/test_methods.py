"""The contract: six names of every method, and a mixin for what only some of them can do."""

import inspect

import pytest
from torch import nn

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import MethodConfig
from orchestra_flwr.methods import ABILITIES, ClipsGradients, Contributes, Method, release_of
from orchestra_flwr.terms import Term

FORGETFUL = """
    from orchestra_flwr.methods.simclr import SimCLR

    class Forgetful(SimCLR):
        def start_round(self, received):
            raise AssertionError("nothing calls this")
"""


def test_a_method_has_six_names_of_its_own():
    assert Method.__abstractmethods__ == {"__init__", "role", "recipes", "loss", "backbones"}
    public = {name for name in vars(Method) if not name.startswith("_")}
    of_every_plugin = {"check", "unread"}
    assert public == {"role", "recipes", "loss", "backbones"} | of_every_plugin
    assert inspect.get_annotations(Method).keys() == {"settings"}


@pytest.mark.parametrize("ability", [*ABILITIES, ClipsGradients])
def test_each_ability_is_that_of_some_methods_and_not_of_all(ability):
    methods = MethodConfig.room.found().values()
    able = [method for method in methods if issubclass(method, ability)]
    assert 1 <= len(able) < len(methods)
    assert not issubclass(Method, ability) and not issubclass(ability, nn.Module | Term)


def test_what_nothing_would_call_is_refused(tiny, user_package):
    user_package({"methods/forgetful.py": FORGETFUL})
    with pytest.raises(ConfigError, match=r"Forgetful\.start_round needs the base StartsRounds"):
        tiny("plugins=[my_package]", "method=forgetful")


def test_only_methods_that_contribute_release_something(tiny):
    releases = {name: release_of(tiny(f"method={name}")) for name in ("orchestra", "simclr")}
    assert releases["orchestra"].label == "centroids" and releases["simclr"] is None
    able = {n for n, m in MethodConfig.room.found().items() if issubclass(m, Contributes)}
    assert able == {"orchestra", "orchestra_plus", "cbafed"}
