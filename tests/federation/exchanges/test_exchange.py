"""What holds for every exchange."""

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges import Stage, Task
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.training import build_learner

PAIRS = """
    from orchestra_flwr.federation.exchanges import Exchange

    class Pairs(Exchange):
        def models(self, clients):
            return ("one", "other")
"""
COVERED = (
    PAIRS
    + """
        private = True
"""
)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("federation.weighting=uniform", "privacy.clip=2"), "privacy.clip=2"),
        (
            ("method=simclr", "federation.weighting=uniform", "privacy.clip=0.5",
             "privacy.noise_multiplier=1"),
            "privacy.clip=0.5",
        ),
        (("clustering=private", "privacy.epsilon=3"), "privacy.epsilon=3"),
    ],
)  # fmt: skip
def test_privacy_that_nobody_accounts_for_is_refused_in_a_line(tiny, user_package, overrides, key):
    user_package({"exchanges/pairs.py": PAIRS})
    chosen = ("plugins=[my_package]", "exchange=star", "exchange.name=pairs")
    tiny(*chosen)
    with pytest.raises(ConfigError) as error:
        tiny(*chosen, *overrides)
    assert str(error.value) == (
        f"{key}: must not be given with exchange=pairs, it is accounted for one model and one stage"
    )
    tiny(*overrides)  # a star may


def test_an_exchange_may_say_that_it_is_covered(tiny, user_package):
    user_package({"exchanges/pairs.py": COVERED})
    tiny("plugins=[my_package]", "exchange=star", "exchange.name=pairs",
         "federation.weighting=uniform", "privacy.clip=2")  # fmt: skip


def test_tasks_and_stages_are_checked():
    with pytest.raises(ValueError, match="client a must be sent different models"):
        Task("a", ())
    with pytest.raises(ValueError, match="client a must be sent different models"):
        Task("a", ("x", "x"))
    with pytest.raises(ValueError, match="a client has two tasks in a stage: a, a, b"):
        Stage((Task("a", ("x",)), Task("b", ("x",)), Task("a", ("y",))))


@pytest.mark.parametrize("names", [("a", "a"), ("a/b",), ("", "b"), ()])
def test_names_of_models_are_checked(tiny, names):
    learner = build_learner(tiny(), 1)
    with pytest.raises(FederationError, match="models must have different names without '/'"):
        Models(tiny(), learner, Schemas.of(learner, tiny()), names)
