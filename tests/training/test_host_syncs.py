"""A step of training never waits for the GPU, which capturing it as a graph needs.

Shown without one: whatever would bring a value or a size to the host is refused while steps run.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from orchestra_flwr.config.choices import MethodConfig
from orchestra_flwr.data import colours
from orchestra_flwr.methods import Received, Role, release_of, sees_labels
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, local_round, train_round

aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense, aten.is_nonzero, aten.equal,  # a value
    aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive,
    aten.lift_fresh,  # torch.tensor(...): a copy from the host's memory
}  # fmt: skip
INDEXES = {aten.index, aten.index_put, aten.index_put_}
SEED = ClientSeed(0, 1, "0")
METHODS = sorted(MethodConfig.room.found())
NEEDS = {"mae": ("model=vit_tiny", "model.width=24", "model.depth=2")}


class NoWaiting(TorchDispatchMode):
    """Refuses what a step on a GPU would have to wait for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func.overloadpacket
        masks = [
            i for i in (args[1] if packet in INDEXES else ())
            if i is not None and i.dtype in (torch.bool, torch.uint8)
        ]  # fmt: skip
        sized = packet is aten.repeat_interleave and (kwargs or {}).get("output_size") is None
        if packet in WAITS or masks or sized:
            raise AssertionError(f"the step waits for the GPU: {func}")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def refused(monkeypatch):
    """From its second step on training does not wait; the first may prepare what is kept."""

    class Step(local_round.LocalStep):
        taken = 0

        def __call__(self, rows):
            self.taken += 1
            if self.taken == 1:
                return super().__call__(rows)
            with NoWaiting():
                return super().__call__(rows)

    monkeypatch.setattr(local_round, "LocalStep", Step)
    monkeypatch.setattr(colours, "selects_images", lambda images: False)  # as on a GPU


def train(config):
    learner = build_learner(config, config.data.channels)
    release = release_of(config)
    if release is not None:
        random = {
            name: torch.randn(8, width, generator=SEED.generator(name))
            for name, (_, width) in release.rows.items()
        }
        learner.method.update_server_state(random, SEED.generator("server"))
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (48, 1, 8, 8), dtype=torch.uint8, generator=draw)
    labels = torch.arange(48) % 10 if sees_labels(config) else None
    state = {name: t.clone() for role in Role for name, t in learner.state(role).items()}
    received = Received("0", 0, 1, images, state)
    return train_round(learner, images, config, SEED, labels=labels, received=received)


@pytest.mark.parametrize("method", METHODS)
def test_no_method_waits(tiny, refused, method):
    assert train(tiny(f"method={method}", *NEEDS.get(method, ()))).steps == 3


@pytest.mark.parametrize("term", ["proximal", "alignment", "verification"])
def test_no_term_waits(tiny, refused, term):
    assert train(tiny("method=simclr", f"terms.{term}.weight=1")).steps == 3


@pytest.mark.parametrize(
    "overrides",
    [("optimizer=adamw", "schedule=cosine"), ("training.precision=bfloat16",),
     ("method.views=plain",), ("merging=fedema",)],
)  # fmt: skip
def test_nothing_that_can_be_chosen_waits(tiny, refused, overrides):
    assert train(tiny("method=byol", *overrides)).steps == 3


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: (x > 0).nonzero(),
        lambda x: bool(x.sum() > 0), lambda x: torch.tensor([1.0]) + x,
        lambda x: x.masked_select(x > 0), lambda x: x.index_put_((x > 0,), x.sum()),
    ],
)  # fmt: skip
def test_what_waits_is_seen(wait):
    with NoWaiting(), pytest.raises(AssertionError, match="waits for the GPU"):
        wait(torch.ones(3))
