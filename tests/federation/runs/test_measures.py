"""What a run measures beside kNN and the linear probe, in whole federations in this process."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from orchestra_flwr.config import ConfigError, load
from orchestra_flwr.data import limited_dataset, load_dataset, shift_images
from orchestra_flwr.deployment.server_config import ServerConfig
from orchestra_flwr.evaluation import LabelFreeScores, linear_accuracy
from orchestra_flwr.evaluation.features import effective_rank
from orchestra_flwr.evaluation.few_labels import labelled_subset
from orchestra_flwr.evaluation.linear_probe import fit_linear_probe
from orchestra_flwr.evaluation.own_classes import weighted_accuracy
from orchestra_flwr.experiments.results.runs import read_run
from orchestra_flwr.federation.messages.fields import ARRAYS, METRICS
from orchestra_flwr.federation.population import load_population, own_classes
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.flower.arrays import from_record
from orchestra_flwr.models import extract_features, load_encoder, normalise, recalibrated
from orchestra_flwr.seeding import torch_generator
from orchestra_flwr.training import build_learner, torch_threads

SCORES = {
    "knn", "knn_standard_error", "linear", "linear_standard_error", "linear_penalty", "feature_std",
    "effective_rank",
}  # fmt: skip


@pytest.fixture
def config(tiny, tmp_path):
    chosen = (f"run_dir={tmp_path / 'run'}", "federation.rounds=1", "evaluation.probe=converged")
    return lambda *o: tiny(*chosen, *o)


def test_how_far_clusters_are_learned_from_and_kept(config, federate):
    """From the second clustering on there is one before it."""
    first, last = federate(config()).records
    assert first.get("measures", {}) == {}
    assert last["measures"].keys() == {"agreement", "assignment_entropy", "consistency"}
    assert all(0 <= last["measures"][name] <= 1 for name in ("agreement", "consistency"))


def test_the_classifier_itself_is_judged(config, federate):
    """Dec-SL and Dec-SLRep are one run with two measures."""
    run = federate(config("method=supervised", "training.lr=0.03", "training.local_epochs=6"))
    encoder, test = load_encoder(run.folder.path), load_dataset(config().data).test
    features = extract_features(encoder, test.images, 256)
    weight, bias = run.state["classifier.weight"], run.state["classifier.bias"]
    expected = ((features @ weight.T + bias).argmax(1) == test.labels).double().mean()
    assert run.summary["accuracy"] == pytest.approx(float(expected))
    assert 0.15 < run.summary["accuracy"] != run.summary["linear"]
    assert read_run(run.folder.path).measure("accuracy") == run.summary["accuracy"]
    assert 0 <= run.summary["untrained"]["accuracy"] < 0.3


def test_a_method_without_classes_has_no_accuracy(config):
    method = build_learner(config("method=simclr"), 1).method
    assert method.classification_head() is None
    scores = Evaluator(config("method=simclr"), load_dataset(config().data)).scores(method)
    assert scores["online"].keys() == SCORES


def test_probes_with_few_labels_and_both_norms(config, federate):
    chosen = config("method=simclr", "evaluation.few_labels=true", "evaluation.recalibrated=true",
                    "seed=3")  # fmt: skip
    run = federate(chosen)
    encoder, data = load_encoder(run.folder.path), load_dataset(chosen.data)
    with torch_threads():  # as the server has them: a few labels leave a probe much freedom
        parts = (data.train, data.test)
        bank, queries = (extract_features(encoder, part.images, 256) for part in parts)
        for name, fraction in (("linear_10", 0.1), ("linear_1", 0.01)):
            few = labelled_subset(data.train.labels, fraction, 3)
            expected = linear_accuracy(bank[few], data.train.labels[few], queries, data.test.labels)
            assert run.summary[name] == pytest.approx(expected)
    assert run.summary["batch_norm"] == "averaged"
    beside = run.summary["recalibrated"]
    assert beside.keys() == SCORES | {"linear_10", "linear_1"}
    assert beside != {name: run.summary[name] for name in beside}
    measured = read_run(run.folder.path)
    assert measured.measure("linear_recalibrated") == beside["linear"]
    assert measured.measure("linear_1") == run.summary["linear_1"]


@pytest.mark.parametrize("chosen", [("merging=fedbn",), ("model.norm=group",)])
def test_where_there_is_one_kind_of_norms_both_columns_are_it(config, federate, chosen):
    run = federate(config("method=simclr", "evaluation.recalibrated=true", *chosen))
    beside = run.summary["recalibrated"]
    assert beside == {name: run.summary[name] for name in beside}


def test_drift_is_that_of_what_clients_sent(config, federate, watched):
    """Of the trained tensors alone: running statistics are no layers."""
    sent = {}

    def look(client, round_, message, reply):
        metrics = reply.content.metric_records[METRICS]
        sent[client] = from_record(reply.content[ARRAYS])["shared"].copy(), metrics["examples"]

    chosen = config("method=simclr", "evaluation.drift=true", "partition=iid")
    run = federate(chosen, app=watched(look))
    learner = build_learner(chosen, 1)
    from orchestra_flwr.federation.messages.schema import Schemas

    schema = Schemas.of(learner, chosen).shared
    trained = learner.trained()
    weights = np.array([n for _, n in sent.values()]) / sum(n for _, n in sent.values())
    expected = 0.0
    for name, span in schema.spans.items():
        if name in trained:
            states = np.stack([state[span].astype(np.float64) for state, _ in sent.values()])
            spread = weights @ ((states - weights @ states) ** 2)
            expected += math.sqrt(spread.sum())
    drift = run.summary["drift"]
    assert drift["mean"] == pytest.approx(expected, rel=1e-4)
    assert drift["pairs"] == pytest.approx(expected * math.sqrt(2 * 4 / 3), rel=1e-3)
    assert [("drift" in record) for record in run.records] == [False, True]


def test_drift_changes_nothing_else(config, federate, tmp_path):
    plain = federate(config("method=simclr", f"run_dir={tmp_path / 'plain'}"))
    measured = federate(config("method=simclr", "evaluation.drift=true"))
    assert all(torch.equal(t, measured.state[name]) for name, t in plain.state.items())


def by_hand(config, run, client):
    """Accuracy of the average with a client's own norms, image by image of the client's classes."""
    population, learner = load_population(config), build_learner(config, 1)
    (file,) = (run.folder.clients / client).rglob("1.safetensors")
    learner.method.load_state_dict({**run.state, **load_file(file)}, strict=False)
    method, test = learner.method.eval(), population.dataset.test
    logits = method.classifier(method.backbone(normalise(test.images / 255, "half")))
    right = logits.argmax(1) == test.labels
    held = population.dataset.train.labels[torch.from_numpy(population.parts[client])]
    scores = [float(right[test.labels == label].double().mean()) for label in held.tolist()]
    return sum(scores) / len(scores)


def test_each_clients_own_model_on_its_own_classes(config, federate):
    """With local norms models differ; a client's scores are those of its classes alone."""
    chosen = config("method=supervised", "merging=fedbn", "partition=dirichlet",
                    "evaluation.clients=true", "training.lr=0.03")  # fmt: skip
    run = federate(chosen)
    own = run.summary["clients_own"]
    assert own.keys() == {"linear", "accuracy"}
    for scores in own.values():
        assert scores["clients"] == 4 and 0 <= scores["worst_tenth"] <= scores["mean"] <= 1
    expected = [by_hand(chosen, run, client) for client in load_population(chosen).parts]
    assert own["accuracy"]["mean"] == pytest.approx(sum(expected) / 4, abs=0.02)
    assert own["accuracy"]["worst_tenth"] == pytest.approx(min(expected), abs=0.02)
    assert read_run(run.folder.path).measure("own_accuracy") == own["accuracy"]["mean"]


