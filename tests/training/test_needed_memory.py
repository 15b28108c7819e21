import time

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.training import build_learner, needed_memory
from orchestra_flwr.training.needed_memory import check_memory


def size_of(config):
    """Numbers and bytes of a learner's whole state."""
    state = build_learner(config, 3).state_dict().values()
    return sum(t.numel() for t in state), sum(t.numel() * t.element_size() for t in state)


@pytest.fixture
def memory(monkeypatch):
    """This machine has so many bytes."""

    def has(count):
        monkeypatch.setattr(needed_memory, "usable_memory", lambda: count)

    return has


def test_the_size_is_that_of_the_learner_that_is_built(tiny, memory):
    for overrides in (
        (), ("method=byol", "terms.proximal.weight=1"), ("model=resnet18",), ("method=dino",),
        ("method=mae", "model=vit_tiny", "model.width=24"),
    ):  # fmt: skip
        config = tiny(*overrides)
        numbers, size = size_of(config)
        memory(4 * size)
        check_memory(config, 3)
        memory(4 * size - 1)
        with pytest.raises(ConfigError, match=f"the state has {numbers:,} numbers"):
            check_memory(config, 3)


def test_what_no_memory_holds_is_refused_before_any_is_asked_for(tiny):
    check_memory(tiny(), 3)
    started = time.monotonic()
    says = r"^model.width=16384: with .* takes [\d,]+ GB, and this machine has"
    with pytest.raises(ConfigError, match=says):
        check_memory(tiny("model=resnet18", "model.width=16384"), 3)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 4), ("adam", 5), ("adamw", 5)])
def test_so_many_copies_must_fit(tiny, memory, optimizer, copies):
    """The state, as it was received, its gradients, and what the optimizer remembers."""
    config = tiny(f"optimizer={optimizer}")
    _, size = size_of(config)
    memory(copies * size)
    check_memory(config, 3)
    memory(copies * size - 1)
    with pytest.raises(ConfigError, match=r"model.width=8: with model.projector_dim=16"):
        check_memory(config, 3)


def test_what_cannot_be_built_without_memory_is_not_judged(tiny, user_package):
    """A method that looks at the values of its own weights."""
    user_package({"methods/looks.py": """
        from orchestra_flwr.methods.simclr import SimCLR

        class Looks(SimCLR):
            def __init__(self, config, channels):
                super().__init__(config, channels)
                self.first = float(next(self.parameters()).sum())
    """})  # fmt: skip
    check_memory(tiny("plugins=[my_package]", "method=looks"), 3)
