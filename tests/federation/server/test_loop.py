"""Whole federations with real apps and real messages, in this process."""

import json
import math
import re

import numpy as np
import pytest
import torch
from flwr.app import Error, Message
from flwr.clientapp import ClientApp
from safetensors.torch import save_file

from orchestra_flwr import load_encoder
from orchestra_flwr.config import ConfigError
from orchestra_flwr.evaluation import LabelFreeScores
from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.engines.inline import InlineGrid
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.federation.population import (
    check_before_images,
    check_population,
    load_population,
)
from orchestra_flwr.federation.server import loop
from orchestra_flwr.federation.server.checkpoint import KEY_FILE, load_checkpoint
from orchestra_flwr.federation.server.evaluator import Evaluator
from orchestra_flwr.federation.server.loop import FederationRun
from orchestra_flwr.federation.server.members import SimulatedMembers
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.federation.server.run_records import usual_batches, usual_steps
from orchestra_flwr.flower.arrays import from_record, to_record
from orchestra_flwr.flower.streaming_grid import TIMEOUT_CODE
from orchestra_flwr.methods import Role
from orchestra_flwr.privacy.accounting import calibrate, spent
from orchestra_flwr.privacy.updates import composed_epsilon
from orchestra_flwr.reporting import RunFolder, make_progress, run_estimate
from orchestra_flwr.reporting.run_result import Result
from orchestra_flwr.seeding import torch_generator
from orchestra_flwr.training import build_learner


def run(config, app=client_app, folder=None):
    folder = folder or RunFolder.create(config)
    with make_progress("off", config.federation.rounds) as progress:
        return federate(config, folder, progress, app), folder


def federate(config, folder, progress, app=client_app, workers=None):
    population = load_population(config)
    grid = InlineGrid(app)
    members = SimulatedMembers(grid, population.parts)
    return FederationRun(
        grid, config, members, evaluator=Evaluator(config, population.dataset), folder=folder,
        progress=progress, workers=workers,
    ).run()  # fmt: skip


def as_ever(message, context):
    return client_app(message, context)


def app_of(train=as_ever, evaluate=as_ever):
    """The real ClientApp, with something in place of a handler."""
    app = ClientApp()
    app.query()(as_ever)
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def meddling(change):
    """The real ClientApp, with `change(client, round, reply)` in the network."""

    def train(message, context):
        task = message.content[CONFIG]
        client, round_ = task["client"], task["round"]
        reply = client_app(message, context)
        return change(client, round_, reply) or reply

    return app_of(train)


def restored(config, folder):
    """The models of a run's checkpoint."""
    learner = build_learner(config, config.data.channels)
    models = Models(config, learner, Schemas.of(learner, config), ["model"])
    load_checkpoint(folder.checkpoint, models)
    return models


@pytest.fixture
def config(tiny, tmp_path):
    return lambda *overrides: tiny(f"run_dir={tmp_path / 'run'}", *overrides)


def test_warnings_of_a_run_stand_in_its_summary(config, monkeypatch):
    """With the chance levels of its method."""
    seen = []

    def warnings(summary, records, chance, steps, clients):
        seen.append((summary["untrained"]["batch_norm"], len(records), chance, len(clients)))
        return ["it is worse"]

    monkeypatch.setattr(loop, "run_warnings", warnings)
    summary, _ = run(config())
    assert summary["warnings"] == ["it is worse"]
    ((batch_norm, count, chance, clients),) = seen
    assert batch_norm == "recalibrated" and count == 3 and clients == 4
    assert chance["rotation"] == pytest.approx(math.log(4)) and chance["cluster"] > 0


@pytest.mark.parametrize(("rate", "lines"), [(1e-9, 1), (0.03, 0)])
def test_a_loss_at_chance_is_named_once_while_the_run_goes_on(config, rate, lines):
    config = config("method=rotpred", f"training.lr={rate}", "federation.rounds=7",
                    "training.local_epochs=6", "evaluation.every=7")  # fmt: skip
    said = []
    with make_progress("off", 7) as progress:
        progress.message = said.append
        summary = federate(config, RunFolder.create(config), progress)
    said = [line for line in said if line.startswith("WARNING: after 5 of 7 rounds the rotation")]
    assert len(said) == lines
    of_end = [line for line in summary.get("warnings", ()) if line.startswith("the rotation")]
    assert len(of_end) == lines  # whatever was said before


def test_chance_is_that_of_the_batches_that_clients_have(config, monkeypatch):
    """30 images a client, and batches of 20 or more: one of all of them."""
    seen = []
    monkeypatch.setattr(loop, "run_warnings", lambda *given: seen.append(given[2:]))
    run(config("method=simclr", "partition=iid", "training.batch_size=24"))
    ((chance, steps, _),) = seen
    assert chance == {"contrastive": pytest.approx(math.log(2 * 30 - 1))}
    assert steps == 2  # in two rounds


