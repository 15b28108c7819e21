"""What nobody trains, in whole runs: it never goes up, and stays equal to the bit."""

import shutil

import numpy as np
import pytest
import torch
from flwr.clientapp import ClientApp

from orchestra_flwr import load_encoder
from orchestra_flwr.config import ConfigError
from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages import frozen_weights
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, FROZEN, FROZEN_FOLDER
from orchestra_flwr.federation.messages.frozen_weights import FrozenStore, digest_of
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.members import SimulatedMembers
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
    ("method=byol", "adaptation=lora", "adaptation.alternate=true", "training.lr=0.1"),
    ("method=orchestra_plus", "federation.wire=int4"),
    ("method=byol", "merging=fedema"),
    ("method=orchestra", "adaptation=lora", "federation.wire=int8"),
    ("method=simclr", "adaptation=norms", "model.batch_norm=recalibrated"),
    ("method=simclr", "federation.weighting=uniform", "privacy.clip=0.5"),
    ("method=simclr", "exchange=clusters", "exchange.warm_rounds=1"),
    ("method=simclr", "exchange=random"),
    ("method=simclr", "server_optimizer=adam", "aggregation=median"),
    ("method=simclr", "terms.alignment.weight=0.1", "terms.proximal.weight=0.1"),
    ("method=simclr", "training.optimizer_state=keep", "optimizer=adamw"),
]


def frozen_of(run, config):
    """What nobody trains, as the run folder has it after the run."""
    schema = Schemas.of(build_learner(config, 1), config).frozen
    store = FrozenStore(run.folder.frozen)
    return schema.views(np.array(store.load(store.digest)))


@pytest.mark.parametrize(
    "overrides", [*RUNS[:2], *(pytest.param(each, marks=pytest.mark.slow) for each in RUNS[2:])]
)
def test_it_stays_and_never_goes_up(tiny, tmp_path, federate, watched, encoder, overrides):
    if "adaptation=lora" in overrides:
        pytest.importorskip("peft", reason="needs the extra timm")
    config = tiny(f"init={encoder}", *QUICK, *overrides, f"run_dir={tmp_path / 'run'}")
    first = starting_learner(config, 1)
    frozen, shared = first.state(Role.FROZEN), first.state(Role.SHARED)
    assert frozen and not frozen.keys() & shared.keys()
    sizes = set()

    def look(client, round_, sent, reply):
        up, down = from_record(reply.content[ARRAYS]), from_record(sent[ARRAYS])
        assert FROZEN not in {*up, *down}
        if round_ > 0 and config.federation.wire == "float32":
            sizes.add(up["shared"].size)

    run = federate(config, app=watched(look), evaluate=False)
    assert sizes <= {sum(tensor.numel() for tensor in shared.values())}
    assert not differ(frozen, frozen_of(run, config)) and not frozen.keys() & run.state.keys()
    backbone = load_encoder(run.folder.path).backbone.state_dict()
    saved = {f"backbone.{name}": tensor for name, tensor in backbone.items()}
    assert not differ({n: t for n, t in saved.items() if n in frozen}, frozen)
    moved = [name for name in shared if name.startswith("backbone.") and name.endswith("weight")]
    assert moved and all(not torch.equal(run.state[name], shared[name]) for name in moved)


@pytest.mark.parametrize(
    "secure",
    [pytest.param(False, marks=pytest.mark.slow), True],
    ids=["server's noise", "clients' noise"],
)
def test_noise_leaves_the_half_that_rests_as_it_is(tiny, federate, watched, secure):
    pytest.importorskip("peft", reason="needs the extra timm")
    config = tiny("method=simclr", "adaptation=lora", "adaptation.alternate=true",
                  "federation.weighting=uniform", "federation.participation=1", "partition=iid",
                  "federation.clients=6", "privacy.clip=1", "privacy.noise_multiplier=1",
                  "evaluation.every=9", f"privacy.secure_aggregation={secure}")  # fmt: skip
    schema, sent = Schemas.of(build_learner(config, 1), config).shared, {}

    def look(client, round_, message, reply):
        if "shared" in (arrays := from_record(message[ARRAYS])):
            sent[round_] = schema.views(np.array(arrays["shared"]))

    run = federate(config, app=watched(look), evaluate=False)
    assert sent[1].keys() == run.state.keys()
    assert {*differ(sent[1], sent[2])} == {name for name in sent[1] if "lora_A" not in name}
    assert {*differ(sent[2], run.state)} == {name for name in sent[1] if "lora_B" not in name}


