"""User verification: golden values and identities of its loss, and the term beside any method."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from orchestra_flwr.config import ConfigError
from orchestra_flwr.config.choices import MergingConfig, MethodConfig
from orchestra_flwr.methods import Batch, Received, Role, Step
from orchestra_flwr.seeding import ClientSeed
from orchestra_flwr.terms.verification import user_verification_loss
from orchestra_flwr.training import build_learner, train_round

METHODS = sorted(MethodConfig.room.found())
MERGING = sorted(MergingConfig.room.found())
SEED = ClientSeed(0, 1, "0")
LABELS = torch.arange(40) % 10
SMALL = ("terms.verification.hidden=16", "terms.verification.dim=8")
ON = (*SMALL, "terms.verification.weight=1")


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def loss_of(features, rows, own, temperature=0.1, population=None):
    population = len(rows) if population is None else population
    return user_verification_loss(
        features, rows, torch.tensor([own]), temperature, torch.tensor([population])
    )


def simplex(count, dim):
    """Unit vectors of which any two have a cosine of -1 / (count - 1)."""
    corners = torch.eye(count, dtype=torch.float64) - 1 / count
    return F.pad(F.normalize(corners, dim=1), (0, dim - count)).float()


# --- the loss ---------------------------------------------------------------------------------


def slow_loss(features, rows, own, temperature):
    """-log r(s | z), image by image."""

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    total = 0.0
    for z in features:
        scores = [math.exp(cosine(z, row) / temperature) for row in rows]
        total -= math.log(scores[own] / sum(scores))
    return total / len(features)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_agrees_with_the_formula(temperature, count):
    features, rows = randn(count, 6), randn(5, 6, seed=1)
    expected = slow_loss(features.tolist(), rows.tolist(), 3, temperature)
    assert loss_of(features, rows, 3, temperature).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("clients", "golden"), [(100, 4.605), (20, 2.996)])
def test_equal_logits_are_log_s_whatever_the_temperature(clients, golden, temperature):
    rows = torch.ones(clients, 8)
    loss = loss_of(randn(5, 8), rows, 2, temperature).item()
    assert loss == pytest.approx(math.log(clients), rel=1e-6)
    assert loss == pytest.approx(golden, abs=1e-3)


@pytest.mark.parametrize(
    ("clients", "temperature", "golden"),
    [(100, 1, 3.612), (100, 0.5, 2.648), (100, 0.1, 0.0041),
     (20, 1, 2.032), (20, 0.5, 1.198), (20, 0.1, 0.0005)],
)  # fmt: skip
def test_every_client_its_own_direction(clients, temperature, golden):
    """log(1 + (S - 1) exp(-S / ((S - 1) tau))), with cosines on a simplex."""
    rows = simplex(clients, 128)
    loss = loss_of(rows[4:5], rows, 4, temperature).item()
    formula = math.log1p((clients - 1) * math.exp(-clients / (clients - 1) / temperature))
    assert loss == pytest.approx(formula, abs=1e-5)
    assert loss == pytest.approx(golden, abs=1e-3)


@pytest.mark.parametrize(
    ("clients", "temperature", "golden"),
    [(100, 1, 3.68), (100, 0.5, 2.98), (100, 0.1, 2.303),
     (20, 1, 2.07), (20, 0.5, 1.37), (20, 0.1, 0.693)],
)  # fmt: skip
def test_features_that_know_the_class_only_have_a_floor(clients, temperature, golden):
    """Ten classes, each of S / 10 clients, whose rows then are alike: at least log(S / 10)."""
    rows = simplex(10, 128).repeat(clients // 10, 1)
    loss = loss_of(rows[:1], rows, 0, temperature).item()
    assert loss == pytest.approx(golden, abs=5e-3)
    assert loss >= math.log(clients / 10) - 1e-6


@pytest.mark.parametrize(("temperature", "golden"), [(1.0, 4.61), (0.1, 5.03)])
def test_random_confidence_costs(temperature, golden):
    """Random unit rows and features, 100 clients, 128 dimensions: cosines of variance 1 / 128."""
    rows, features = randn(100, 128), randn(2000, 128, seed=1)
    loss = np.mean([loss_of(features, rows, row, temperature).item() for row in range(100)])
    assert loss == pytest.approx(golden, abs=0.05)  # that of a draw
    variance = 1 / 128 / temperature**2
    exact = math.log(100) + variance / 2 - (math.exp(variance) - 1) / 200
    assert loss == pytest.approx(exact, abs=0.01) and loss > math.log(100)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_features_that_know_nothing_of_the_client_do_no_better_than_chance(temperature):
    """Whatever the rows: the same features at all clients cost at least H(s) = log S."""
    for seed in range(20):
        rows, features = randn(12, 8, seed=seed), randn(1, 8, seed=100 + seed)
        loss = np.mean([loss_of(features, rows, row, temperature).item() for row in range(12)])
        assert loss >= math.log(12) - 1e-6


def test_five_hundred_rows_cannot_all_differ_in_128_dimensions():
    """No more than 129 rows form a simplex; of 500 some pair has a cosine of .076 or more."""
    rows = F.normalize(randn(500, 128), dim=1)
    cosines = (rows @ rows.T).fill_diagonal_(0).abs()
    welch = math.sqrt((500 - 128) / (128 * (500 - 1)))
    assert cosines.max() >= welch == pytest.approx(0.076, abs=5e-4)


def test_lengths_and_the_order_of_images_make_no_difference():
    features, rows = randn(6, 8), randn(5, 8, seed=1)
    loss = loss_of(features, rows, 2)
    lengths = torch.tensor([0.1, 2, 30, 4, 0.5])[:, None]
    for other in (
        loss_of(features * 7, rows, 2),
        loss_of(features, rows * lengths, 2),
        loss_of(features.flip(0), rows, 2),
    ):
        torch.testing.assert_close(other, loss)


def test_permuting_clients_together_with_rows_permutes_gradients():
    features, rows = randn(6, 8), randn(5, 8, seed=1)
    order = torch.tensor([3, 0, 4, 1, 2])
    gradients = []
    for chosen, row in ((rows, 4), (rows[order], 2)):
        leaf = chosen.clone().requires_grad_()
        loss_of(features, leaf, row).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0][order], gradients[1])


def test_rows_that_were_not_given_out_do_not_count():
    """Chance is log of the clients that are known, and no gradient reaches the others."""
    features, rows = randn(6, 8), randn(5, 8, seed=1).requires_grad_()
    loss = loss_of(features, rows, 1, population=3)
    torch.testing.assert_close(loss, loss_of(features, rows[:3], 1))
    assert loss_of(features, torch.ones(5, 8), 1, population=3).item() == pytest.approx(math.log(3))
    loss.backward()
    assert rows.grad[3:].abs().sum() == 0 and (rows.grad[:3].abs().sum(1) > 0).all()
    alone = loss_of(features, rows.detach(), 0, population=1)
    assert alone.item() == 0


def test_only_chosen_images_count():
    """Of the others neither the value nor a gradient depends; without images it is 0."""
    features, rows = randn(6, 8).requires_grad_(), randn(5, 8, seed=1)
    mask = torch.tensor([True, False, True, True, False, False])
    population, row = torch.tensor([5]), torch.tensor([2])
    loss = user_verification_loss(features, rows, row, 0.5, population, mask=mask)
    expected = loss_of(features[mask], rows, 2, temperature=0.5)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, features)
    assert not gradient[~mask].any() and (gradient[mask].abs().sum(1) > 0).all()
    nobody = user_verification_loss(features, rows, row, 0.5, population, mask=mask & ~mask)
    assert nobody.item() == 0


# --- the information it stands for --------------------------------------------------------------


def entropy(p):
    p = p[p > 0]
    return -(p * np.log(p)).sum()


def mutual_information(joint):
    """I(a; b) of a (A, B) table of probabilities."""
    return entropy(joint.sum(0)) + entropy(joint.sum(1)) - entropy(joint.ravel())


def conditional_information(joint):
    """I(a; b | c) of an (A, B, C) table."""
    return sum(
        joint[:, :, c].sum() * mutual_information(joint[:, :, c] / joint[:, :, c].sum())
        for c in range(joint.shape[2])
    )


def test_the_chain_rule_and_how_tight_the_bound_is():
    """With the exact r the bound misses I(z1; z2) by H(s | z1, z2), and by nothing else."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        table = rng.dirichlet(np.full(3 * 4 * 5, 0.3)).reshape(3, 4, 5)  # z1, z2, s
        whole = mutual_information(table.sum(2))
        first, second = table.sum(1), table.sum(0)  # with s
        within = conditional_information(table)
        given_second = conditional_information(table.transpose(0, 2, 1))  # I(z1; s | z2)
        chain = within + mutual_information(first) - given_second
        assert whole == pytest.approx(chain, abs=1e-12)

        client = entropy(table.sum((0, 1)))
        log_r = [
            (p[p > 0] * np.log((p / p.sum(1, keepdims=True))[p > 0])).sum() for p in (first, second)
        ]
        bound = within + sum(log_r) + client
        uncertainty = entropy(table.ravel()) - entropy(table.sum(2).ravel())
        assert whole - bound == pytest.approx(uncertainty, abs=1e-12)


