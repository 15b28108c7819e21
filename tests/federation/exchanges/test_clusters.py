"""FeatARC's clusters: who is sent what, who chooses what, and what becomes of the models."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr import load_encoder
from orchestra_flwr.config import ConfigError
from orchestra_flwr.evaluation.linear_probe import fit_linear_probe
from orchestra_flwr.evaluation.own_classes import weighted_accuracy
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges import Offer, Result, clusters
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, MODEL, MODELS
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.population import load_population, own_classes
from orchestra_flwr.methods import Received, Role
from orchestra_flwr.models import normalise
from orchestra_flwr.reporting import RunFolder
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner

BRIGHTNESS = {"a": 0, "b": 0.2, "c": 0.4, "d": 1}
SIZES = {"a": 4, "b": 6, "c": 8, "d": 10}
CLUSTERS = ("exchange=clusters", "evaluation.every=100")


def mean(state, clients):
    """One round of the linear method by these clients, averaged by their images."""
    trained = [(state + BRIGHTNESS[client]) / 2 for client in clients]
    return np.average(trained, weights=[SIZES[client] for client in clients])


def values(state):
    """Of each model in a checkpoint its value; all weights of the linear method are equal."""
    first = torch.cat([state["weights"].reshape(-1), state["bias"]])
    others = [t for n, t in sorted(state.items()) if n.startswith("models/") and "shared" in n]
    for tensor in (first, *others):
        torch.testing.assert_close(tensor, tensor[:1].expand_as(tensor), atol=2e-3, rtol=0)
    return [float(tensor[0]) for tensor in (first, *others)]


def same_bits(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def recorded(run):
    return [record.get("exchange") for record in run.records]


@pytest.mark.parametrize(("wire", "tolerance"), [("float32", 1e-6), ("int8", 1e-2)])
def test_grouped_by_updates_then_assigned_by_loss_by_hand(toy, federate, watched, wire, tolerance):
    """In round 2 the updates of a and b point down, those of c and d up. In round 4 c moves."""
    sent = {}

    def look(client, round_, message, reply):
        sent[client, round_] = list(message[CONFIG].get(MODELS) or ["one"])

    config = toy(*CLUSTERS, "exchange.warm_rounds=2", "exchange.assign=loss",
                 "federation.rounds=4", f"federation.wire={wire}")  # fmt: skip
    run = federate(config, app=watched(look), evaluate=False)
    common = mean(mean(0, "abcd"), "abcd")
    dark, bright = mean(common, "ab"), mean(common, "cd")
    assert abs(0.4 - dark) < abs(0.4 - bright) and abs(0.2 - dark) < abs(0.2 - bright)
    by_hand = [mean(dark, "abc"), mean(bright, "d")]
    assert values(run.state) == pytest.approx(by_hand, abs=tolerance)
    apart = {"cluster-0": ["a", "b"], "cluster-1": ["c", "d"]}
    assert recorded(run) == [
        None,
        {"moved": 0, "members": {"cluster-0": ["a", "b", "c", "d"]}},
        {"moved": 0, "members": {"cluster-0": ["a", "b", "c", "d"]}},
        {"moved": 0, "members": apart},
        {"moved": 1, "members": {"cluster-0": ["a", "b", "c"], "cluster-1": ["d"]}},
    ]
    assert run.summary["exchange"] == recorded(run)[-1]
    assert [sent["c", r] for r in (1, 2, 3)] == [["one"]] * 3
    assert sent["c", 4] == ["cluster-0", "cluster-1"]


def test_min_members_hold_a_model_back(toy, federate):
    """As above; in round 4 only d trains the second model, which then stays as it is."""
    config = toy(*CLUSTERS, "exchange.warm_rounds=2", "exchange.assign=loss",
                 "exchange.min_members=2", "federation.rounds=4")  # fmt: skip
    run = federate(config, evaluate=False)
    common = mean(mean(0, "abcd"), "abcd")
    dark, bright = mean(common, "ab"), mean(common, "cd")
    assert values(run.state) == pytest.approx([mean(dark, "abc"), bright], abs=1e-6)


def test_as_many_fixed_clusters_as_clients_are_local_training(toy, federate):
    config = toy(*CLUSTERS, "exchange.clusters=4", "exchange.assign=fixed", "exchange.start=same",
                 "federation.rounds=3")  # fmt: skip
    run = federate(config, evaluate=False)
    by_hand = [mean(mean(mean(0, client), client), client) for client in "abcd"]
    assert values(run.state) == pytest.approx(by_hand)
    assert not (run.folder.clients).exists()  # nobody has to choose, so nobody keeps anything


@pytest.mark.parametrize(
    "start", ["grouped", *(pytest.param(s, marks=pytest.mark.slow) for s in ("random", "same"))]
)
def test_one_cluster_is_fedavg_bit_for_bit(tiny, tmp_path, federate, start):
    """Also for clients that come later, whose target the server has."""
    overrides = ("method=byol", "federation.participation=0.5", "federation.rounds=3",
                 "evaluation.every=100", "training.lr=0.03")  # fmt: skip
    star = federate(tiny(*overrides, f"run_dir={tmp_path / 'star'}"), evaluate=False)
    one = federate(
        tiny(*overrides, "exchange=clusters", "exchange.clusters=1", f"exchange.start={start}",
             f"run_dir={tmp_path / 'one'}"),
        evaluate=False,
    )  # fmt: skip
    same_bits(star.state, one.state)
    assert [r["loss"] for r in star.records] == [r["loss"] for r in one.records]


def run_of_three(tiny, tmp_path, federate, *overrides, app=None, name="run", evaluate=False):
    config = tiny("method=simclr", "exchange=clusters", "federation.clients=3",
                  "training.lr=0.03", f"run_dir={tmp_path / name}", *overrides)  # fmt: skip
    given = {} if app is None else {"app": app}
    return config, federate(config, evaluate=evaluate, **given)


def test_from_one_start_all_stay_in_the_first_cluster(tiny, tmp_path, federate):
    """Ties go to the lowest; a model that nobody trained keeps its bits."""
    config, run = run_of_three(tiny, tmp_path, federate, "exchange.start=same",
                               "federation.rounds=3", "evaluation.every=100")  # fmt: skip
    everybody = {"cluster-0": ["0", "1", "2"], "cluster-1": []}
    assert recorded(run)[1:] == [{"moved": 0, "members": everybody}] * 3
    learner = build_learner(config, 1)
    start = Schemas.of(learner, config).shared.pack(learner.state(Role.SHARED))
    np.testing.assert_array_equal(run.state["models/cluster-1/shared"].numpy(), start)


@pytest.mark.slow
def test_from_the_published_start_nobody_ever_moves(tiny, tmp_path, federate):
    """Features of two starts have nothing in common, so all stay where their numbers put them."""
    _, run = run_of_three(tiny, tmp_path, federate, "exchange.start=random",
                          "federation.rounds=4", "training.local_epochs=3",
                          "evaluation.every=100")  # fmt: skip
    dealt = {"cluster-0": ["0", "2"], "cluster-1": ["1"]}
    assert recorded(run)[1:] == [{"moved": 0, "members": dealt}] * 4


def loaded(config, arrays):
    learner = build_learner(config, 1)
    schemas = Schemas.of(learner, config)
    schemas.shared.unpack(arrays["shared"], learner.state(Role.SHARED))
    return learner


def features(config, shared, images):
    backbone = loaded(config, {"shared": shared}).method.backbone.eval()
    with torch.no_grad():
        return backbone(normalise(images.float() / 255, config.data.normalise))


def test_a_round_of_three_clients_and_two_clusters_by_hand(tiny, tmp_path, federate, watched):
    """Alignment by whole passes, means in float64 by name."""
    down, up = {}, {}

    def look(client, round_, sent, reply):
        down[client, round_] = {n: a.numpy() for n, a in sent[ARRAYS].items()}
        chosen = reply.content[CONFIG].get(MODEL)
        up[client, round_] = chosen, reply.content[ARRAYS]["shared"].numpy()

    config, run = run_of_three(tiny, tmp_path, federate, "exchange.start=random",
                               "federation.rounds=2", "training.lr=0.1", "evaluation.every=100",
                               app=watched(look))  # fmt: skip
    population = load_population(config)
    members = {"cluster-0": [], "cluster-1": []}
    for client, part in population.parts.items():
        images = population.dataset.train.images[part]
        own = features(config, up[client, 1][1], images)
        distances = {}
        for name in members:
            theirs = features(config, down[client, 2][f"{name}/shared"], images)
            distances[name] = -float(F.cosine_similarity(theirs, own).mean())
        chosen = min(distances, key=distances.get)
        assert up[client, 2][0] == chosen
        assert max(distances.values()) - min(distances.values()) > 0.1  # by far
        members[chosen].append(client)
    assert run.records[2]["exchange"] == {"moved": 0, "members": members}
    means = {}
    for name, clients in members.items():
        states = [up[client, 2][1].astype(np.float64) for client in clients]
        sizes = [len(population.parts[client]) for client in clients]
        means[name] = np.average(states, axis=0, weights=sizes)
    second = run.state["models/cluster-1/shared"].numpy()
    np.testing.assert_allclose(second, means["cluster-1"], atol=1e-7)
    learner = build_learner(config, 1)
    first = {name: run.state[name] for name in learner.state(Role.SHARED)}
    packed = Schemas.of(learner, config).shared.pack(first)
    np.testing.assert_allclose(packed, means["cluster-0"], atol=1e-7)


@pytest.fixture
def offered(tiny):
    """Makes an offer of models, each a start of its own, to a client that keeps one of them."""
    config = tiny("method=simclr", "exchange=clusters", "exchange.clusters=3")
    images = torch.randint(0, 256, (30, 1, 8, 8), dtype=torch.uint8)

    def made(starts, own=None, config=config, labels=None):
        learner = build_learner(config, 1)
        models = {}
        for number, seed in enumerate(starts):
            other = build_learner(config.model_copy(update={"seed": seed}), 1)
            models[f"cluster-{number}"] = other.state(Role.SHARED)

        def load(name):
            for key, tensor in learner.state(Role.SHARED).items():
                tensor.copy_(models[name][key])
            return Received("a", 0, 2, images, None)

        exchange = config.exchange.build()
        kept = {}
        if own is not None:
            other = build_learner(config.model_copy(update={"seed": own}), 1)
            kept = {n: t.clone() for n, t in exchange.keep(other).items()}
        seed = ClientSeed(0, 2, "a")
        offer = Offer(list(models), load, learner, images, labels, kept, config, seed)
        return exchange.choose(offer)

    return made


def test_the_model_like_the_own_one_is_chosen_and_of_equals_the_first(offered):
    assert [offered([5, 6, 7], own) for own in (5, 6, 7)] == [f"cluster-{n}" for n in range(3)]
    assert offered([6, 5, 5], own=5) == "cluster-1"
    assert offered([4, 4, 4], own=5) == "cluster-0"
    assert offered([5, 6, 7]) == "cluster-0"  # it keeps nothing


@pytest.mark.parametrize("method", ["simclr", "byol", "supervised", "orchestra"])
def test_the_lowest_loss_is_that_of_the_same_views(tiny, offered, method):
    """Equal models have equal losses, so the first is chosen, also where a loss draws."""
    config = tiny(f"method={method}", "exchange=clusters", "exchange.clusters=3",
                  "exchange.assign=loss")  # fmt: skip
    labels = torch.arange(30) % 10
    assert offered([4, 4, 4], config=config, labels=labels) == "cluster-0"
    winner = offered([4, 5, 6], config=config, labels=labels)
    seeds = [4, 5, 6]
    best = seeds.pop(int(winner[-1]))
    assert offered([seeds[0], seeds[1], best], config=config, labels=labels) == "cluster-2"


def a_result(client, model, update):
    update = np.array(update, np.float32)
    return Result(client, model, update, lambda: np.zeros_like(update), [slice(0, len(update))])


def rounds(exchange, cohorts, updates):
    """Lets clients train in some rounds; what they were sent."""
    sent = []
    for number, cohort in enumerate(cohorts, 1):
        (stage,) = exchange.stages(number, cohort)
        sent.append({task.client: task.models for task in stage.tasks})
        for task in stage.tasks:
            exchange.result(a_result(task.client, task.models[0], updates[task.client]))
    return sent


def test_who_was_not_there_when_clients_were_grouped_is_given_the_smallest_group(tiny):
    config = tiny("method=simclr", "exchange=clusters", "exchange.warm_rounds=2")
    exchange = config.exchange.build()
    updates = {"a": [1, 0], "b": [1, 0.1], "c": [-1, 0], "d": [0, 1], "e": [1, 1]}
    one = ("cluster-0",)
    sent = rounds(exchange, ["ab", "ac", "bd", "de", "abc", "abce"], updates)
    assert sent[:2] == [dict.fromkeys("ab", one), dict.fromkeys("ac", one)]
    assert sent[2] == {"b": one, "d": ("cluster-1",)}  # a and b, and c with d
    assert sent[3] == {"d": ("cluster-0", "cluster-1"), "e": one}
    assert sent[4] == {"a": one, "b": ("cluster-0", "cluster-1"), "c": ("cluster-1",)}
    assert sent[5] == dict.fromkeys("abce", ("cluster-0", "cluster-1"))
    again = config.exchange.build()
    again.load_state(json.loads(json.dumps(exchange.state())))  # without sketches
    assert again.state() == exchange.state() and again.evaluated() == exchange.evaluated()


def test_groups_that_differ_by_hundredths_of_a_cosine_are_found(tiny):
    """As in real runs. Sketches of 4,096 values err by as much, and find other groups."""
    draws, names = np.random.default_rng(0), "abcdefghijklmnop"
    size = 100_000
    common, *halves = draws.standard_normal((3, size))
    updates = {
        name: common + 0.16 * halves[number % 2] + draws.standard_normal(size)
        for number, name in enumerate(names)
    }
    rows = np.stack([update / np.linalg.norm(update) for update in updates.values()])
    cosines = rows @ rows.T
    assert 0.01 < cosines[0, 2::2].mean() - cosines[0, 1::2].mean() < 0.02
    exchange = tiny("exchange=clusters", "exchange.warm_rounds=1").exchange.build()
    exchange.models(names)
    sent = rounds(exchange, [names, names], updates)
    assert [sent[1][name] for name in names] == [("cluster-0",), ("cluster-1",)] * 8


@pytest.mark.parametrize(("clients", "length"), [("", 10), ("a", 50), ("ab", 50), ("abcd", 25)])
def test_the_more_clients_the_shorter_the_sketches(tiny, monkeypatch, clients, length):
    """Of updates of 50 values; altogether at most 100 are kept."""
    monkeypatch.setattr(clusters, "UPDATES", 100)
    monkeypatch.setattr(clusters, "CLIENTS", 10)  # where real ones may come
    exchange = tiny("exchange=clusters").exchange.build()
    exchange.models(list(clients))
    rounds(exchange, ["a"], {"a": np.arange(50.0)})
    (sketch,) = exchange.state()["sketches"].values()
    assert len(sketch) == length


def test_short_sketches_of_version_0_2_are_waited_for_once_more(tiny):
    exchange = tiny("exchange=clusters").exchange.build()
    state = {"warm": True, "assigned": {}, "trained": ["a"], "sketches": {"a": "AAAA"}}
    exchange.load_state(state)
    assert exchange.state() == {**state, "sketches": {}}


@pytest.mark.parametrize("assign", ["alignment", "loss"])
def test_everybody_begins_with_the_model_of_its_group(tiny, assign):
    """Also who was not drawn in the round in which clients were grouped; then it chooses."""
    config = tiny("method=simclr", "exchange=clusters", "exchange.warm_rounds=2",
                  f"exchange.assign={assign}")  # fmt: skip
    exchange = config.exchange.build()
    updates = {"a": [1, 0], "b": [1, 0.1], "c": [-1, 0], "d": [-1, 0.1]}
    sent = rounds(exchange, ["ab", "cd", "ac", "ab", "cd", "bd"], updates)
    both = ("cluster-0", "cluster-1")
    assert sent[2:4] == [{"a": both[:1], "c": both[1:]}, {"a": both, "b": both[:1]}]
    assert sent[4:] == [{"c": both, "d": both[1:]}, {"b": both, "d": both}]


def test_it_is_grouped_when_there_are_clients_enough(tiny):
    """Two groups of two need four clients that answered."""
    config = tiny("method=simclr", "exchange=clusters", "exchange.warm_rounds=1",
                  "exchange.min_members=2")  # fmt: skip
    exchange = config.exchange.build()
    updates = {"a": [1, 0], "b": [1, 0.1], "c": [1, 0.2], "d": [-1, 0]}
    sent = rounds(exchange, ["ab", "bc", "ad", "abcd"], updates)
    assert all(models == ("cluster-0",) for round_ in sent[:3] for models in round_.values())
    assert exchange.metrics()["members"] == {"cluster-0": ["a", "b"], "cluster-1": ["c", "d"]}


def test_resumed_before_clients_are_grouped_the_groups_have_the_same_numbers(
    tiny, tmp_path, federate, watched
):
    """Not all clients are there in a round, so they do not come in the order of their names."""
    overrides = ("method=simclr", "exchange=clusters", "exchange.warm_rounds=2", "seed=7",
                 "federation.clients=6", "federation.participation=0.5", "federation.rounds=3",
                 "evaluation.every=100")  # fmt: skip
    whole = federate(tiny(*overrides, f"run_dir={tmp_path / 'whole'}"), evaluate=False)

    def pull_the_plug(client, round_, sent, reply):
        if round_ == 3:
            raise KeyboardInterrupt

    torn = tiny(*overrides, f"run_dir={tmp_path / 'torn'}")
    folder = RunFolder.create(torn)
    with pytest.raises(KeyboardInterrupt):
        federate(torn, app=watched(pull_the_plug), folder=folder, evaluate=False)
    resumed = federate(torn, folder=RunFolder.resume(folder.path), evaluate=False)
    assert recorded(whole) == recorded(resumed)
    same_bits(whole.state, resumed.state)


@pytest.mark.parametrize(
    ("killed", "wire"),
    [(3, "int4"), *(pytest.param(at, "float32", marks=pytest.mark.slow) for at in (1, 4))],
)
def test_killed_and_resumed_it_ends_in_the_same_bits(
    tiny, tmp_path, federate, watched, killed, wire
):
    """In the warm-up, in the round that begins with the groups, and in one of choices."""
    overrides = ("federation.rounds=4", "exchange.warm_rounds=2", f"federation.wire={wire}",
                 "server_optimizer=momentum", "evaluation.every=100")  # fmt: skip
    _, whole = run_of_three(tiny, tmp_path, federate, *overrides)

    def pull_the_plug(client, round_, sent, reply):
        if (client, round_) == ("1", killed):
            raise KeyboardInterrupt

    torn = tiny("method=simclr", "exchange=clusters", "federation.clients=3", "training.lr=0.03",
                f"run_dir={tmp_path / 'torn'}", *overrides)  # fmt: skip
    folder = RunFolder.create(torn)
    with pytest.raises(KeyboardInterrupt):
        federate(torn, app=watched(pull_the_plug), folder=folder, evaluate=False)
    resumed = federate(torn, folder=RunFolder.resume(folder.path), evaluate=False)
    same_bits(whole.state, resumed.state)
    assert recorded(whole) == recorded(resumed)
    assert [r["loss"] for r in whole.records] == [r["loss"] for r in resumed.records]


def test_in_any_order_the_same_bits(tiny, tmp_path, federate, scrambled_grid):
    def run(name, **how):
        config = tiny("method=simclr", "exchange=clusters", "exchange.warm_rounds=1",
                      "federation.rounds=3", "federation.wire=int8", "evaluation.every=100",
                      f"run_dir={tmp_path / name}")  # fmt: skip
        return federate(config, evaluate=False, **how)

    straight, crossed = run("straight"), run("crossed", grid=scrambled_grid)
    same_bits(straight.state, crossed.state)
    assert recorded(straight) == recorded(crossed)


def test_every_clusters_model_is_evaluated_and_saved(tiny, tmp_path, federate):
    """The run's scores are means weighted by members, and nowhere the best of the models."""
    _, run = run_of_three(tiny, tmp_path, federate, "exchange.warm_rounds=1",
                          "federation.rounds=2", "evaluation.every=1",
                          "evaluation.unsupervised=true", "evaluation.recalibrated=true",
                          evaluate=True)  # fmt: skip
    assert "models" not in run.records[1]
    record = run.records[2]
    members = record["exchange"]["members"]
    for key in ("knn", "linear", "feature_std"):
        weighted = [
            entry["weight"] * entry["scores"]["online"][key] for entry in record["models"].values()
        ]
        assert record["scores"]["online"][key] == pytest.approx(sum(weighted) / 3)
        assert run.summary[key] == pytest.approx(sum(weighted) / 3)
    recalibrated = sum(
        entry["weight"] * entry["scores"]["online"]["recalibrated"]["linear"]
        for entry in record["models"].values()
    )
    assert run.summary["recalibrated"]["linear"] == pytest.approx(recalibrated / 3)
    assert {n: e["weight"] for n, e in record["models"].items()} == {
        name: len(clients) for name, clients in members.items()
    }
    assert run.summary["models"] == record["models"]
    largest = max(members, key=lambda name: len(members[name]))
    assert run.summary["model"] == largest and len(members[largest]) == 2
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    encoded = {
        path.stem: load_encoder(path)(images) for path in run.folder.encoders.glob("*.safetensors")
    }
    assert encoded.keys() == members.keys()
    assert torch.equal(load_encoder(run.folder.path)(images), encoded[largest])
    assert not torch.equal(*encoded.values())
    assert -1 <= record["unsupervised"]["alignment"] <= 1


