"""Adaptations with every method, merging, exchange, server optimizer, term, wire and aggregation.

The choices are those that are found by their place: a new one is among them.
"""

from typing import get_args

import pytest

from orchestra_flwr import load_encoder
from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import (
    AggregationConfig,
    ExchangeConfig,
    MergingConfig,
    MethodConfig,
    ServerOptimizerConfig,
    TermConfig,
)
from orchestra_flwr.config.sections import Wire
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.methods import Role
from orchestra_flwr.training import starting_learner
from tests.federation.runs.test_frozen_weights import differ, frozen_of

ADAPTATIONS = {
    "lora": ("adaptation=lora",),
    "lora in turns": ("adaptation=lora", "adaptation.alternate=true"),
    "norms": ("adaptation=norms",),
    "blocks": ("adaptation=blocks",),
}
ROOMS = (MethodConfig, MergingConfig, ExchangeConfig, ServerOptimizerConfig, AggregationConfig)
CHOICES = (
    *(f"{choice.key}={name}" for choice in ROOMS for name in choice.room.found()),
    *(f"terms.{name}.weight=0.1" for name in TermConfig.room.found()),
    *(f"federation.wire={wire}" for wire in get_args(Wire)),
)
SMALL = (
    *("method=byol", "partition=iid", "data.train_limit=80", "data.test_limit=20"),
    *("federation.clients=5", "federation.participation=1", "training.batch_size=8"),
    *("training.lr=0.05", "evaluation.every=9", "clustering.memory=16"),
)
NEEDS = {  # by choice, what it does not go without
    "method=mae": ("model=vit_tiny", "model.width=24", "model.depth=2"),
    "exchange=buffered": ("clock=virtual",),
}


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("adaptation", ADAPTATIONS)
def test_what_is_frozen_stays_and_the_rest_moves(
    tiny, tmp_path, federate, monkeypatch, adaptation, choice
):
    """Or the two are refused in a line before anything is trained."""
    if "lora" in adaptation:
        pytest.importorskip("peft", reason="needs the extra timm")
    fit, changed, moved = OrchestraClient.fit, set(), set()

    def watched(self, parameters, task):
        results = fit(self, parameters, task)
        changed.update(differ(self.learner.state(Role.FROZEN), frozen))
        moved.update(differ(self.learner.state(Role.LOCAL), local))
        return results

    monkeypatch.setattr(OrchestraClient, "fit", watched)
    try:
        config = tiny(*SMALL, *ADAPTATIONS[adaptation], *NEEDS.get(choice, ()), choice,
                      f"run_dir={tmp_path / 'run'}")  # fmt: skip
        first = starting_learner(config, 1)
    except ConfigError as refused:
        assert "\n" not in str(refused) and "adaptation" in str(refused)
        return
    frozen, shared, local = map(first.state, (Role.FROZEN, Role.SHARED, Role.LOCAL))
    assert frozen and not frozen.keys() & shared.keys()
    run = federate(config, evaluate=False)
    assert not changed and not differ(frozen, frozen_of(run, config))
    assert not frozen.keys() & run.state.keys()
    backbone = load_encoder(run.folder.path).backbone.state_dict()
    saved = {f"backbone.{name}": tensor for name, tensor in backbone.items()}
    assert not differ({name: t for name, t in saved.items() if name in frozen}, frozen)
    names = [name for name in {**shared, **local} if name.startswith("backbone.")]
    trained = {name for name in names if name.endswith("weight")}
    moved |= {*differ({name: t for name, t in shared.items() if name in trained}, run.state)}
    assert trained and trained <= moved