def test_what_is_known_of_the_client_is_known_of_the_label_if_skew_is_all():
    """Proposition 2: s and z independent given y make I(z; y) >= I(z; s); otherwise not."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        y = rng.dirichlet(np.full(4, 0.5))
        s_of_y, z_of_y = rng.dirichlet(np.full(5, 0.3), 4), rng.dirichlet(np.full(6, 0.3), 4)
        label = (y[:, None] * z_of_y).T
        client = np.einsum("y,ys,yz->zs", y, s_of_y, z_of_y)
        assert mutual_information(label) >= mutual_information(client) - 1e-12
    shift = np.full((2, 2), 0.25)  # z = s, y independent of both
    assert mutual_information(shift) == pytest.approx(0, abs=1e-12)
    assert mutual_information(np.diag([0.5, 0.5])) == pytest.approx(math.log(2))


# --- the term -----------------------------------------------------------------------------------


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=generator)


def a_learner(config):
    learner = build_learner(config, 1)
    for tensor in (t for t in learner.state(Role.SERVER).values() if t.ndim > 1):
        torch.nn.init.orthogonal_(tensor, generator=torch.Generator().manual_seed(0))
    return learner


def received(index=1, population=4, state=None):
    return Received("0", index, 1, images(), state, population)


def train(config, index=1, population=4):
    learner = a_learner(config)
    before = {name: t.clone() for name, t in learner.trained().items()}
    result = train_round(
        learner, images(), config, SEED, labels=LABELS, received=received(index, population)
    )
    return learner, before, result


def a_step(learner, index=1, count=6):
    """A term's loss on a batch, after its round has started."""
    learner.train().start_round(received(index))
    views = tuple(torch.rand(count, 1, 8, 8, generator=SEED.generator(n)) for n in "ab")
    batch = Batch(torch.arange(count), views, (None, None), SEED.generator("loss"))
    step = learner.method.loss(batch)
    return learner.terms["verification"].loss(learner.method, batch, step), step