def test_each_client_is_judged_on_its_own_classes_by_its_clusters_model(tiny, tmp_path, federate):
    """The paper's measure: each local data set is tested with its cluster's model."""
    config, run = run_of_three(tiny, tmp_path, federate, "exchange.warm_rounds=1",
                               "federation.rounds=2", "evaluation.every=2", "partition=dirichlet",
                               "evaluation.clients=true", "evaluation.probe=converged",
                               evaluate=True)  # fmt: skip
    population, expected = load_population(config), []
    train, test = population.dataset.train, population.dataset.test
    for name, members in run.records[-1]["exchange"]["members"].items():
        encoder = load_encoder(run.folder.encoders / f"{name}.safetensors")
        probe = fit_linear_probe(encoder(train.images), train.labels)
        right = probe.predict(encoder(test.images)) == test.labels
        for client in members:
            held = own_classes(config, population, client, population.dataset).held
            expected.append(weighted_accuracy(right, test.labels, held))
    assert len(expected) == 3 and len(set(expected)) > 1
    accuracy = run.summary["clients_own"]["linear"]
    assert accuracy["mean"] == pytest.approx(sum(expected) / 3, abs=0.02)
    assert accuracy["worst_tenth"] == pytest.approx(min(expected), abs=0.02)


def test_orchestras_first_state_is_every_models(tiny, tmp_path, federate):
    config = tiny("exchange=clusters", "exchange.start=same", "federation.rounds=1",
                  "evaluation.every=100", f"run_dir={tmp_path / 'o'}")  # fmt: skip
    run = federate(config, evaluate=False)
    second = run.state["models/cluster-1/server"].view(4, 16)
    torch.testing.assert_close(second.norm(dim=1), torch.ones(4))
    assert run.records[0]["clients"]["ok"] == run.records[1]["clients"]["ok"] == 4