def test_usual_steps_are_those_of_all_rounds_that_trained(config):
    """30 images in batches of 16 are two steps, 45 are three; a round without replies has none."""
    clients = [(0, 0), (4, 120), (4, 180), (0, 0)]
    records = [
        {"round": number, "clients": {"ok": ok, "examples": images}}
        for number, (ok, images) in enumerate(clients)
    ]
    assert usual_steps(config("training.batch_size=16", "training.local_epochs=3"), records) == 15
    few = config("training.batch_size=16", "training.local_epochs=1", "training.min_steps=4")
    assert usual_steps(few, records) == 4 + 6


@pytest.mark.parametrize(("images", "size"), [(0, 2), (120, 15), (4 * 10**15, 16)])
def test_a_usual_batch_is_that_of_any_number_of_images(config, images, size):
    """Four clients; a sum that a lying client spoilt may say any number."""
    records = [{"clients": {"ok": 4, "examples": images}}]
    assert usual_batches(config("training.batch_size=16"), records[-1])[0] == size


def test_a_long_run_says_how_long_it_takes_and_how_much_memory(config, monkeypatch, capsys):
    """From its first round, with the evaluations that are left; once."""
    monkeypatch.setattr(run_estimate, "SHORTEST", 0.0)
    run_config = config("federation.rounds=3")
    with make_progress("plain", 3) as progress:
        federate(run_config, RunFolder.create(run_config), progress, workers=1)
    said = [line for line in capsys.readouterr().out.splitlines() if "at this pace" in line]
    assert len(said) == 1
    facts = re.fullmatch(r"at this pace 3 rounds take about [\d.]+ s and (.*) of memory", said[0])
    assert facts and 0.1 < float(facts[1].removesuffix(" GB")) < 100


