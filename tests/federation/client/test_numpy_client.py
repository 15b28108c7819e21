from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from orchestra_flwr import process_memory
from orchestra_flwr.evaluation import label_free_scores
from orchestra_flwr.federation.client.numpy_client import OrchestraClient
from orchestra_flwr.federation.client.state_folder import ClientStateFolder
from orchestra_flwr.federation.exchanges import clusters
from orchestra_flwr.federation.messages.schema import Schemas, pack_state
from orchestra_flwr.methods import Role
from orchestra_flwr.methods.orchestra import Orchestra
from orchestra_flwr.models import recalibrated
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, client_threads, torch_threads, train_round


def images(n=20):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=generator)


def down(config):
    """What a server sends: its state as flat arrays, in the client's order."""
    learner = build_learner(config, 1)
    learner.method.global_centroids.copy_(torch.eye(4, 16))
    return learner, list(pack_state(learner, Schemas.of(learner, config)).values())


def test_fit_is_local_training_of_the_received_state(tiny):
    config = tiny()
    learner, parameters = down(config)
    arrays, examples, metrics = OrchestraClient(config, "3", images()).fit(
        parameters, {"round": 2, "train": True}
    )
    seed = ClientSeed(config.seed, 2, 3)
    with torch_threads(config.training.threads):
        expected = train_round(learner, images(), config, seed)
    np.testing.assert_array_equal(
        arrays[0], Schemas.of(learner, config).shared.pack(learner.state(Role.SHARED))
    )
    np.testing.assert_array_equal(arrays[1], expected.contribution.arrays["local_centroids"])
    assert examples == 20
    assert metrics["loss/cluster"] == expected.losses["cluster"]
    assert metrics["smallest_group"] == expected.contribution.smallest_group


def test_the_first_round_returns_centroids_only(tiny):
    config = tiny()
    arrays, _, metrics = OrchestraClient(config, "0", images()).fit(
        down(config)[1], {"round": 0, "train": False}
    )
    assert [a.shape for a in arrays] == [(2, 16)]
    assert metrics["steps"] == 0 and not any(name.startswith("loss") for name in metrics)


def test_memory_goes_back_after_a_round_unless_other_threads_would_wait_for_it(tiny, monkeypatch):
    given_back = []
    libc = SimpleNamespace(malloc_trim=given_back.append)
    monkeypatch.setattr(process_memory, "_libc", lambda: libc)
    config = tiny()
    parameters = down(config)[1]

    def fit(client):
        OrchestraClient(config, client, images()).fit(parameters, {"round": 0, "train": False})

    with client_threads(2, torch.device("cpu")) as threads:
        list(threads.map(fit, "01"))
    assert given_back == []
    fit("2")
    assert given_back == [0]


@pytest.mark.parametrize("method", ["orchestra", "byol", "swav", "supervised"])
def test_a_copy_of_a_learner_is_as_good_as_a_new_one_and_leaves_it_alone(tiny, method):
    config = tiny(f"method={method}")
    untrained, labels = build_learner(config, 1), torch.arange(20) % 10
    before = {name: tensor.clone() for name, tensor in untrained.state_dict().items()}
    parameters = [*pack_state(untrained, Schemas.of(untrained, config)).values()]
    built, copied = (
        OrchestraClient(config, "3", images(), labels, untrained=given).fit(
            parameters, {"round": 1, "train": True}
        )
        for given in (None, untrained)
    )
    assert all(map(np.array_equal, built[0], copied[0])) and len(built[0]) == len(copied[0])
    assert all(torch.equal(untrained.state_dict()[name], old) for name, old in before.items())


