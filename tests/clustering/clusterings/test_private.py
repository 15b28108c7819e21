import copy

import pytest
import torch

from orchestra_flwr.config import ConfigError
from orchestra_flwr.methods import Received, build_method, release_of
from orchestra_flwr.privacy.accounting import ClusteringMechanism
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.training import build_learner, train_round

SEED = ClientSeed(0, 1, "0")


def pictures(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=generator)


def released(method, images, seed=SEED, round_=2):
    """What a client contributes of these images in a round without a step."""
    method.start_round(Received("0", 0, round_, images))
    return method.end_round(images, seed)


def test_the_first_centroids_follow_from_the_runs_seed_alone(tiny):
    def first(seed):
        config = tiny("clustering=private", "privacy.epsilon=2", f"seed={seed}")
        return build_method(config, 1).clustering.first_centroids()

    centroids = first(0)
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(len(centroids)))
    torch.rand(1)
    assert torch.equal(first(0), centroids) and not torch.equal(first(1), centroids)


def test_a_private_release_hides_an_image_with_all_its_copies(tiny, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "orchestra_flwr.clustering.clusterings.private.private_clustering",
        lambda features, *_, **__: seen.append(features) or features[:0],
    )
    method = build_method(tiny("clustering=private", "privacy.epsilon=2"), 1).train()
    once = pictures(5)
    released(method, once)
    released(method, torch.cat([once, once[:1].repeat(16, 1, 1, 1)]))
    assert torch.equal(*seen)


def test_other_features_get_other_noise(tiny, monkeypatch):
    """With the same noise, the difference of two releases would be that of the features."""
    keys = []
    monkeypatch.setattr(
        "orchestra_flwr.clustering.clusterings.private.private_clustering",
        lambda features, clusters, mechanism, key, **_: keys.append(key) or features[:0],
    )
    method = build_method(tiny("clustering=private", "privacy.epsilon=2"), 1).train()
    for _ in range(2):
        released(method, pictures(5))
    next(method.target_projector.parameters()).data += 1e-3
    released(method, pictures(5))
    assert keys[0] == keys[1] != keys[2] and {*map(len, keys)} == {32}


def test_private_centroids_see_every_image_once_and_alone(tiny, monkeypatch):
    """All images, not a memory; no image moves the feature of another; the state stays."""
    seen = []

    def note(features, clusters, mechanism, key, *, k_min, dimensions):
        assert (clusters, type(mechanism), len(key)) == (2, ClusteringMechanism, 32)
        assert (k_min, dimensions) == (3, 5)
        seen.append(features)
        return features[:1]

    monkeypatch.setattr("orchestra_flwr.clustering.clusterings.private.private_clustering", note)
    config = tiny(
        "clustering=private", "privacy.epsilon=2", "clustering.local_clusters=2",
        "privacy.k_min=3", "privacy.dimensions=5",
    )  # fmt: skip
    method = build_method(config, 1).train()
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    images = pictures(300)
    contribution = released(method, images)
    assert contribution.smallest_group is None and method.training
    assert all(torch.equal(method.state_dict()[name], tensor) for name, tensor in before.items())
    others = images.clone()
    others[7] = 255 - others[7]
    released(method, others)
    one, two = seen
    assert one.shape == (300, 16)
    assert (one != two).any(dim=1).nonzero().flatten().tolist() == [7]

    # Without an image the others keep their bits: every batch has one size, whatever is left.
    sizes = set()
    method.target_backbone.register_forward_hook(lambda _, inputs, __: sizes.add(len(inputs[0])))
    for count in (299, 65, 64, 1):
        released(method, images[-count:])
        assert torch.equal(seen[-1], one[-count:])
    assert sizes == {64}


def test_private_centroids_are_noise_that_the_key_alone_decides(tiny):
    config = tiny("clustering=private", "privacy.epsilon=50", "clustering.local_clusters=2")
    method = build_method(config, 1).train()

    def sent(seed):
        return released(method, pictures(300), seed).arrays["local_centroids"]

    assert sent(SEED).shape == (2, 16)
    torch.testing.assert_close(sent(SEED).norm(dim=1), torch.ones(2))
    assert torch.equal(sent(SEED), sent(SEED))
    secret = ClientSeed(0, 1, "0", secret_noise=True)
    assert not torch.equal(sent(secret), sent(secret))  # nobody who knows the seed can repeat it


def test_private_centroids_are_of_the_model_as_it_was_received(tiny):
    """Training moves it by every image; what the server sent, everybody may know."""
    config = tiny("clustering=private", "privacy.epsilon=50", "clustering.local_clusters=2")
    sent = []
    for epochs in (1, 3):
        learner = build_learner(config, 1)
        before = copy.deepcopy(learner.method.target_backbone.state_dict())
        result = train_round(
            learner,
            pictures(300),
            config.model_copy(
                update={"training": config.training.model_copy(update={"local_epochs": epochs})}
            ),
            ClientSeed(0, 2, "0"),
        )
        after = learner.method.target_backbone.state_dict()
        assert result.steps and any(not torch.equal(before[name], after[name]) for name in after)
        sent.append(result.contribution.arrays["local_centroids"])
    assert sent[0].shape == (2, 16) and torch.equal(*sent)


def test_nothing_private_is_released_of_a_model_that_nobody_has_trained(tiny):
    config = tiny("clustering=private", "privacy.epsilon=50", "clustering.local_clusters=2")
    learner = build_learner(config, 1)
    result = train_round(learner, pictures(300), config, ClientSeed(0, 1, "0"))
    assert result.contribution.arrays["local_centroids"].shape == (0, 16)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ("merging=fedbn",),
            "merging=fedbn: each client's own BatchNorm does not go with clustering=private, which",
        ),
        (
            ("model.batch_norm=recalibrated",),
            "model.batch_norm=recalibrated: must be null with clustering=private and BatchNorm",
        ),
        (
            ("model.batch_norm=local", "merging=replace"),
            "model.batch_norm=local: each client's own BatchNorm does not go with clustering=",
        ),
        *(  # that of the projector alone
            (
                ("federation.weighting=uniform", "privacy.clip=1", backbone),
                "privacy.clip=1: must be null with clustering=private and BatchNorm (model=",
            )
            for backbone in ("model=cct", "model.batch_norm=frozen")
        ),
        (
            ("federation.weighting=uniform", "privacy.clip=1", "model.norm=batch"),
            "privacy.clip=1: must be null with clustering=private and BatchNorm (model=convnet)",
        ),
    ],
)
def test_private_clustering_needs_a_model_that_all_receive(tiny, overrides, says):
    private = ("clustering=private", "privacy.epsilon=8")
    tiny(*overrides)
    with pytest.raises(ConfigError) as error:
        tiny(*private, *overrides)
    assert str(error.value).startswith(says)


def test_private_clusters_begin_as_random_directions(tiny):
    """The same for all who know the seed; nobody releases anything for them."""
    overrides = ("clustering=private", "privacy.epsilon=8")
    method, again, other = (
        build_method(tiny(*overrides, f"seed={seed}"), 1).global_centroids for seed in (1, 1, 2)
    )
    torch.testing.assert_close(method.norm(dim=1), torch.ones(4))
    assert torch.equal(method, again) and not torch.equal(method, other)
    plain = build_method(tiny(), 1)
    assert not plain.global_centroids.any()
    assert release_of(tiny()).first_round == 0
    assert release_of(tiny(*overrides)).first_round == 2
