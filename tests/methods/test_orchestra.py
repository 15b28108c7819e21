import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.clustering import consistency
from orchestra_flwr.clustering.local_clusters import local_clustering
from orchestra_flwr.clustering.solvers.gradient import gradient_clustering
from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import MethodConfig
from orchestra_flwr.methods import Batch, Received, Role, build_method
from orchestra_flwr.methods.orchestra import RECIPES, cluster_loss
from orchestra_flwr.seeding import ClientSeed

SEED = ClientSeed(0, 1, "0")


def pictures(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=generator)


IMAGES = pictures(28)  # all different


def slow_cluster_loss(target, online, centroids, temperature):
    """Equation 4, sample by sample and cluster by cluster."""

    def assign(feature):
        weights = [
            math.exp(sum(f * c for f, c in zip(feature, centroid, strict=True)) / temperature)
            for centroid in centroids
        ]
        return [w / sum(weights) for w in weights]

    losses = [
        -sum(p * math.log(q) for p, q in zip(assign(t), assign(o), strict=True))
        for t, o in zip(target, online, strict=True)
    ]
    return sum(losses) / len(losses)


def unit(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=generator), dim=-1)


def batch(config, n=6, channels=1, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    views = tuple(torch.rand(n, channels, size, size, generator=generator) for _ in RECIPES)
    return Batch(torch.arange(n), views, (None, None, torch.arange(n) % 4), generator)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_cluster_loss_agrees_with_the_formula(temperature):
    target, online, centroids = unit(5, 7, seed=1), unit(5, 7, seed=2), unit(4, 7, seed=3)
    expected = slow_cluster_loss(target.tolist(), online.tolist(), centroids.tolist(), temperature)
    assert cluster_loss(target, online, centroids, temperature).item() == pytest.approx(
        expected, rel=1e-5
    )


def test_cluster_loss_is_least_where_assignments_agree():
    target, centroids = unit(5, 7, seed=1), unit(4, 7, seed=3)
    agreeing = cluster_loss(target, target, centroids, 0.1)
    assert agreeing < cluster_loss(target, unit(5, 7, seed=2), centroids, 0.1)


def test_only_online_encoder_and_rotation_head_learn(tiny):
    method = build_method(tiny(), 1).train()
    method.global_centroids.copy_(unit(4, 16, seed=0))
    sum(method.loss(batch(tiny())).losses.values()).backward()
    learning = {
        name.partition(".")[0] for name, p in method.named_parameters() if p.grad is not None
    }
    assert learning == {"backbone", "projector", "rotation_head"}
    assert all(p.grad.abs().sum() > 0 for p in method.backbone.parameters())


def test_each_view_goes_where_it_belongs(tiny):
    config = tiny()

    def parts(change: int | None):
        method = build_method(config, 1).train()
        method.global_centroids.copy_(unit(4, 16, seed=0))
        plain = batch(config)
        views = list(plain.views)
        if change is not None:
            views[change] = views[change].flip(-1)
        losses = method.loss(replace(plain, views=tuple(views))).losses
        return (
            losses["cluster"].item(),
            losses["rotation"].item(),
            method.clustering.memory.features.clone(),
        )

    cluster, rotation, memory = parts(None)
    for change, changed in (
        (0, (True, False, True)),
        (1, (True, False, False)),
        (2, (False, True, False)),
    ):
        new_cluster, new_rotation, new_memory = parts(change)
        assert (new_cluster != cluster) == changed[0]
        assert (new_rotation != rotation) == changed[1]
        assert (not torch.equal(new_memory, memory)) == changed[2]


def test_the_memory_is_gone_after_the_round_and_the_centroids_are_the_servers(tiny):
    method = build_method(tiny(), 1).train()
    method.observe(batch(tiny()))
    names = {role: {n for n in method.state_dict() if method.role(n) is role} for role in Role}
    assert names[Role.SERVER] == {"global_centroids"}
    assert {name.partition(".")[0] for name in names[Role.TRANSIENT]} == {"clustering"}
    assert names[Role.LOCAL] == set()
    method.start_round(Received("0", 0, 2, IMAGES))
    assert len(method.clustering.memory) == 0


def test_observing_leaves_all_that_is_shared_bit_identical(tiny):
    method = build_method(tiny(), 1).train()
    state = method.state_dict()
    before = {n: t.clone() for n, t in state.items() if not n.startswith("clustering.")}
    method.observe(batch(tiny()))
    after = method.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert len(method.clustering.memory) == 6


def test_observed_features_are_those_of_the_batch_in_training_mode(tiny):
    method = build_method(tiny(), 1).train()
    seen = batch(tiny())
    method.observe(seen)
    expected = method.target_projector(method.target_backbone(seen.views[0]))
    observed = method.clustering.memory.features[-len(method.clustering.memory) :]
    torch.testing.assert_close(observed, F.normalize(expected, dim=1).detach())


def test_what_a_client_sends_is_the_local_clustering_of_what_it_saw(tiny):
    """Algorithm 1, line 18: an image and its copy are one, and the client's randomness decides."""
    method = build_method(tiny(), 1).train()
    method.observe(batch(tiny(), n=28))
    images = IMAGES.clone()
    images[1:14] = images[0]
    expected = local_clustering(
        method.clustering.memory.latest(images), 2, SEED.generator("cluster"), k_min=2
    )
    sent = method.end_round(images, SEED)
    assert torch.equal(sent.arrays["local_centroids"], expected.centroids)
    assert sent.smallest_group == expected.sizes.min()


def test_noise_in_averages_needs_private_centroids(tiny):
    """Centroids are sent to all clients, so what one has moves the updates of all others."""
    noisy = ("federation.weighting=uniform", "privacy.clip=1", "privacy.noise_multiplier=1",
             "model.norm=group")  # fmt: skip
    for name in ("orchestra", "orchestra_plus"):
        with pytest.raises(ConfigError) as error:
            tiny(f"method={name}", *noisy)
        assert str(error.value) == (
            f"privacy.noise_multiplier=1: must be 0 with method={name}, whose clients send "
            "centroids without noise: the next rounds' updates depend on them "
            "(clustering=private adds noise)"
        )
        tiny(f"method={name}", *noisy, "clustering=private", "privacy.epsilon=8")


def test_server_state_is_the_clustering_of_all_centroids(tiny, generator):
    method = build_method(tiny(), 1)
    points = unit(40, 16, seed=4)
    method.update_server_state({"local_centroids": points}, generator)
    centroids = method.global_centroids
    torch.testing.assert_close(centroids.norm(dim=1), torch.ones(4))
    assert (points @ centroids.T).max(1).values.mean() > (points @ unit(16, 4, seed=5)).max(
        1
    ).values.mean()


@pytest.mark.slow
def test_what_is_measured_of_the_clusters(tiny, generator):
    """The first centroids have none before them; the same points in the next round stay as put."""
    method = build_method(tiny("clustering.solver=gradient"), 1)
    points = {"local_centroids": unit(40, 16, seed=4)}
    assert method.update_server_state(points, generator) == {}
    before = method.global_centroids.clone()
    measured = method.update_server_state({"local_centroids": unit(40, 16, seed=5)}, generator)
    after = method.global_centroids
    assert measured == {"consistency": consistency(unit(40, 16, seed=5), before, after)}
    step = method.train().loss(batch(tiny()))
    measures = step.measures()
    assert measures.keys() == {"agreement", "assignment_entropy"}
    assert measures["agreement"] * 6 == pytest.approx(round(float(measures["agreement"] * 6)))
    assert 0 < measures["assignment_entropy"] <= math.log(4)


def test_nothing_is_measured_of_single_batches_beside_privacy(tiny):
    config = tiny("clustering=private", "privacy.epsilon=8")
    assert build_method(config, 1).train().loss(batch(config)).measures() == {}


@pytest.mark.slow
def test_the_gradient_solver_goes_on_from_the_last_rounds_centroids(tiny, generator):
    method = build_method(tiny("clustering.solver=gradient"), 1)
    points = {"local_centroids": unit(40, 16, seed=4)}
    before = unit(4, 16, seed=6)
    method.global_centroids.copy_(before)
    method.update_server_state(points, generator)
    assert torch.equal(
        method.global_centroids, gradient_clustering(points["local_centroids"], before, generator)
    )


def test_methods_are_found_by_their_files():
    methods = MethodConfig.room.found()
    assert methods["orchestra"].__name__ == "Orchestra"
    assert not {"base", "frames", "labels", "release", "roles"} & methods.keys()


def test_initialised_by_the_runs_seed_alone(tiny):
    torch.manual_seed(1)
    first = build_method(tiny(), 1).state_dict()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = build_method(tiny(), 1).state_dict()
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's randomness is disturbed
    assert all(torch.equal(first[n], again[n]) for n in first)
    other = build_method(tiny("seed=1"), 1).state_dict()
    assert not torch.equal(first["rotation_head.weight"], other["rotation_head.weight"])


def test_target_starts_as_the_online_encoder(tiny):
    method = build_method(tiny(), 1)
    for a, b in zip(method.backbone.parameters(), method.target_backbone.parameters(), strict=True):
        assert torch.equal(a, b) and a is not b


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["method.ema=1"], "method.ema=1"),
        (["method.temperature=0"], "method.temperature=0"),
        (["+method.emaa=.9"], "method.emaa: unknown option of method=orchestra, which has "),
        (["method.name=mocov9"], "method=mocov9: must be one of barlow_twins, byol, "),
    ],
)
def test_wrong_options_are_refused(tiny, overrides, says):
    with pytest.raises(ConfigError) as error:
        build_method(tiny(*overrides), 1)
    assert str(error.value).startswith(says)