def test_a_run_leaves_a_complete_folder(config, pictures):
    summary, folder = run(config("evaluation.every=1"))
    assert (folder.path / "config.yaml").is_file()
    records = folder.read_metrics()
    assert [r["round"] for r in records] == [0, 1, 2]
    assert records[0]["loss"] == {} and set(records[1]["loss"]) == {"cluster", "rotation", "total"}
    assert [list(r["scores"]) for r in records] == [
        ["target", "online"], ["target"], ["target", "online"]
    ]  # fmt: skip
    assert json.loads((folder.path / "summary.json").read_text()) == summary
    assert {"knn", "linear", "untrained", "rounds", "seconds", "bytes_up", "bytes_down"} <= set(
        summary
    )
    assert summary["knn"] == records[-1]["scores"]["target"]["knn"]
    assert summary["untrained"]["knn"] == records[0]["scores"]["target"]["knn"]
    assert summary["bytes_up"] == sum(r["bytes_up"] for r in records)
    assert summary["k_anonymity"] >= 1
    assert (folder.path / "curves.png").stat().st_size > 1000
    encoder = load_encoder(folder.path)
    assert encoder(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape == (2, encoder.dim)


@pytest.mark.slow
def test_the_untrained_encoder_is_evaluated_while_workers_start(config, monkeypatch):
    """And with the bits that it has after round 0, which trains nothing."""
    order, asked, scores = [], SimulatedMembers.connected, Evaluator.scores
    monkeypatch.setattr(
        SimulatedMembers, "connected", lambda self: order.append("asked") or asked(self)
    )

    def evaluated(self, method, **named):
        order.append("evaluated")
        return scores(self, method, **named)

    monkeypatch.setattr(Evaluator, "scores", evaluated)
    _, folder = run(config("evaluation.every=1"))
    assert order == ["evaluated", "asked", *["asked", "evaluated"] * 2]
    records = folder.read_metrics()
    dataset = load_population(config()).dataset
    method = build_learner(config(), 1).method
    expected = Evaluator(config(), dataset).scores(method, untrained=True)
    assert records[0]["scores"] == expected


def test_two_rounds_are_clients_training_averaging_and_global_clustering(config):
    """The run's encoder, worked out again with clients called by hand and plain numpy."""
    given = config()
    _, folder = run(given)
    population = load_population(given)
    server = build_learner(given, 1)
    schemas = Schemas.of(server, given)
    clients = [
        OrchestraClient(given, k, population.dataset.train.images[torch.from_numpy(part)])
        for k, part in population.parts.items()
    ]
    for round_ in range(3):
        down = list(pack_state(server, schemas).values())
        replies = [c.fit(down, {"round": round_, "train": round_ > 0})[0] for c in clients]
        if round_:
            sizes = [len(part) for part in population.parts.values()]
            shared = np.array([r[0] for r in replies], np.float64)
            mean = np.average(shared, axis=0, weights=sizes).astype(np.float32)
            schemas.shared.unpack(mean, server.state(Role.SHARED))
        server.method.update_server_state(
            {"local_centroids": torch.from_numpy(np.concatenate([r[-1] for r in replies]))},
            torch_generator(given.seed, "server", round_),
        )
    backbone = load_encoder(folder.path).backbone.state_dict()
    for name, tensor in server.method.target_backbone.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(backbone[name], tensor, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("wire", [pytest.param("float16", marks=pytest.mark.slow), "int8"])
def test_updates_are_added_to_the_servers_own_state(config, wire):
    """By hand again, with fewer bits on the way; messages are a half and a quarter as large.

    One round of training: in a second one, a sum in another order rounds a code the other way.
    """
    given = config(f"federation.wire={wire}", "federation.rounds=1")
    summary, folder = run(given)
    population = load_population(given)
    server = build_learner(given, 1)
    schemas = Schemas.of(server, given)
    state = schemas.shared.pack(server.state(Role.SHARED))
    clients = [
        OrchestraClient(given, k, population.dataset.train.images[torch.from_numpy(part)])
        for k, part in population.parts.items()
    ]
    sizes = [len(part) for part in population.parts.values()]
    down = up = 0
    for round_ in range(2):
        arrays = list(pack_state(server, schemas).values())
        replies = [c.fit(arrays, {"round": round_, "train": round_ > 0})[0] for c in clients]
        if round_:
            updates = [
                schemas.codec.decode("update", dict(zip(clients[0].returns, r[:-1], strict=True)))
                for r in replies
            ]
            state = (state + np.average(updates, axis=0, weights=sizes)).astype(np.float32)
            schemas.shared.unpack(state, server.state(Role.SHARED))
        server.method.update_server_state(
            {"local_centroids": torch.from_numpy(np.concatenate([r[-1] for r in replies]))},
            torch_generator(given.seed, "server", round_),
        )
        down += 4 * sum(a.nbytes + 128 for a in arrays)  # 128: of numpy's header
        up += sum(a.nbytes + 128 for reply in replies for a in reply)
    np.testing.assert_allclose(restored(given, folder).shared("model"), state, atol=1e-6)
    assert (summary["bytes_down"], summary["bytes_up"]) == (down, up)
    floats = 2 * 4 * 4 * (schemas.shared.size + schemas.server.size)
    # A model so small has more of scales, vectors and numpy's headers than a ResNet-18.
    assert down < floats * {"float16": 0.55, "int8": 0.3}[wire]


def test_only_encoders_heads_and_centroids_go_up(config):
    """Opens every real message of a run."""
    seen = []
    run(config(), meddling(lambda client, round_, reply: seen.append((round_, reply.content))))
    learner = build_learner(config(), 1)
    allowed = {"backbone", "projector", "rotation_head", "target_backbone", "target_projector"}
    named = {name.partition(".")[0] for name, _ in Schemas.of(learner, config()).shared.entries}
    assert named == allowed
    elements = sum(
        t.numel()
        for name, t in learner.method.state_dict().items()
        if name.partition(".")[0] in allowed and t.is_floating_point()
    )
    assert len(seen) == 3 * 4
    for round_, content in seen:
        assert set(content) == {ARRAYS, METRICS, CONFIG}
        arrays = from_record(content[ARRAYS])
        assert set(arrays) == ({"shared", "local_centroids"} if round_ else {"local_centroids"})
        if round_:
            assert arrays["shared"].shape == (elements,)
        assert arrays["local_centroids"].shape == (2, 16)  # L x D, whatever the memory holds
        np.testing.assert_allclose(np.linalg.norm(arrays["local_centroids"], axis=1), 1, rtol=1e-5)
        numbers = content[METRICS].values()
        assert all(isinstance(v, int | float) for v in numbers) and len(numbers) <= 8
        assert set(content[CONFIG]) == {"schema"}


def spoiled(reply, **arrays):
    record = from_record(reply.content[ARRAYS])
    reply.content[ARRAYS] = to_record({**record, **arrays})


def test_bad_clients_are_dropped_named_and_counted(config):
    """Client 0 sends NaN, 1 another shape, 2 another schema, 3 nothing learned; 4 to 7 are good."""

    def change(client, round_, reply):
        if round_ != 1:
            return
        shared = from_record(reply.content[ARRAYS])["shared"]
        if client == "0":
            spoiled(reply, shared=np.full_like(shared, np.nan))
        elif client == "1":
            spoiled(reply, shared=shared[:-1])
        elif client == "2":
            reply.content[CONFIG]["schema"] = "from-last-year"
        elif client == "3":
            reply.content[METRICS]["examples"] = 0

    _, folder = run(config("federation.clients=8"), meddling(change))
    dropped = folder.read_metrics()[1]["clients"]
    assert (dropped["cohort"], dropped["ok"]) == (8, 4)
    reasons = {d["client"]: d["reason"] for d in dropped["dropped"]}
    assert "not finite" in reasons["0"]
    assert "shape" in reasons["1"]
    assert "from-last-year" in reasons["2"]
    assert "0 images" in reasons["3"]
    assert folder.read_metrics()[2]["clients"]["ok"] == 8


def test_a_client_that_fails_in_every_round_is_named_in_the_summary(config):
    """Also after resuming; client 2, which fails once, is not."""

    def change(client, round_, reply):
        if client == "1" or (client, round_) == ("2", 1):
            reply.content[METRICS]["examples"] = 0

    _, folder = run(config(), meddling(change))
    more = config("federation.rounds=3", f"run_dir={folder.path}")
    summary, _ = run(more, meddling(change), folder)
    (line,) = [line for line in summary["warnings"] if line.startswith("client")]
    assert line.startswith("client 1 gave no result, and failed in 3 of 3 rounds: ")
    assert "0 images" in line
    assert line in " ".join(str(Result(folder.path)).split())


def folders(root, **sizes):
    """Random photos in folders; with partition=by_class every folder is a client."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, size in sizes.items():
        (root / name).mkdir(parents=True)
        for i in range(size):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return (
        "data=image_folder", f"data.root={root}", "data.image_size=8", "data.train_limit=null",
        "data.test_limit=null", "partition=by_class", f"federation.clients={len(sizes)}",
    )  # fmt: skip


def test_clients_of_few_images_send_fewer_centroids_or_none(config, tmp_path):
    """Five images and k_min=8: no row; twelve: one of L=2; forty: both. All are averaged."""
    photos = folders(tmp_path / "photos", five=5, forty=40, twelve=12)
    seen = {}

    def look(client, round_, reply):
        arrays = from_record(reply.content[ARRAYS])
        smallest = reply.content[METRICS]["smallest_group"]
        seen[client, round_] = (len(arrays["local_centroids"]), smallest, "shared" in arrays)

    given = config(*photos, "privacy.k_min=8", "training.local_epochs=3")
    summary, folder = run(given, meddling(look))
    for round_ in range(3):
        assert seen["five", round_] == (0, 0, round_ > 0)
        assert seen["twelve", round_] == (1, 12, round_ > 0)
        assert seen["forty", round_] == (2, 16, round_ > 0)  # of the memory's 32
    for record in folder.read_metrics():
        assert record["clients"]["ok"] == 3 and record["clients"]["examples"] == 57
        assert record["release"] == {
            "smallest_group": 12,
            "clients": {"five": 0, "forty": 16, "twelve": 12},
            "server_state_kept": False,
        }
    assert summary["k_anonymity"] == 12


def test_a_cohort_without_centroids_keeps_the_global_ones_and_says_so(config, tmp_path, capsys):
    """Both clients send centroids in the first round and none after it."""
    photos = folders(tmp_path / "photos", a=20, b=20)

    def forgetful(client, round_, reply):
        if round_ == 1:
            spoiled(reply, local_centroids=np.zeros((0, 16), np.float32))

    given = config(*photos, "federation.rounds=1")
    folder = RunFolder.create(given)
    with make_progress("plain", 1) as progress:
        federate(given, folder, progress, meddling(forgetful))
    first, second = (record["release"] for record in folder.read_metrics())
    assert (first["smallest_group"], first["server_state_kept"]) == (10, False)
    assert second == {
        "smallest_group": None,
        "clients": {"a": 0, "b": 0},
        "server_state_kept": True,
    }
    assert (
        "round 1: no client sent centroids, all have fewer than privacy.k_min=2 images: lower it, "
        "or have clients with more (federation.min_images=1); the server's state stays as it is"
        in " ".join(capsys.readouterr().out.split())
    )


def test_a_run_that_cannot_make_centroids_is_told_before_or_in_its_first_round(config, tmp_path):
    photos = folders(tmp_path / "photos", a=5, b=3)
    given = config(*photos, "privacy.k_min=6")
    population = load_population(given)
    with pytest.raises(ConfigError, match=r"privacy.k_min=6: .*must be at most 5"):
        check_population(given, population)
    check_population(config(*photos, "privacy.k_min=5"), population)
    with pytest.raises(FederationError, match="privacy.k_min=6 .*federation.min_images=1"):
        run(given)


def test_a_dropped_client_leaves_no_trace_in_the_result(config, tmp_path):
    """Spoiling client 1's reply one way or another gives the same bits: it is out altogether."""

    def encoder_with(name, spoil):
        def change(client, round_, reply):
            if client == "1" and round_ == 1:
                spoil(reply)

        _, folder = run(config(f"run_dir={tmp_path / name}"), meddling(change))
        return load_encoder(folder.path).backbone.state_dict()

    def nan(reply):
        spoiled(reply, shared=from_record(reply.content[ARRAYS])["shared"] * np.nan)

    def renamed(reply):
        reply.content[CONFIG]["schema"] = "other"

    a, b = encoder_with("a", nan), encoder_with("b", renamed)
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    "wire", [*(pytest.param(w, marks=pytest.mark.slow) for w in ("float32", "int8")), "int4"]
)
def test_an_interrupted_run_resumed_ends_in_the_same_bits(config, tmp_path, wire):
    overrides = [
        "federation.rounds=4", "federation.participation=0.5", f"federation.wire={wire}",
        "evaluation.every=1",
    ]  # fmt: skip
    _, whole = run(config(*overrides))

    def pull_the_plug(client, round_, reply):
        if round_ == 3:
            raise KeyboardInterrupt

    interrupted = config(*overrides, f"run_dir={tmp_path / 'interrupted'}")
    folder = RunFolder.create(interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(interrupted, meddling(pull_the_plug), folder)
    assert [r["round"] for r in folder.read_metrics()] == [0, 1, 2]
    summary, _ = run(interrupted, folder=RunFolder.resume(folder.path))
    assert summary["rounds"] == 4
    assert [r["round"] for r in folder.read_metrics()] == [0, 1, 2, 3, 4]
    first, second = (load_encoder(f.path).backbone.state_dict() for f in (whole, folder))
    assert all(torch.equal(first[name], second[name]) for name in first)

    def recorded(folder):  # everything but the clock
        return [(r["round"], r["loss"], r["scores"], r["bytes_up"]) for r in folder.read_metrics()]

    assert recorded(whole) == recorded(folder)


PRIVATE = ("clustering=private", "privacy.epsilon=20", "federation.rounds=5")
NOISY = (
    "model.norm=group",
    "federation.weighting=uniform",
    "privacy.clip=0.5",
    "privacy.noise_multiplier=0.02",
    "federation.participation=0.5",
    "federation.rounds=3",
)


def with_key(given, key="ab" * 32):
    """A run's folder with a key of the noise in it, that would come from the system."""
    folder = RunFolder.create(given)
    folder.checkpoint.mkdir()
    (folder.checkpoint / KEY_FILE).write_text(key)
    return folder


def kept(folder):
    return load_encoder(folder.path).backbone.state_dict()


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_whom_a_noisy_run_asks_does_not_follow_from_the_seed(config, tmp_path):
    """Clients know it, and epsilon relies on nobody knowing who takes part."""
    asked = {}
    for key in ("ab", "cd"):
        given = config("method=simclr", *NOISY, f"run_dir={tmp_path / key}")
        seen = asked[key] = []
        note = meddling(lambda client, round_, reply, seen=seen: seen.append((round_, client)))
        run(given, note, with_key(given, key * 32))
    assert len(asked["ab"]) == len(asked["cd"]) == 6 and asked["ab"] != asked["cd"]


def test_a_noisy_run_resumed_has_the_same_bits_and_the_same_epsilon(config, tmp_path):
    given = [
        config("method=simclr", *NOISY, f"run_dir={tmp_path / name}")
        for name in ("whole", "torn", "other")
    ]
    whole = with_key(given[0])
    summary, _ = run(given[0], folder=whole)

    def pull_the_plug(client, round_, reply):
        if round_ == 3:
            raise KeyboardInterrupt

    torn = with_key(given[1])
    with pytest.raises(KeyboardInterrupt):
        run(given[1], meddling(pull_the_plug), torn)
    resumed, _ = run(given[1], folder=RunFolder.resume(torn.path))
    assert same(kept(whole), kept(torn))
    assert resumed["privacy"] == summary["privacy"]
    spent = [r.get("privacy") for r in torn.read_metrics()]
    assert spent == [r.get("privacy") for r in whole.read_metrics()]
    assert spent[0] is None  # nothing is averaged in the first round
    epsilons = [s["updates"]["epsilon"] for s in spent[1:]]
    assert epsilons == [composed_epsilon(0.02, [(4, 2, rounds)], 1e-3) for rounds in (1, 2, 3)]
    assert summary["privacy"]["updates"] == {
        "epsilon": epsilons[-1], "delta": 1e-3, "clip": 0.5, "noise_multiplier": 0.02,
        "protects": "a whole client",
    }  # fmt: skip
    # The system draws another key for everyone, and it is gone when the run is over.
    _, other = run(given[2])
    assert not same(kept(whole), kept(other))
    assert not any((f.checkpoint / KEY_FILE).exists() for f in (whole, torn, other))


@pytest.mark.slow
def test_beside_private_centroids_noise_protects_an_image(config):
    """What a client's centroids say of it moves other clients' updates."""
    summary, _ = run(config(*PRIVATE, *NOISY, "privacy.total_epsilon=30"))
    updates = summary["privacy"]["updates"]
    assert updates["protects"] == "an image"
    assert updates["epsilon"] == composed_epsilon(0.02, [(4, 2, 3)], 1e-3)
    assert summary["epsilon_spent"] == pytest.approx(20, abs=0.1)


def test_noise_in_a_simulation_is_refused_beside_batch_norm(config):
    """Its statistics are taken from the clients' own images, and no noise is in them."""
    check_before_images(config("method=simclr", *NOISY))
    given = config("method=simclr", *NOISY[1:])
    with pytest.raises(ConfigError, match=r"noise_multiplier=0.02: must be 0 in a simulation with"):
        check_before_images(given)
    check_before_images(config("method=simclr", *NOISY[1:], "model.batch_norm=frozen"))


@pytest.mark.slow
def test_a_rogue_client_moves_a_clipped_run_by_its_share(config, tmp_path):
    """Client 2 sends its state with 1000 added everywhere; the mean moves by clip / 4 at most."""
    clip = ("federation.weighting=uniform", "privacy.clip=0.5", "federation.rounds=1")

    def result(name, change):
        given = config(*clip, f"run_dir={tmp_path / name}")
        _, folder = run(given, meddling(change))
        return restored(given, folder).shared("model").astype(np.float64)

    def rogue(client, round_, reply):
        if client == "2" and round_ == 1:
            spoiled(reply, shared=from_record(reply.content[ARRAYS])["shared"] + 1000)

    def gone(client, round_, reply):
        if client == "2" and round_ == 1:
            reply.content[METRICS]["examples"] = 0

    moved = np.linalg.norm(result("rogue", rogue) - result("gone", gone))
    assert moved == pytest.approx(0.5 / 4, rel=1e-2)


def test_more_clients_than_delta_protects_are_told_and_end_the_guarantee(config, capsys):
    """As where real clients come: the configuration knows of two, four are there."""
    few, many = (
        config(
            "method=simclr",
            *NOISY,
            "federation.rounds=1",
            f"federation.clients={n}",
            f"privacy.delta={delta}",
        )
        for n, delta in ((2, 0.3), (4, 0.2))
    )
    app = ClientApp()

    @app.train()
    def train(message, context):
        message.content[CONFIG]["config"] = many.to_json()
        return client_app(message, context)

    @app.query()
    def query(message, context):
        return client_app(message, context)

    population, grid = load_population(many), InlineGrid(app)
    folder, members = RunFolder.create(few), SimulatedMembers(grid, population.parts)
    with make_progress("plain", 1) as progress:
        summary = FederationRun(
            grid,
            few,
            members,
            evaluator=Evaluator(few, population.dataset),
            folder=folder,
            progress=progress,
        ).run()
    assert summary["privacy"]["updates"] == (
        "not covered by differential privacy: privacy.delta=0.3 must be below 1 / 4, "
        "since 4 clients were there"
    )
    assert "privacy.delta=0.3 protects none of 4 clients" in capsys.readouterr().out


def test_a_run_without_noise_says_what_it_is_not(config):
    summary, folder = run(config("federation.rounds=1"))
    assert summary["privacy"] == {"updates": "not covered by differential privacy"}
    assert not any("privacy" in record for record in folder.read_metrics())


def test_all_clients_failing_stops_the_run_with_the_first_error(config):
    with pytest.raises(FederationError, match="clients 0, 1, 2, 3: TrainingError: the .* loss is"):
        run(config("training.lr=1e30", "training.local_epochs=4"))


@pytest.mark.slow
def test_another_seed_is_another_run(config, tmp_path):
    runs = [run(config(f"seed={s}", f"run_dir={tmp_path / str(s)}"))[1] for s in (0, 1)]
    a, b = (load_encoder(folder.path).backbone.state_dict() for folder in runs)
    assert not all(torch.equal(a[name], b[name]) for name in a)


def test_images_without_labels_train_without_evaluation(config, tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(12):
        pixels = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.png")
    given = config(
        "data=image_folder",
        f"data.root={tmp_path / 'photos'}",
        "data.image_size=16",
        "partition=iid",
        "federation.clients=3",
    )
    summary, folder = run(given)
    assert "knn" not in summary and summary["rounds"] == 2
    assert load_encoder(folder.path).spec.channels == 3


def test_a_client_of_another_version_says_how_to_mend_it(tiny):
    config = tiny()
    learner = build_learner(config, 1)
    grid = InlineGrid(client_app)
    content_config = {"config": config.to_json(), "schema": "old", "round": 1, "train": True}
    content_config["client"] = "0"
    from flwr.app import ConfigRecord, RecordDict

    arrays = to_record(pack_state(learner, Schemas.of(learner, config)))
    content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(content_config)})
    (reply,) = grid.send_and_receive([Message(content, 1, "train")])
    assert "both must run the same version" in reply.error.reason


def test_a_full_disk_stops_the_run_so_that_it_can_be_resumed(config, monkeypatch):
    given = config()
    folder = RunFolder.create(given)
    append, calls = RunFolder.append_metrics, []

    def full_at_the_second_record(self, record):
        calls.append(record["round"])
        if record["round"] == 1 and len(calls) == 2:
            raise OSError(28, "No space left on device", str(self.metrics))
        append(self, record)

    monkeypatch.setattr(RunFolder, "append_metrics", full_at_the_second_record)
    with pytest.raises(FederationError, match=r"cannot write the run folder .*No space left"):
        run(given, folder=folder)
    assert run(given, folder=folder)[0]["rounds"] == 2
    assert [r["round"] for r in folder.read_metrics()] == [0, 1, 2]


@pytest.mark.parametrize("wire", ["float32", "int8"])
@pytest.mark.slow
def test_a_model_that_overflows_is_not_kept_and_the_run_goes_on_from_before(config, tmp_path, wire):
    """The server's steps are too large for what a broken client sends once, in round 2."""
    overrides = (f"federation.wire={wire}", "federation.rounds=3", "evaluation.every=1000",
                 "server_optimizer=momentum", "server_optimizer.lr=2")  # fmt: skip
    whole, _ = run(config(*overrides))

    def huge(client, round_, reply):
        if round_ == 2:
            arrays = from_record(reply.content[ARRAYS])
            values = {
                "float32": {"shared": 3e38},
                "int8": {"update.int8": 127, "update.scales": 2e36},
            }
            for name, value in values[wire].items():
                arrays[name] = np.full_like(arrays[name], value)
            reply.content[ARRAYS] = to_record(arrays)

    given = config(*overrides, f"run_dir={tmp_path / 'overflown'}")
    folder = RunFolder.create(given)
    with np.errstate(over="ignore"), pytest.raises(FederationError, match=r"^round 2: .* finite"):
        run(given, meddling(huge), folder)
    assert [r["round"] for r in folder.read_metrics()] == [0, 1]
    summary, _ = run(given, folder=RunFolder.resume(folder.path))
    assert summary["rounds"] == 3 and summary["knn"] == whole["knn"]


def test_broken_files_are_counted_where_a_person_sees_it(config, tmp_path, capsys):
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for i in range(8):
        Image.new("RGB", (20, 20), (i * 30, 0, 0)).save(tmp_path / "photos" / f"{i}.png")
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no picture")
    given = config(
        "data=image_folder", f"data.root={tmp_path / 'photos'}", "data.image_size=8",
        "partition=iid", "federation.clients=2", "federation.rounds=1",
    )  # fmt: skip
    with make_progress("plain", 1) as progress:
        federate(given, RunFolder.create(given), progress)
    assert "1 image files could not be read" in capsys.readouterr().out


def test_private_centroids_are_counted_and_end_with_the_budget(config, tmp_path):
    """Three releases fit into the total: in the last round all clients train and send no row.

    In the first one neither, of an encoder that nobody has trained.
    """
    total = spent({calibrate(20.0, 1e-3): 3}, 1e-3) + 1e-6
    rows = []

    def note(client, round_, reply):
        rows.append((round_, len(from_record(reply.content[ARRAYS])["local_centroids"])))

    summary, folder = run(config(*PRIVATE, f"privacy.total_epsilon={total}"), meddling(note))
    assert all(number == 0 for round_, number in rows if round_ in (1, 5))
    assert any(number > 0 for round_, number in rows if 1 < round_ < 5)
    records = folder.read_metrics()
    assert [r["clients"]["ok"] for r in records] == [0, 4, 4, 4, 4, 4]
    counts = [r["privacy"]["centroids"]["releases"] for r in records]
    assert counts == [{}, {}, *({str(c): n for c in range(4)} for n in (1, 2, 3, 3))]
    assert summary["epsilon_spent"] == pytest.approx(total, abs=1e-5)
    assert summary["privacy"]["centroids"] == records[-1]["privacy"]["centroids"]
    assert summary["k_anonymity"] is None


@pytest.mark.slow
def test_the_ledger_of_a_run_that_was_killed_and_resumed_is_exact(config, tmp_path):
    overrides = (*PRIVATE, "federation.participation=0.5")
    whole_summary, whole = run(config(*overrides))

    def pull_the_plug(client, round_, reply):
        if round_ == 3:
            raise KeyboardInterrupt

    torn = config(*overrides, f"run_dir={tmp_path / 'torn'}")
    folder = RunFolder.create(torn)
    with pytest.raises(KeyboardInterrupt):
        run(torn, meddling(pull_the_plug), folder)
    summary, _ = run(torn, folder=RunFolder.resume(folder.path))
    assert summary["privacy"] == whole_summary["privacy"]
    assert same(kept(whole), kept(folder))


def test_noise_that_leaves_no_centroid_is_told_and_the_first_directions_stay(
    config, monkeypatch, capsys
):
    """A small cohort may be unlucky: the next one is another."""
    monkeypatch.setattr(
        "orchestra_flwr.clustering.clusterings.private.private_clustering",
        lambda features, *_, **__: features[:0],
    )
    given = config(*PRIVATE, "federation.rounds=2")
    folder = RunFolder.create(given)
    with make_progress("plain", 2) as progress:
        federate(given, folder, progress)
    text = " ".join(capsys.readouterr().out.split())
    assert "round 1: no client" not in text
    assert (
        "round 2: no client sent centroids, the noise of privacy.epsilon=20 left none: raise it, "
        "or have clients with more (federation.min_images=1); the server's state stays as it is"
    ) in text
    first, last = (build_learner(given, 1), restored(given, folder))
    assert torch.equal(first.method.global_centroids, last.load("model").method.global_centroids)


def test_a_delta_that_protects_nobody_is_refused(config):
    given = config(*PRIVATE, "privacy.delta=0.2")
    with pytest.raises(ConfigError, match=r"privacy.delta=0.2: must be below 1 / \d+"):
        check_population(given, load_population(given))


def test_clients_score_the_averages_and_only_figures_leave(config):
    """Real messages of the evaluate phase, and where their figures end."""
    seen = []

    def evaluate(message, context):
        reply = client_app(message, context)
        seen.append(reply.content)
        return reply

    scored = config("evaluation.unsupervised=true", "evaluation.every=2")
    summary, folder = run(scored, app=app_of(evaluate=evaluate))
    assert len(seen) == 2 * 4  # after rounds 0 and 2
    for content in seen:
        assert not content.array_records
        assert set(content[METRICS]) == {"examples", *LabelFreeScores.ranges(1)}
    records = folder.read_metrics()
    assert [("unsupervised" in r) for r in records] == [True, False, True]
    last = seen[4:]
    images = sum(content[METRICS]["examples"] for content in last)
    mean = sum(c[METRICS]["examples"] * c[METRICS]["alignment"] for c in last) / images
    assert images == 120
    assert summary["unsupervised"] == records[2]["unsupervised"]
    assert summary["unsupervised"]["alignment"] == pytest.approx(mean)
    assert summary["untrained"]["unsupervised"] == records[0]["unsupervised"]
    assert records[2]["bytes_down"] > 1.9 * records[1]["bytes_down"]


def test_scores_of_an_earlier_round_are_not_those_of_the_run(config):
    """No client answered after the last round; what they said before is of another encoder."""

    def evaluate(message, context):
        if message.content[CONFIG]["round"] == 2:
            return Message(Error(TIMEOUT_CODE, "no reply"), reply_to=message)
        return client_app(message, context)

    summary, folder = run(config("evaluation.unsupervised=true"), app=app_of(evaluate=evaluate))
    assert ["unsupervised" in record for record in folder.read_metrics()] == [True, False, False]
    assert "unsupervised" not in summary


def test_a_client_that_did_not_answer_is_not_waited_for_again_in_the_round(config):
    scored = []

    def train(message, context):
        task = message.content[CONFIG]
        if (task["client"], task["round"]) == ("1", 2):
            return Message(Error(TIMEOUT_CODE, "no reply"), reply_to=message)
        return client_app(message, context)

    def evaluate(message, context):
        scored.append((message.content[CONFIG]["round"], message.content[CONFIG]["client"]))
        return client_app(message, context)

    run(config("evaluation.unsupervised=true"), app=app_of(train, evaluate))
    assert {name for number, name in scored if number == 2} == {"0", "2", "3"}
    assert {name for number, name in scored if number == 0} == {"0", "1", "2", "3"}


def test_the_backbone_to_keep_can_be_chosen(config):
    summary, folder = run(config("evaluation.backbone=online", "federation.rounds=1"))
    scores = folder.read_metrics()[-1]["scores"]
    assert list(scores) == ["online", "target"]
    assert summary["knn"] == scores["online"]["knn"] and "target" in summary
    assert json.loads((folder.path / "encoder.json").read_text())["about"]["backbone"] == "online"
    method = restored(config(), folder).learner.method
    backbone = load_encoder(folder.path).backbone.state_dict()
    for name, tensor in method.backbone.state_dict().items():
        if tensor.is_floating_point():
            assert torch.equal(backbone[name], tensor)


def test_a_backbone_that_the_method_does_not_have_is_refused(tiny):
    with pytest.raises(ConfigError, match="evaluation.backbone=x: must be null or one of target"):
        build_learner(tiny("evaluation.backbone=x"), 1)


def test_the_share_of_a_round_in_which_nobody_trains_is_told(config):
    """Every client says that it worked for a tenth of a millisecond."""

    def change(client, round_, reply):
        reply.content[METRICS]["seconds"] = 1e-4

    folder = RunFolder.create(config())
    with make_progress("off", 2) as progress:
        federate(config(), folder, progress, meddling(change), workers=4)
    for record in folder.read_metrics():
        asked = record["clients"]["ok"]
        assert record["overhead"] == pytest.approx(1 - 1e-4 * asked / (4 * record["seconds"]))


def test_clients_are_not_told_where_the_server_has_its_weights(federate, watched, tiny, tmp_path):
    timm = pytest.importorskip("timm", reason="needs the extra timm")
    file, configs = tmp_path / "first.safetensors", []
    save_file(timm.create_model("mobilenetv3_small_050").state_dict(), file)
    network = ["model=timm", "model.timm=mobilenetv3_small_050", "model.batch_norm=averaged"]
    config = tiny(
        "method=simclr",
        *network,
        f"model.weights={file}",
        "data.image_size=8",
        "federation.rounds=1",
    )
    federate(
        config, app=watched(lambda _, __, sent, ___: configs.append(sent[CONFIG]["config"])),
        evaluate=False,
    )  # fmt: skip
    assert configs and all('"first.safetensors"' in text for text in configs)
    assert not any(str(tmp_path) in text for text in configs)