def test_centroids_that_too_few_sent_are_missed_in_other_words(tiny, federate, watched):
    """Than those of clients without images enough."""

    def lost(client, round_, sent, reply):
        if client != "0":
            del reply.content["metrics"]

    config = tiny("exchange=clusters", "exchange.clusters=2", "exchange.min_members=2",
                  "federation.min_success=0.25", "exchange.start=same")  # fmt: skip
    with pytest.raises(FederationError) as error:
        federate(config, app=watched(lost), evaluate=False)
    assert str(error.value) == (
        "round 0: 1 clients answered well, too few to use their centroids (exchange.min_members=2)"
    )


@pytest.mark.parametrize(
    "merging", ["fedema", *(pytest.param(m, marks=pytest.mark.slow) for m in ("fedbn", "fedu"))]
)
def test_it_works_with_every_merging_policy(tiny, tmp_path, federate, merging):
    config = tiny("method=byol", f"merging={merging}", "exchange=clusters",
                  "exchange.warm_rounds=1", "federation.rounds=3", "federation.wire=int8",
                  "terms.alignment.weight=1", "evaluation.every=100", "data.train_limit=80",
                  f"run_dir={tmp_path / 'run'}")  # fmt: skip
    run = federate(config, evaluate=False)
    assert [r["clients"]["ok"] for r in run.records[1:]] == [4, 4, 4]
    assert sum(map(len, run.records[3]["exchange"]["members"].values())) == 4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("exchange.clusters=3", "exchange.min_members=2"),
            "exchange.clusters=3: with exchange.min_members=2 needs 6 clients, "
            "federation.clients=4",
        ),
        (
            ("exchange.clusters=1", "exchange.min_members=2", "federation.participation=0.3"),
            "exchange.min_members=2: must be at most 1, the clients of a round with "
            "federation.participation=0.3; no model would ever change",
        ),
        (
            ("exchange.start=random",),
            "exchange.start=random: method=orchestra makes centroids before training, with one "
            "model for all; must be grouped or same",
        ),
        (
            ("federation.weighting=uniform", "privacy.clip=1"),
            "privacy.clip=1: must not be given with exchange=clusters, it is accounted for one "
            "model and one stage",
        ),
        (
            ("model.batch_norm=recalibrated",),
            "model.batch_norm=recalibrated: must be null with exchange.assign=alignment and "
            "BatchNorm (model=convnet), whose statistics are not averaged then; model.norm=group",
        ),
        (("exchange.assign=best",), "exchange.assign=best: input should be 'alignment', 'loss'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(tiny, overrides, message):
    with pytest.raises(ConfigError) as error:
        tiny("exchange=clusters", *overrides)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "allowed", [("exchange.assign=loss",), ("exchange.clusters=1",), ("model.norm=group",)]
)
def test_without_statistics_models_are_chosen_by_loss_or_without_batch_norm(tiny, allowed):
    norms = () if "model.norm=group" in allowed else ("model.batch_norm=recalibrated",)
    tiny("exchange=clusters", *norms, *allowed)