@pytest.mark.parametrize("method", METHODS)
def test_composes_with_every_method(tiny, method):
    needs = ("model=vit_tiny", "model.width=24", "model.depth=2") if method == "mae" else ()
    learner, before, result = train(tiny(f"method={method}", "training.lr=0.1", *needs, *ON))
    assert math.isfinite(result.losses["verification"])
    names = [n for n in learner.state(Role.SHARED) if n.startswith("terms.")]
    assert names == [
        "terms.verification.rows",
        *(f"terms.verification.head.{n}" for n in ("0.weight", "0.bias", "2.weight", "2.bias")),
    ]
    moved = {n for n, t in learner.trained().items() if not torch.equal(t, before[n])}
    assert moved == set(before)


def test_it_is_the_sum_over_both_views_of_the_head_on_the_backbone(tiny):
    learner = a_learner(tiny("method=simclr", *ON, "terms.verification.temperature=0.5"))
    loss, step = a_step(learner, index=2)
    term = learner.terms["verification"]
    views = [term.head(features) for features in step.features["backbone"]]
    rows = term.rows.detach()
    expected = sum(slow_loss(view.tolist(), rows.tolist(), 2, 0.5) for view in views)
    assert len(views) == 2 and loss.item() == pytest.approx(expected, rel=1e-4)
    swapped = Step(step.losses, {"backbone": step.features["backbone"][::-1]})
    torch.testing.assert_close(term.loss(learner.method, None, swapped), loss)


