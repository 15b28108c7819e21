"""A term of a user's own package: found by its name, with modules and roles of its own."""

import importlib
import sys

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Received, Role
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round

PACKAGE = "package_with_a_term"
SOURCE = '''
"""Which of some groups is a client in? A head must tell from the features."""

import torch
import torch.nn.functional as F
from pydantic import Field

from orchestra_flwr.config import Section
from orchestra_flwr.methods import Role, role_of
from orchestra_flwr.terms import Term


class TellingSettings(Section):
    groups: int = Field(3, ge=2)


class Telling(Term):
    Settings = TellingSettings

    def __init__(self, settings, config, method):
        super().__init__(settings, config, method)
        self.head = torch.nn.Linear(method.backbone.dim, settings.groups)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))

    def role(self, name):
        return role_of(name, {"head": Role.SHARED, "scale": Role.LOCAL, "seen": Role.TRANSIENT})

    def start_round(self, method, received):
        self.group = received.index % self.settings.groups
        self.seen.zero_()

    def loss(self, method, batch, step):
        self.seen += len(batch.images)
        feature = step.features["backbone"][0]
        labels = torch.full((len(feature),), self.group, device=feature.device)
        return F.cross_entropy(self.scale * self.head(feature), labels)
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / PACKAGE / "terms"
    folder.mkdir(parents=True)
    for init in (folder.parent, folder):
        (init / "__init__.py").write_text("")
    (folder / "telling.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield PACKAGE
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        del sys.modules[name]


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("method", ["orchestra", "simclr", "supervised"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_trains_with_its_own_modules_in_their_roles(tiny, package, method, precision):
    config = tiny(
        f"plugins=[{package}]", f"method={method}", f"training.precision={precision}",
        "+terms.telling.weight=0.5", "+terms.telling.groups=5", "training.lr=0.05",
        "training.local_epochs=3",
    )  # fmt: skip
    learner = build_learner(config, 1)
    plain = build_learner(tiny(f"method={method}"), 1)
    named = {
        role: [name for name in learner.state(role) if name.startswith("terms.telling.")]
        for role in Role
    }
    assert named == {
        Role.SHARED: ["terms.telling.head.weight", "terms.telling.head.bias"],
        Role.SERVER: [],
        Role.FROZEN: [],
        Role.LOCAL: ["terms.telling.scale"],
        Role.TRANSIENT: ["terms.telling.seen"],
    }
    others = [name for name in learner.state(Role.SHARED) if not name.startswith("terms.")]
    assert others == list(plain.state(Role.SHARED))
    before = {name: t.clone() for name, t in learner.trained().items()}
    received = Received("0", 7, 1, images())
    labels = torch.arange(40) % 10
    seed = ClientSeed(0, 1, "0")
    result = train_round(learner, images(), config, seed, labels=labels, received=received)
    assert 0 < result.losses["telling"] < 0.5 * torch.tensor(5.0).log()  # better than a guess
    assert learner.state(Role.TRANSIENT)["terms.telling.seen"] == 3 * 40
    assert all(not torch.equal(t, before[name]) for name, t in learner.trained().items())


def test_its_options_are_checked_and_its_weight_switches_it_off(tiny, package):
    with pytest.raises(ConfigError, match="terms.telling.groups=1"):
        tiny(f"plugins=[{package}]", "+terms.telling.weight=1", "+terms.telling.groups=1")
    with pytest.raises(ConfigError, match="terms.telling: must be one of alignment, proximal"):
        tiny("+terms.telling.weight=1")
    off = build_learner(tiny(f"plugins=[{package}]", "+terms.telling.weight=0"), 1)
    assert list(off.terms) == []
