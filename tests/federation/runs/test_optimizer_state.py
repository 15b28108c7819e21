"""Clients that keep their optimizers' state, in whole federations in this process."""

import pytest
import torch
from safetensors.torch import load_file

from orchestra_flwr.federation.messages.fields import ARRAYS
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.population import load_population
from orchestra_flwr.flower.arrays import from_record
from orchestra_flwr.methods import Role, labels_for
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, torch_threads
from orchestra_flwr.training.local_round import _epochs
from orchestra_flwr.training.step import BatchMaker

KEPT = (
    "method=simclr",
    "optimizer=adam",
    "optimizer.weight_decay=1e-6",
    "training.optimizer_state=keep",
    "federation.rounds=3",
    "federation.participation=0.75",
    "data.train_limit=80",
    "partition=iid",
    "evaluation.every=9",
)


@pytest.fixture
def config(tiny, tmp_path):
    return lambda *o, name="run": tiny(*KEPT, f"run_dir={tmp_path / name}", *o)


def same(run, other):
    return all(torch.equal(tensor, other.state[name]) for name, tensor in run.state.items())


def test_it_stays_with_the_client_and_changes_what_is_trained(config, federate, watched):
    sizes = set()

    def look(client, round_, sent, reply):
        sizes.add(sum(a.size for a in from_record(reply.content[ARRAYS]).values()))

    kept = federate(config(), app=watched(look))
    learner = build_learner(config(), 1)
    assert sizes == {Schemas.of(learner, config()).shared.size}
    (file, *_) = sorted(kept.folder.clients.rglob("*.safetensors"))
    count = len(learner.trained())
    assert load_file(file).keys() == {
        "optimizer.steps",
        *(f"optimizer.{kind}.{n}" for kind in ("means", "squares") for n in range(count)),
    }
    reset = federate(config("training.optimizer_state=reset", name="reset"))
    assert not same(kept, reset) and not reset.folder.clients.exists()


def test_killed_and_resumed_it_ends_in_the_same_bits(config, federate, watched):
    """With a schedule, whose rates follow from the round; two clients had kept their state."""
    chosen = ("schedule=cosine",)
    whole = federate(config(*chosen))
    torn, asked = config(*chosen, name="torn"), []

    def pull_the_plug(client, round_, sent, reply):
        if round_ == 3:
            asked.append(client)
            if len(asked) == 2:
                raise KeyboardInterrupt

    folder = RunFolder.create(torn)
    with pytest.raises(KeyboardInterrupt):
        federate(torn, app=watched(pull_the_plug), folder=folder)
    assert same(whole, federate(torn, folder=RunFolder.resume(folder.path)))


def test_with_local_norms_and_int8_it_is_kept_as_well(config, federate):
    run = federate(config("merging=fedbn", "federation.wire=int8", "training.precision=bfloat16"))
    (file, *_) = sorted(run.folder.clients.rglob("*.safetensors"))
    kinds = {name.partition(".")[0] for name in load_file(file)}
    assert kinds == {"backbone", "projector", "optimizer"}


def test_a_target_that_is_shared_is_no_clients_own(config, federate):
    """A client that keeps its optimizer alone does not begin with a target of its own."""
    chosen = ("method=byol", "optimizer=sgd", "optimizer.momentum=0", "federation.rounds=2")
    kept = federate(config(*chosen))
    reset = federate(config(*chosen, "training.optimizer_state=reset", name="reset"))
    assert same(kept, reset)  # without momentum there is nothing to remember


@pytest.mark.parametrize(("method", "optimizer"), [
    ("simclr", ("optimizer=adam", "schedule=steps")),
    ("supervised", ("optimizer=sgd",)),
])  # fmt: skip
def test_one_client_that_keeps_it_trains_as_if_there_were_no_federation(
    config, federate, method, optimizer
):
    """Central training: 3 rounds of 2 epochs are 6 epochs of one loop with one optimizer."""
    central = config(f"method={method}", *optimizer, "federation.clients=1",
                     "federation.participation=1", "training.local_epochs=2")  # fmt: skip
    run = federate(central)
    plain = trained_plainly(central).state(Role.SHARED)
    assert plain.keys() <= run.state.keys()
    for name, tensor in plain.items():
        assert torch.equal(run.state[name], tensor), name


def trained_plainly(config):
    """One loop over all epochs; batches and views are those of the rounds' seeds."""
    train = load_population(config).dataset.train
    learner, schedule = build_learner(config, 1).train(), config.schedule.build()
    parameters = [p for p in learner.parameters() if p.requires_grad]
    rate = torch.tensor(config.training.lr, dtype=torch.float64)
    lr = rate if schedule.changes else config.training.lr
    optimizer = config.optimizer.build(parameters, lr)
    milestones, epochs_done = (2, 4, 6), 0  # .3, .6 and .9 of 6 epochs, by whole epochs
    with torch_threads(1):
        for round_ in (1, 2, 3):
            seed = ClientSeed(config.seed, round_, "0")
            labels = labels_for(config, train)
            batch_of = BatchMaker(learner.method, train.images, labels, config, seed)
            for batches in _epochs(train.images, config.training, seed, 2):
                if schedule.changes:
                    passed = sum(epochs_done >= milestone for milestone in milestones)
                    rate.fill_(config.training.lr * 0.3**passed)
                for rows in batches:
                    torch.stack(list(learner.loss(batch_of(rows))[0].values())).sum().backward()
                    optimizer.step()
                epochs_done += 1
    return learner