@pytest.mark.parametrize("chosen", ["unlabelled", "all"])
def test_with_some_labels_it_is_about_the_unlabelled_images(tiny, chosen):
    """As Algorithm 2 has it; about all images if that is asked for."""
    config = tiny("method=simclr", "labels.fraction=0.5", *ON,
                  f"terms.verification.images={chosen}")  # fmt: skip
    learner = a_learner(config)
    learner.train().start_round(received(2))
    term = learner.terms["verification"]
    labels = torch.tensor([-1, 3, -1, 4, 4, -1])
    views = (torch.zeros(6, 1, 8, 8),) * 2
    batch = Batch(torch.arange(6), views, (None, None), SEED.generator("loss"), labels)
    dim = learner.method.backbone.dim
    features = tuple(randn(6, dim, seed=seed) for seed in (0, 1))
    loss = term.loss(learner.method, batch, Step({}, {"backbone": features}))
    rows = labels < 0 if chosen == "unlabelled" else torch.ones(6, dtype=bool)
    expected = sum(
        slow_loss(term.head(view[rows]).tolist(), term.rows.detach().tolist(), 2, 1.0)
        for view in features
    )
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_gradients_of_other_rows_are_exactly_0_and_the_own_is_orthogonal_to_its_row(tiny):
    learner = a_learner(tiny("method=simclr", *ON))
    loss, _ = a_step(learner, index=2)
    loss.backward()
    rows = learner.terms["verification"].rows
    others = [n for n in range(4) if n != 2]
    assert torch.equal(rows.grad[others], torch.zeros(3, 8))
    assert rows.grad[2].norm() > 0.01
    assert abs(torch.dot(rows.grad[2], rows.detach()[2])) < 1e-6 * rows.grad[2].norm()
    assert all(p.grad.abs().sum() > 0 for p in learner.terms["verification"].head.parameters())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_only_the_own_row_changes_whatever_the_optimizer_does(tiny, optimizer):
    """Weight decay and momentum would move the others."""
    config = tiny("method=simsiam", f"optimizer={optimizer}", "optimizer.weight_decay=0.1",
                  "training.lr=0.1", "training.local_epochs=2", *ON)  # fmt: skip
    learner, before, _ = train(config, index=2)
    rows, were = learner.terms["verification"].rows, before["terms.verification.rows"]
    others = [0, 1, 3]
    assert torch.equal(rows[others], were[others])
    assert not torch.equal(rows[2], were[2])


def test_the_own_row_comes_to_be_told_from_others(tiny):
    """One client of four, for many epochs: the loss falls far below chance."""
    config = tiny("method=simclr", "training.lr=0.05", "training.local_epochs=10", *ON)
    losses = train(config)[2].losses["verification"]
    assert losses < 2 * math.log(4)
    weighted = tiny("method=simclr", "training.lr=0.05", *SMALL, "terms.verification.weight=3",
                    "training.batch_size=40")  # fmt: skip
    single = tiny("method=simclr", "training.lr=0.05", *ON, "training.batch_size=40")
    ratio = train(weighted)[2].losses["verification"] / train(single)[2].losses["verification"]
    assert ratio == pytest.approx(3, rel=1e-5)


def test_with_fixed_rows_nothing_of_a_client_is_in_them_and_they_do_not_travel(tiny):
    config = tiny("method=simclr", *ON, "terms.verification.rows=fixed", "training.lr=0.1")
    learner, before, result = train(config, index=2)
    assert "terms.verification.rows" not in {*learner.state_dict(), *before}
    again = a_learner(config).terms["verification"].rows
    assert torch.equal(learner.terms["verification"].rows, again)
    other = a_learner(tiny("method=simclr", *ON, "terms.verification.rows=fixed", "seed=1"))
    assert not torch.equal(other.terms["verification"].rows, again)
    assert result.losses["verification"] > 0
    assert not torch.equal(
        learner.trained()["terms.verification.head.0.weight"],
        before["terms.verification.head.0.weight"],
    )


def test_weight_0_builds_nothing_and_leaves_the_bits(tiny):
    plain, _, result = train(tiny("method=simclr"))
    off, _, other = train(tiny("method=simclr", *SMALL, "terms.verification.weight=0"))
    assert list(off.terms) == [] and off.capacity is None
    assert off.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(t, off.state_dict()[n]) for n, t in plain.state_dict().items())
    assert (result.losses, result.measures) == (other.losses, other.measures)


def test_the_method_begins_with_the_same_weights(tiny):
    plain, on = (build_learner(tiny("method=simclr", *o), 1).method for o in ((), ON))
    assert all(torch.equal(t, on.state_dict()[n]) for n, t in plain.state_dict().items())


