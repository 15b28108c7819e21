import time

import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.training import build_learner, needed_memory
from orchestra_flwr.training.needed_memory import check_memory


def size_of(config):
    """Numbers and bytes of a learner's whole state, and bytes of what has gradients."""
    state = build_learner(config, 3).state_dict(keep_vars=True).values()
    bytes_of = [t.numel() * t.element_size() for t in state]
    trained = sum(size for t, size in zip(state, bytes_of, strict=True) if t.requires_grad)
    return sum(t.numel() for t in state), sum(bytes_of), trained


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
        numbers, size, trained = size_of(config)
        needed = 3 * size + trained
        memory(needed)
        check_memory(config, 3)
        memory(needed - 1)
        with pytest.raises(ConfigError, match=f"the state has {numbers:,} numbers"):
            check_memory(config, 3)


def test_what_no_memory_holds_is_refused_before_any_is_asked_for(tiny):
    check_memory(tiny(), 3)
    started = time.monotonic()
    says = r"^model.width=16384: with .* takes [\d,]+ GB, and this machine has"
    with pytest.raises(ConfigError, match=says):
        check_memory(tiny("model=resnet18", "model.width=16384"), 3)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(("optimizer", "moments"), [("sgd", 1), ("adam", 2), ("adamw", 2)])
def test_so_many_copies_must_fit(tiny, memory, optimizer, moments):
    """The state, as it was received, its gradients, and what the optimizer remembers."""
    config = tiny(f"optimizer={optimizer}")
    _, size, trained = size_of(config)
    needed = 3 * size + moments * trained
    memory(needed)
    check_memory(config, 3)
    memory(needed - 1)
    with pytest.raises(ConfigError, match=r"model.width=8: with model.projector_dim=16"):
        check_memory(config, 3)


def test_an_optimizer_keeps_nothing_of_frozen_weights(tiny, memory):
    """A network of which little is trained fits where all of it would not."""
    of_all = tiny("model=resnet18", "method=simclr")
    _, size, trained = size_of(of_all)
    memory(3 * size + trained - 1)
    with pytest.raises(ConfigError, match="the state has"):
        check_memory(of_all, 3)
    memory(3.5 * size)
    for adaptation in ("head", "norms"):
        check_memory(tiny("model=resnet18", "method=simclr", f"adaptation={adaptation}"), 3)


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