def test_a_client_remembers_nothing_between_rounds(tiny):
    config = tiny()
    _, parameters = down(config)
    client = OrchestraClient(config, "0", images())
    client.fit(parameters, {"round": 1, "train": True})
    again, _, _ = client.fit(parameters, {"round": 2, "train": True})
    fresh, _, _ = OrchestraClient(config, "0", images()).fit(
        parameters, {"round": 2, "train": True}
    )
    for a, b in zip(again, fresh, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("method", ["simclr", "byol", "mocov2", "orchestra"])
def test_a_first_round_that_failed_leaves_nothing_behind(tiny, tmp_path, monkeypatch, method):
    """With norms of the client's own: the next try, another one and scores are a new client's."""
    config = tiny(f"method={method}", "merging=fedbn", "evaluation.unsupervised=true")
    learner = build_learner(config, 1)
    parameters = list(pack_state(learner, Schemas.of(learner, config)).values())

    def a_client(name):
        folder = ClientStateFolder(tmp_path / name, "run")
        return OrchestraClient(config, "0", images(40), state_folder=folder)

    def fit(client):
        return client.fit([a.copy() for a in parameters], {"round": 1, "train": True})[0]

    def scores(client):
        return client.evaluate([a.copy() for a in parameters], {"round": 1})

    untrained, expected = scores(a_client("new")), fit(a_client("another"))
    client = a_client("failing")
    passes, original = [], type(client.learner.method).loss

    def failing(self, batch):
        passes.append(batch)
        if len(passes) > 1:
            raise RuntimeError("the device went away")
        return original(self, batch)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="went away"):
        patch.setattr(type(client.learner.method), "loss", failing)
        fit(client)
    assert scores(client) == untrained
    for _ in range(2):
        for ours, theirs in zip(fit(client), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert scores(client) != untrained


def test_each_model_is_judged_with_the_same_target_of_the_clients_own(tiny, tmp_path, monkeypatch):
    """A loss moves the target, which stays with the client; the next model begins anew."""
    config = tiny("method=byol", "merging=fedu", "exchange=clusters", "exchange.assign=loss")
    learner = build_learner(config, 1)
    parameters = list(pack_state(learner, Schemas.of(learner, config)).values())
    targets = []

    def judged(offer, name):
        offer.load(name)
        target = offer.learner.state(Role.LOCAL)["target_backbone.layers.0.weight"]
        targets.append(target.clone())
        target.add_(1)
        return 0.0

    monkeypatch.setattr(clusters, "_mean_loss", judged)
    folder = ClientStateFolder(tmp_path / "client", "run")
    client = OrchestraClient(config, "0", images(), state_folder=folder)
    names = ["cluster-0", "cluster-1"]
    _, _, metrics = client.fit(
        [*parameters, *parameters], {"round": 2, "train": True, "models": names}
    )
    assert metrics["model"] == "cluster-0" and len(targets) == 2
    assert torch.equal(targets[0], targets[1])


def test_what_is_sent_is_float32_in_either_precision(tiny):
    config = tiny("training.precision=bfloat16")
    client = OrchestraClient(config, "0", images())
    for train in (False, True):
        arrays, _, _ = client.fit(down(config)[1], {"round": 1, "train": train})
        assert {a.dtype for a in arrays} == {np.dtype(np.float32)}


def test_a_client_moves_its_state_by_no_more_than_the_clip(tiny):
    def sent(*overrides):
        """The update of every tensor that the client sends."""
        config = tiny("federation.weighting=uniform", *overrides)
        learner, parameters = down(config)
        client = OrchestraClient(config, "0", images())
        arrays, _, _ = client.fit([p.copy() for p in parameters], {"round": 1, "train": True})
        after, before = client.schemas.shared.views(arrays[0]), learner.state(Role.SHARED)
        return {name: (after[name].double() - before[name]).numpy() for name in after}

    whole = sent()
    bound, loose = (sent(f"privacy.clip={clip}") for clip in (0.05, 1e6))
    assert {name for name in whole if name not in loose} == {
        name for name in whole if "running" in name
    }  # statistics of features are no update, and are not sent
    norm = np.linalg.norm(np.concatenate([update.ravel() for update in loose.values()]))
    assert norm > 0.09
    for name, update in loose.items():
        np.testing.assert_array_equal(update, whole[name])
        np.testing.assert_allclose(bound[name], update * 0.05 / norm, atol=1e-6)


def updated(config, name="0", round_=1):
    """The update that a client sends, decoded, and the client."""
    client = OrchestraClient(config, name, images())
    arrays, _, _ = client.fit(down(config)[1], {"round": round_, "train": True})
    sent = dict(zip([*client.returns, *client.contributes], arrays, strict=True))
    return client.schemas.codec.decode("update", sent), client


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_an_update_is_local_training_from_the_rounded_state(tiny, wire):
    """Its rounding follows from the client's seed of that round alone."""
    config = tiny(f"federation.wire={wire}")
    update, client = updated(config, "3", 2)
    learner, parameters = down(config)
    codec, seed = client.schemas.codec, ClientSeed(config.seed, 2, "3")
    arrived = codec.decode("shared", dict(zip(client.receives, parameters, strict=True)))
    client.schemas.shared.unpack(arrived, learner.state(Role.SHARED))
    with torch_threads(config.training.threads):
        train_round(learner, images(), config, seed)
    change = client.schemas.shared.pack(learner.state(Role.SHARED)) - arrived
    assert np.abs(change).max() > 0.01

    def rounded(generator):
        return codec.decode("update", codec.encode("update", change, generator))

    np.testing.assert_array_equal(update, rounded(seed.generator("wire")))
    if wire == "int8":
        others = (ClientSeed(config.seed, 3, "3"), ClientSeed(config.seed, 2, "4"))
        assert all((update != rounded(other.generator("wire"))).any() for other in others)
        assert (update != rounded(None)).any()


def test_a_clipped_update_is_within_the_clip_but_for_its_rounding(tiny):
    update, _ = updated(
        tiny("federation.wire=int8", "federation.weighting=uniform", "privacy.clip=0.05")
    )
    assert np.linalg.norm(update.astype(np.float64)) == pytest.approx(0.05, rel=1e-2)


@pytest.mark.parametrize("train", [True, False])
def test_a_client_that_may_not_contribute_sends_no_rows(tiny, train):
    config = tiny("clustering=private", "privacy.epsilon=1")
    arrays, _, metrics = OrchestraClient(config, "0", images()).fit(
        down(config)[1], {"round": 1, "train": train, "contribute": False}
    )
    assert arrays[-1].shape == (0, 16)
    assert len(arrays) == 1 + train and "smallest_group" not in metrics


def test_refuses_to_exist_without_images(tiny):
    with pytest.raises(ValueError, match="5 has 0 different images, federation.min_images=1"):
        OrchestraClient(tiny(), "5", images(0))


def test_copies_do_not_make_enough_images(tiny):
    federation = tiny().federation.model_copy(update={"min_images": 2})
    config = tiny().model_copy(update={"federation": federation})
    copies = images(1).repeat(16, 1, 1, 1)
    with pytest.raises(ValueError, match="has 1 different images, federation.min_images=2"):
        OrchestraClient(config, "5", copies)
    OrchestraClient(config, "5", torch.cat([copies, 255 - copies[:1]]))


def test_refuses_arrays_that_do_not_fit(tiny):
    with pytest.raises(ValueError, match="expected"):
        OrchestraClient(tiny(), "0", images()).fit(
            [np.zeros(3, np.float32), np.zeros(3, np.float32)], {"round": 1, "train": True}
        )


def test_evaluate_scores_the_received_kept_backbone(tiny):
    config = tiny("evaluation.backbone=online", "evaluation.unsupervised=true")
    learner, parameters = down(config)
    with torch.no_grad():
        next(learner.method.backbone.parameters()).mul_(-1.5)  # online and target differ
        for name, buffer in learner.method.named_buffers():
            if name.endswith("running_mean"):  # as after training: it has seen images
                buffer.fill_(1e-3)
    parameters[0] = Schemas.of(learner, config).shared.pack(learner.state(Role.SHARED))
    client = OrchestraClient(config, "3", images())
    loss, examples, scores = client.evaluate([p.copy() for p in parameters], {"round": 4})
    wanted = {}
    for name, backbone in learner.method.backbones().items():
        draw = ClientSeed(config.seed, 4, "3").generator("similarity")
        wanted[name] = label_free_scores(
            backbone, images(), config.data.augmentation, draw, 256, by="half"
        )
    assert wanted["online"] != wanted["target"]
    assert scores == asdict(wanted["online"])
    assert (loss, examples) == (-wanted["online"].score, 20)


@pytest.mark.parametrize(
    ("norms", "taken"),
    [("merging=replace", 1), ("merging=fedbn", 1), ("model.batch_norm=frozen", 0)],
)
@pytest.mark.parametrize("count", [20, 1])
def test_scores_beside_a_clip_have_statistics_of_images(
    tiny, monkeypatch, tmp_path, norms, taken, count
):
    """Those that the server sends are of none, as a client's own before its first round are."""
    config = tiny("evaluation.unsupervised=true", "privacy.clip=1",
                  "federation.weighting=uniform", norms)  # fmt: skip
    calls = []

    def noted(backbone, *rest, **more):
        calls.append(backbone)
        return recalibrated(backbone, *rest, **more)

    monkeypatch.setattr("orchestra_flwr.models.batch_norm.recalibrated", noted)
    client = OrchestraClient(
        config, "0", images(count), state_folder=ClientStateFolder(tmp_path / "state", "run")
    )
    _, examples, _ = client.evaluate(down(config)[1], {"round": 1})
    assert (len(calls), examples) == (taken, count)


@pytest.mark.parametrize("train", [True, False])
def test_a_method_learns_who_it_is_and_what_was_received(tiny, monkeypatch, train):
    """In the round before training as well; the state where a term needs it, which only trains."""
    seen = []
    monkeypatch.setattr(Orchestra, "start_round", lambda self, received: seen.append(received))
    config = tiny("terms.proximal.weight=1")
    learner, parameters = down(config)
    client = OrchestraClient(config, "3", images())
    client.fit(parameters, {"round": 1, "train": train, "index": 7})
    (received,) = seen
    assert (received.client, received.index, received.round) == ("3", 7, 1)
    assert received.images is client.images
    if not train:
        assert received.state is None
        return
    wanted = {**learner.state(Role.SHARED), **learner.state(Role.SERVER)}
    assert all(torch.equal(tensor, received.state[name]) for name, tensor in wanted.items())
    assert received.state.keys() == wanted.keys()


def test_what_is_not_needed_is_not_kept(tiny, monkeypatch):
    seen = []
    monkeypatch.setattr(Orchestra, "start_round", lambda self, received: seen.append(received))
    _, parameters = down(tiny())
    OrchestraClient(tiny(), "3", images()).fit(parameters, {"round": 1, "train": True})
    assert seen[0].state is None and seen[0].index is None


@pytest.mark.parametrize(
    "method", ["simclr", "spectral", "simsiam", "supervised", "semifed", "cbafed"]
)
def test_hidden_labels_never_reach_a_loss(tiny, method):
    """Garbage in their place ends in the same bits; garbage in place of a shown one does not."""
    config = tiny(f"method={method}", "labels.fraction=0.2", "terms.verification.weight=1",
                  "training.lr=0.1")  # fmt: skip
    learner = build_learner(config, 1)
    parameters = list(pack_state(learner, Schemas.of(learner, config)).values())
    labels = torch.arange(20) % 10
    shown = OrchestraClient(config, "3", images(), labels).labels >= 0
    assert shown.sum() == 4

    def sent(labels):
        client = OrchestraClient(config, "3", images(), labels)
        task = {"round": 1, "train": True, "index": 0, "population": 4}
        arrays, _, metrics = client.fit(parameters, task)
        return [array.tobytes() for array in arrays], metrics["loss/classification"]

    expected = sent(labels)
    assert sent(torch.where(shown, labels, 7 - labels.flip(0).clamp(max=7))) == expected
    assert sent(torch.where(shown, 9 - labels, labels)) != expected


def test_hidden_labels_are_hidden_before_training_as_well(tiny):
    """CBAFed's clients count their labels in the first round."""
    config = tiny("method=cbafed", "labels.fraction=0.2")
    learner = build_learner(config, 1)
    parameters = list(pack_state(learner, Schemas.of(learner, config)).values())
    client = OrchestraClient(config, "3", images(), torch.arange(20) % 10)
    (counts,), *_ = client.fit(parameters, {"round": 0, "train": False})
    shown = client.labels[client.labels >= 0]
    assert counts.tolist() == [torch.bincount(shown, minlength=10).tolist()] and counts.sum() == 4