@pytest.mark.parametrize("method", ["simclr", pytest.param("dino", marks=pytest.mark.slow)])
def test_each_client_gets_a_head_from_few_labels_of_its_own(config, federate, method):
    """For any method: fitted by hand to the images that the seed draws, and judged the same way."""
    chosen = config(f"method={method}", "partition=dirichlet", "evaluation.clients=true",
                    "evaluation.personal_labels=9")  # fmt: skip
    run = federate(chosen)
    own, population = run.summary["clients_own"], load_population(chosen)
    assert own.keys() == {"linear", "personal"} and own["personal"]["clients"] == 4
    encoder, test = load_encoder(run.folder.path), population.dataset.test
    expected = []
    for client, part in population.parts.items():
        client_classes = own_classes(chosen, population, client, population.dataset)
        images, classes = client_classes.few
        assert len(images) == len(classes) == min(9, len(part))
        held = population.dataset.train.images[torch.from_numpy(part)]
        assert all((held == image).flatten(1).all(1).any() for image in images)
        probe = fit_linear_probe(encoder(images), classes)
        right = probe.predict(encoder(test.images)) == test.labels
        expected.append(weighted_accuracy(right, test.labels, client_classes.held))
    assert own["personal"]["mean"] == pytest.approx(sum(expected) / 4, abs=0.02)
    assert own["personal"]["worst_tenth"] == pytest.approx(min(expected), abs=0.02)
    assert own["personal"]["std"] > 0


