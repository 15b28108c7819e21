"""What nobody trains, in whole runs: it never goes up, and stays equal to the bit."""

import pytest
import torch

from orchestra_flwr import load_encoder
from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.flower.arrays import from_record
from orchestra_flwr.methods import Role
from orchestra_flwr.models import Encoder, EncoderSpec, build_backbone, save_encoder
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.training import build_learner, starting_learner

QUICK = ("partition=iid", "training.lr=0.05", "evaluation.every=9", "adaptation=blocks")


@pytest.fixture
def encoder(tiny, tmp_path):
    """A folder with an encoder of the tiny convnet that no seed of a run draws."""
    config = tiny()
    torch.manual_seed(7)
    backbone = build_backbone(config.model, config.data.channels).train()
    for _ in range(20):
        backbone(torch.randn(32, 1, 8, 8))
    folder = tmp_path / "pretrained"
    folder.mkdir()
    save_encoder(folder / "encoder.safetensors", Encoder(EncoderSpec.of(config), backbone))
    return folder


def differ(one, other):
    return [name for name in one if not torch.equal(one[name], other[name])]


RUNS = [
    ("method=orchestra", "federation.wire=int8"),
    ("method=orchestra_plus", "federation.wire=int4"),
    ("method=byol", "merging=fedema"),
    ("method=orchestra", "adaptation=lora", "federation.wire=int8"),
    ("method=byol", "adaptation=lora", "adaptation.alternate=true", "training.lr=0.1"),
    ("method=simclr", "adaptation=norms", "model.batch_norm=recalibrated"),
    ("method=simclr", "federation.weighting=uniform", "privacy.clip=0.5"),
    ("method=simclr", "exchange=clusters", "exchange.warm_rounds=1"),
    ("method=simclr", "exchange=random"),
    ("method=simclr", "server_optimizer=adam", "aggregation=median"),
    ("method=simclr", "terms.alignment.weight=0.1", "terms.proximal.weight=0.1"),
    ("method=simclr", "training.optimizer_state=keep", "optimizer=adamw"),
]


@pytest.mark.parametrize("overrides", RUNS)
def test_it_stays_and_never_goes_up(tiny, tmp_path, federate, watched, encoder, overrides):
    if "adaptation=lora" in overrides:
        pytest.importorskip("peft", reason="needs the extra timm")
    config = tiny(f"init={encoder}", *QUICK, *overrides, f"run_dir={tmp_path / 'run'}",
                  "federation.rounds=3")  # fmt: skip
    first = starting_learner(config, 1)
    frozen, shared = first.state(Role.FROZEN), first.state(Role.SHARED)
    assert frozen and not frozen.keys() & shared.keys()
    sizes = set()

    def look(client, round_, sent, reply):
        up = from_record(reply.content[ARRAYS])
        assert Role.FROZEN.value not in up
        if round_ > 0 and config.federation.wire == "float32":
            sizes.add(up["shared"].size)

    run = federate(config, app=watched(look))
    assert sizes <= {sum(tensor.numel() for tensor in shared.values())}
    assert not differ(frozen, run.state)
    own = load_encoder(run.folder.path).backbone.state_dict()
    assert not differ({n: t for n, t in own.items() if f"backbone.{n}" in frozen},
                      {n.removeprefix("backbone."): t for n, t in frozen.items()})  # fmt: skip
    moved = [name for name in shared if name.startswith("backbone.") and name.endswith("weight")]
    assert moved and all(not torch.equal(run.state[name], shared[name]) for name in moved)


def test_a_killed_run_resumed_ends_in_the_same_bits(tiny, tmp_path, federate, watched, encoder):
    """It needs the first encoder no more."""

    def config(run):
        return tiny(f"init={encoder}", f"run_dir={tmp_path / run}", *QUICK)

    def look(client, round_, sent, reply):
        if round_ == 2:
            raise KeyboardInterrupt

    frozen = starting_learner(config("first"), 1).state(Role.FROZEN)
    whole = federate(config("whole"))
    killed = RunFolder.create(config("torn"))
    with pytest.raises(KeyboardInterrupt):
        federate(config("torn"), app=watched(look), folder=killed)
    for file in encoder.iterdir():
        file.unlink()
    again = federate(config("torn"), app=client_app, folder=RunFolder.resume(killed.path))
    assert not differ(whole.state, again.state)
    assert not differ(frozen, again.state)


def test_clients_of_another_adaptation_are_refused(tiny):
    """The schema's fingerprint says what is trained."""
    prints = set()
    for adaptation in ("full", "head", "norms", "blocks"):
        config = tiny("method=simclr", f"adaptation={adaptation}")
        prints.add(Schemas.of(build_learner(config, 1), config).fingerprint)
    assert len(prints) == 4