@pytest.mark.parametrize("loss", ["infonce", "nt_xent"])
def test_the_bound_of_the_information_is_measured_beside_a_contrastive_loss(tiny, loss):
    """log K - InfoNCE - both parts of this term + log S."""
    config = tiny("method=simclr", f"method.loss={loss}", *SMALL, "terms.verification.weight=0.5",
                  "training.batch_size=40")  # fmt: skip
    _, _, result = train(config, population=3)
    verification = result.losses["verification"] / 0.5
    measured = result.measures["information"]
    within = measured + verification - math.log(3)
    assert within <= math.log(40) and measured <= math.log(40) + math.log(3)
    if loss == "infonce":
        expected = math.log(40) - result.losses["contrastive"]
        assert within == pytest.approx(expected, abs=1e-4)


def test_what_is_measured_is_that_of_the_received_model(tiny):
    """Later a client's own head names that client whatever it sees, which no bound allows for."""
    long = ("method=simclr", "training.lr=0.1", "training.local_epochs=8", *ON)
    _, _, result = train(tiny(*long))
    start, mean = result.measures["verification"], result.losses["verification"]
    assert mean < start / 2  # over the round
    _, _, once = train(tiny(*long, "training.lr=1e-9"))
    assert once.measures == result.measures


def test_as_long_as_the_head_knows_nothing_the_bound_is_below_log_k_minus_log_s(tiny):
    learner = a_learner(tiny("method=simclr", "method.loss=infonce", *ON))
    term = learner.terms["verification"]
    with torch.no_grad():
        term.rows.copy_(term.rows[:1].expand_as(term.rows))  # equal logits
    loss, step = a_step(learner, count=6)
    measured = term.measures(learner.method, step, loss)
    assert measured["verification"].item() == pytest.approx(2 * math.log(4), rel=1e-5)
    assert measured["information"] <= math.log(6) - math.log(4)


@pytest.mark.parametrize("method", ["simsiam", "orchestra", "supervised"])
def test_no_bound_is_measured_beside_other_losses(tiny, method):
    measures = train(tiny(f"method={method}", *ON))[2].measures
    assert "verification" in measures and "information" not in measures


def test_no_bound_is_measured_where_the_two_losses_are_of_other_images(tiny):
    some = ("method=simclr", "labels.fraction=0.5", *ON)
    assert "information" not in train(tiny(*some))[2].measures
    assert "information" in train(tiny(*some, "terms.verification.images=all"))[2].measures


@pytest.mark.parametrize("merging", MERGING)
def test_composes_with_every_merging_policy(tiny, merging):
    config = tiny("method=byol", f"merging={merging}", *ON)
    learner = a_learner(config)
    policy = config.merging.build()
    policy.merge(learner, None)
    state = policy.keep(learner)
    policy = config.merging.build()
    policy.merge(learner, state)
    were = learner.terms["verification"].rows.detach().clone()
    train_round(learner, images(), config, SEED, received=received(2))
    assert "terms.verification.rows" in learner.state(Role.SHARED)
    assert torch.equal(learner.terms["verification"].rows[[0, 1, 3]], were[[0, 1, 3]])


def test_a_client_without_a_number_or_a_row_is_an_error(tiny):
    learner = a_learner(tiny("method=simclr", *ON))
    with pytest.raises(ValueError, match=r"^client 0: terms\.verification needs the client's num"):
        learner.start_round(received(None))
    with pytest.raises(ValueError, match=r"^client 0 is number 4, counted .*capacity=4"):
        learner.start_round(received(4, 5))


def test_options_are_checked(tiny):
    with pytest.raises(ConfigError, match=r"terms\.verification\.rows=shared"):
        tiny("terms.verification.rows=shared")
    with pytest.raises(
        ConfigError,
        match=r"^terms\.verification\.capacity=3: must be at least federation\.clients=4$",
    ):
        tiny(*ON, "terms.verification.capacity=3")
    tiny(*SMALL, "terms.verification.capacity=3")  # off
    learner = a_learner(tiny(*ON, "terms.verification.capacity=9"))
    assert (learner.capacity, learner.capacity_key) == (9, "terms.verification.capacity")


def test_it_is_captured_as_it_is_run(tiny):
    """Nothing is decided by values: own row and population are tensors, changed in place."""
    learner = a_learner(tiny("method=simclr", *ON))
    term = learner.terms["verification"]
    places = [t.data_ptr() for t in (term.own, term.population, term.received)]
    for index, population in ((1, 4), (3, 4), (0, 2)):
        learner.start_round(received(index, population))
        assert (term.own.item(), term.population.item()) == (index, population)
    assert [t.data_ptr() for t in (term.own, term.population, term.received)] == places