@pytest.mark.parametrize("images", [pytest.param("original", marks=pytest.mark.slow), "shifted"])
def test_a_clients_own_head_is_fitted_to_images_as_the_client_has_them(config, federate, images):
    """By hand: turned ones, and everybody's probe to turned ones where probes have them."""
    chosen = config("method=simclr", "shift=rotation", "shift.range=90", "shift.bins=1",
                    "evaluation.clients=true", "evaluation.personal_labels=9",
                    f"evaluation.training_images={images}")  # fmt: skip
    run = federate(chosen)
    own, population = run.summary["clients_own"], load_population(chosen)
    train, test = population.dataset.train, population.dataset.test
    encoder = load_encoder(run.folder.path)
    turned = {
        client: shift_images(chosen.shift, train.images[part], part, client, chosen.seed)
        for client, part in ((c, torch.from_numpy(p)) for c, p in population.parts.items())
    }
    bank, classes = train.images, train.labels
    if images == "shifted":
        bank = torch.cat(list(turned.values()))
        classes = train.labels[torch.from_numpy(np.concatenate(list(population.parts.values())))]
    everybody = fit_linear_probe(encoder(bank), classes)
    linear, personal = [], []
    for client, part in population.parts.items():
        held = train.labels[torch.from_numpy(part)]
        order = torch.randperm(
            len(part), generator=torch_generator(chosen.seed, "personal", client)
        )[:9]
        head = fit_linear_probe(encoder(turned[client][order]), held[order])
        for scores, probe in ((linear, everybody), (personal, head)):
            right = probe.predict(encoder(test.images)) == test.labels
            scores.append(weighted_accuracy(right, test.labels, held))
    assert own["linear"]["mean"] == pytest.approx(sum(linear) / 4, abs=0.02)
    assert own["personal"]["mean"] == pytest.approx(sum(personal) / 4, abs=0.005)


def test_clients_own_models_are_evaluated_on_no_more_images_than_the_servers(config, federate):
    """Of all images, each client of each evaluated round would have to make features."""
    chosen = config("method=simclr", "evaluation.clients=true", "evaluation.limit=30")
    run = federate(chosen)
    population, encoder = load_population(chosen), load_encoder(run.folder.path)
    few = limited_dataset(population.dataset, 30)
    probe = fit_linear_probe(encoder(few.train.images), few.train.labels)
    right = probe.predict(encoder(few.test.images)) == few.test.labels
    labels = population.dataset.train.labels
    held = [labels[torch.from_numpy(part)] for part in population.parts.values()]
    expected = [weighted_accuracy(right, few.test.labels, classes) for classes in held]
    assert run.summary["clients_own"]["linear"]["mean"] == pytest.approx(
        sum(expected) / 4, abs=0.02
    )