def test_without_rotation_neither_view_nor_head_nor_pass_is_left(tiny):
    config = tiny("method.rotation=false")
    method = build_method(config, 1).train()
    passes = []
    method.backbone.register_forward_hook(lambda *_: passes.append(1))
    method.global_centroids.copy_(unit(4, 16, seed=0))
    three = batch(config)
    two = replace(three, views=three.views[:2], rotations=(None, None))
    parts = method.loss(two).losses
    assert method.recipes() == RECIPES[:2]
    assert set(parts) == {"cluster"} and len(passes) == 1
    assert not any("rotation" in name for name in method.state_dict())


def test_without_rotation_the_cluster_loss_is_the_same(tiny):
    """BatchNorm in training mode: the rotated view's pass changes nothing of the other's."""
    losses = []
    for switch in ("true", "false"):
        method = build_method(tiny(f"method.rotation={switch}"), 1).train()
        method.global_centroids.copy_(unit(4, 16, seed=0))
        losses.append(method.loss(batch(tiny())).losses["cluster"].item())
    assert losses[0] == losses[1]


def test_without_a_target_the_online_encoder_assigns_without_gradient(tiny):
    config = tiny("method.target=false", "method.rotation=false")
    method = build_method(config, 1).train()
    method.global_centroids.copy_(unit(4, 16, seed=0))
    step = batch(config)
    before = {name: p.clone() for name, p in method.named_parameters()}
    loss = method.loss(step).losses["cluster"]
    online = [
        F.normalize(method.projector(method.backbone(view)), dim=1) for view in step.views[:2]
    ]
    torch.testing.assert_close(
        method.clustering.memory.features[-len(method.clustering.memory) :], online[0].detach()
    )
    expected = cluster_loss(online[0].detach(), online[1], method.global_centroids, 0.1)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    got = next(method.backbone.parameters()).grad.clone()
    method.zero_grad()
    expected.backward()
    torch.testing.assert_close(got, next(method.backbone.parameters()).grad)
    assert all(torch.equal(before[name], p) for name, p in method.named_parameters())


def floats(module):
    return [(n, t) for n, t in module.state_dict().items() if t.is_floating_point()]


def test_without_a_target_there_is_none_to_send_or_to_keep(tiny):
    with_, without = build_method(tiny(), 1), build_method(tiny("method.target=false"), 1)
    assert not any("target" in name for name in without.state_dict())
    assert list(without.backbones()) == ["online"]
    sizes = [
        sum(t.numel() for n, t in floats(m) if m.role(n) is Role.SHARED) for m in (with_, without)
    ]
    target = [with_.target_backbone, with_.target_projector]
    assert sizes[0] - sizes[1] == sum(t.numel() for m in target for _, t in floats(m))