def test_it_counts_once_for_each_client(tiny, tmp_path, federate, encoder):
    """Clients that never take part never get it."""
    config = tiny("method=simclr", f"init={encoder}", *QUICK, "federation.rounds=5",
                  "federation.clients=4", "federation.participation=0.5",
                  f"run_dir={tmp_path / 'run'}")  # fmt: skip
    schemas = Schemas.of(build_learner(config, 1), config)
    run = federate(config, evaluate=False)
    down = [record["bytes_down"] for record in run.records[1:]]
    usual = min(down)
    firsts = [(sent - usual) / (4 * schemas.frozen.size) for sent in down]
    assert firsts[0] == 2 and 2 <= sum(firsts) <= 4 and all(n in (0, 1, 2) for n in firsts)


def test_a_client_that_is_late_again_and_again_has_it_from_the_first_time_on(
    tiny, tmp_path, federate, encoder
):
    config = tiny("method=simclr", f"init={encoder}", *QUICK, "federation.rounds=8",
                  "federation.clients=4", "federation.participation=1", "clock=virtual",
                  "clock.slow=0.25", "clock.slower=2.5", "federation.enough=0.75",
                  f"run_dir={tmp_path / 'run'}")  # fmt: skip
    frozen = 4 * Schemas.of(build_learner(config, 1), config).frozen.size
    run = federate(config, evaluate=False)
    asked = [record["clients"] for record in run.records[1:]]
    assert sum(len(clients["late"]) for clients in asked) > 1  # the slow one, each time
    down = [record["bytes_down"] for record in run.records[1:]]
    each_time = min(sent / clients["cohort"] for sent, clients in zip(down, asked, strict=True))
    firsts = sum(down) - each_time * sum(clients["cohort"] for clients in asked)
    assert firsts == 4 * frozen


class Remembering(SimulatedMembers):
    """As real clients, which share no disk with the server: all is sent to them."""

    is_simulated = False


@pytest.fixture
def own_disks(tmp_path, monkeypatch):
    """Each client has a folder of its own for the weights."""
    made = OrchestraClient.__init__

    def with_folder(self, config, name, *args, **options):
        options["frozen_store"] = FrozenStore(tmp_path / "clients" / name)
        made(self, config, name, *args, **options)

    monkeypatch.setattr(OrchestraClient, "__init__", with_folder)


def test_without_a_common_disk_it_is_sent_with_the_first_task_alone(
    tiny, tmp_path, federate, watched, encoder, monkeypatch, own_disks
):
    """Also to a client that has lost it, once more; and each client keeps it."""
    config = tiny("method=simclr", f"init={encoder}", *QUICK, "federation.rounds=4",
                  "federation.min_success=0.5", f"run_dir={tmp_path / 'run'}")  # fmt: skip
    sent_to, lost = [], tmp_path / "clients" / "1"

    def look(client, round_, sent, reply):
        if FROZEN in sent[ARRAYS]:
            sent_to.append((client, round_))
        assert sent[CONFIG][FROZEN] and FROZEN_FOLDER not in sent[CONFIG]
        if reply.has_content():
            assert FROZEN not in reply.content[ARRAYS]
        if (client, round_) == ("1", 1):
            shutil.rmtree(lost)

    # A process that begins anew has it on its disk alone.
    frozen_weights._checked.cache_clear()
    monkeypatch.setattr(frozen_weights, "_checked", frozen_weights._checked.__wrapped__)
    run = federate(config, app=watched(look), members=Remembering)
    once = [(client, 1) for client in "0123"]
    assert sorted(sent_to) == sorted([*once, ("1", 3)])
    dropped = [(r["round"], d["client"]) for r in run.records for d in r["clients"]["dropped"]]
    assert dropped == [(2, "1")]
    size = 4 * Schemas.of(build_learner(config, 1), config).frozen.size
    down = {r["round"]: r["bytes_down"] for r in run.records}
    assert down[1] - down[4] > 4 * size and size < down[3] - down[4] < 2 * size
    assert down[2] == down[4]