def test_without_the_servers_test_images_each_client_judges_its_own_head(config, federate):
    """As real clients do: on those of its labelled images that the head was not fitted to."""
    chosen = config("method=simclr", "evaluation.personal_labels=9", "evaluation.every=1")
    run = federate(chosen)
    own, population = run.summary["clients_own"], load_population(chosen)
    encoder, train, expected = load_encoder(run.folder.path), population.dataset.train, []
    for client, part in population.parts.items():
        images, labels = train.images[torch.from_numpy(part)], train.labels[torch.from_numpy(part)]
        order = torch.randperm(len(part), generator=torch_generator(0, "personal", client))
        few, others = order[:9], order[9:]
        probe = fit_linear_probe(encoder(images[few]), labels[few])
        right = probe.predict(encoder(images[others])) == labels[others]
        expected.append(float(right.double().mean()))
    assert own.keys() == {"personal"} and own["personal"]["clients"] == 4
    assert own["personal"]["mean"] == pytest.approx(sum(expected) / 4, abs=0.02)
    assert own["personal"]["worst_tenth"] == pytest.approx(min(expected), abs=0.03)
    records = run.folder.read_metrics()
    assert all("clients_own" in record for record in records)
    assert records[-1]["clients_own"] == own


@pytest.mark.parametrize(
    ("key", "more"),
    [
        (
            "noise_multiplier",
            ["method=simclr", "privacy.noise_multiplier=1", "privacy.clip=1",
             "federation.weighting=uniform"],
        ),
        ("epsilon", ["clustering=private", "privacy.epsilon=1"]),
    ],
)  # fmt: skip
def test_a_head_of_its_own_is_refused_beside_private_results(tiny, key, more):
    with pytest.raises(ConfigError) as caught:
        tiny(*more, "evaluation.personal_labels=9")
    assert str(caught.value) == (
        "evaluation.personal_labels=9: clients' scores are not differentially private, must be "
        f"null with privacy.{key}"
    )


def test_before_training_clients_score_a_network_with_statistics_of_their_images(config, federate):
    """With initial ones BatchNorm does nothing: ranks are lower, and any training looks good."""
    chosen = config("method=simclr", "federation.clients=1", "partition=iid",
                    "evaluation.unsupervised=true")  # fmt: skip
    before = federate(chosen).records[0]["unsupervised"]
    images = load_dataset(chosen.data).train.images
    initial = build_learner(chosen, 1).method.backbone
    ranks = [
        effective_rank(extract_features(backbone, images, 256, by="half"))
        for backbone in (initial, recalibrated(initial, images, 256, "half"))
    ]
    assert before["effective_rank"] == pytest.approx(ranks[1], rel=0.01)
    assert before["effective_rank"] != pytest.approx(ranks[0], rel=0.1)


def test_without_own_state_and_with_all_classes_it_is_the_servers_score(config, federate):
    chosen = config("method=simclr", "federation.clients=1", "partition=iid",
                    "evaluation.clients=true", "evaluation.unsupervised=true")  # fmt: skip
    run = federate(chosen)
    labels = load_dataset(chosen.data)
    share = torch.bincount(labels.train.labels).double() / len(labels.train.labels)
    tested = torch.bincount(labels.test.labels).double() / len(labels.test.labels)
    slack = float((share - tested).abs().sum())
    own = run.summary["clients_own"]["linear"]["mean"]
    assert own == pytest.approx(run.summary["linear"], abs=slack)
    assert run.summary["unsupervised"].keys() == {"score", *LabelFreeScores.ranges(1)}
    for name, (least, most) in LabelFreeScores.ranges(10_000).items():
        assert least <= run.summary[name] <= most and run.summary["untrained"][name]


@pytest.mark.parametrize("key", ["drift", "clients"])
def test_what_is_not_noisy_is_refused_beside_noise(tiny, key):
    with pytest.raises(ConfigError, match=f"evaluation.{key}=true: .* not differentially private"):
        tiny("method=simclr", f"evaluation.{key}=true", "privacy.clip=1",
             "privacy.noise_multiplier=1", "federation.weighting=uniform")  # fmt: skip


def test_real_clients_classes_are_not_asked_for():
    with pytest.raises(ConfigError, match="evaluation.clients=true: must be false, real clients'"):
        load(ServerConfig, ["evaluation.clients=true"])