def test_a_client_that_fails_after_it_was_stored_is_not_sent_it_again(
    tiny, tmp_path, federate, watched, encoder, monkeypatch, own_disks
):
    config = tiny("method=simclr", f"init={encoder}", *QUICK, "federation.rounds=3",
                  "federation.min_success=0.5", f"run_dir={tmp_path / 'run'}")  # fmt: skip
    sent_to, fit = [], OrchestraClient.fit

    def failing(self, parameters, task):
        if (self.name, task["round"]) in (("1", 1), ("2", 2)):
            raise MemoryError
        return fit(self, parameters, task)

    def look(client, round_, sent, reply):
        if FROZEN in sent[ARRAYS]:
            sent_to.append((client, round_))

    monkeypatch.setattr(OrchestraClient, "fit", failing)
    run = federate(config, app=watched(look), members=Remembering, evaluate=False)
    dropped = [(r["round"], d["client"]) for r in run.records for d in r["clients"]["dropped"]]
    assert dropped == [(1, "1"), (2, "2")]
    assert sorted(sent_to) == [(client, 1) for client in "0123"]


def test_a_client_that_has_scored_the_first_encoder_is_not_sent_it_again(
    tiny, tmp_path, federate, encoder, own_disks
):
    config = tiny("method=simclr", f"init={encoder}", *QUICK, "federation.rounds=1",
                  "evaluation.unsupervised=true", f"run_dir={tmp_path / 'run'}")  # fmt: skip
    app, sent_to = ClientApp(), []

    def answer(message, context):
        if FROZEN in message.content.get(ARRAYS, ()):
            sent_to.append((message.content[CONFIG]["client"], message.content[CONFIG]["round"]))
        return client_app(message, context)

    for kind in (app.query, app.train, app.evaluate):
        kind()(answer)
    federate(config, app=app, members=Remembering)
    assert sent_to == [(client, 0) for client in "0123"]


def test_what_is_damaged_or_missing_is_refused(tiny, tmp_path):
    config = tiny("method=simclr", "adaptation=head")
    images = torch.randint(0, 256, (20, 1, 8, 8)).to(torch.uint8)
    store = FrozenStore(tmp_path / "frozen")
    client = OrchestraClient(config, "a", images, frozen_store=store)
    values = np.arange(client.schemas.frozen.size, dtype=np.float32)
    with pytest.raises(ValueError, match="does not have the frozen weights"):
        client.take_frozen(digest_of(values), None)
    with pytest.raises(ValueError, match="are damaged"):
        client.take_frozen(digest_of(values), values + 1)
    assert not store.digest
    with pytest.raises(ValueError, match="must be a SHA-256"):
        client.take_frozen("../../etc/passwd", None)
    client.take_frozen(digest_of(values), values)
    packed = client.schemas.frozen.pack(client.learner.state(Role.FROZEN))
    np.testing.assert_array_equal(packed, values)
    again = OrchestraClient(config, "a", images, frozen_store=store)
    again.take_frozen(digest_of(values), None)
    assert store.save(values[:-1]) != digest_of(values)
    with (tmp_path / "frozen" / f"{store.digest}.float32").open("r+b") as damaged:
        damaged.write(b"xxxx")
    assert store.load(store.digest) is None


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
    assert not differ(frozen, frozen_of(again, config("torn")))
    assert again.summary["bytes_down"] == whole.summary["bytes_down"]


def test_a_run_whose_weights_are_damaged_does_not_go_on(tiny, tmp_path, federate, encoder):
    config = tiny("method=simclr", f"init={encoder}", *QUICK, f"run_dir={tmp_path / 'run'}")
    run = federate(config, evaluate=False)
    (file,) = run.folder.frozen.iterdir()
    file.write_bytes(bytes(file.stat().st_size))
    frozen_weights._checked.cache_clear()  # of another process
    with pytest.raises(FederationError, match="has no frozen weights"):
        federate(config, evaluate=False, folder=RunFolder.resume(run.folder.path))


def test_a_run_that_has_lost_it_or_has_another_one_does_not_go_on(
    tiny, tmp_path, federate, encoder
):
    """Another one may fit its name, as what is trained does not fit it."""
    config = tiny("method=simclr", f"init={encoder}", *QUICK, f"run_dir={tmp_path / 'run'}")
    run = federate(config, evaluate=False)
    (file,) = run.folder.frozen.iterdir()
    values = np.fromfile(file, np.float32)
    file.unlink()
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"put back what it held .{file.name}., or start a n"):
            RunFolder.resume(run.folder.path)
        FrozenStore(run.folder.frozen).save(-values)


def test_clients_of_another_adaptation_are_refused(tiny):
    """The schema's fingerprint says what is trained."""
    prints = set()
    for adaptation in ("full", "head", "norms", "blocks"):
        config = tiny("method=simclr", f"adaptation={adaptation}")
        prints.add(Schemas.of(build_learner(config, 1), config).fingerprint)
    assert len(prints) == 4
