"""What the server gets of a sum: the sum, of whoever is left, and nothing else."""

import dataclasses
import hashlib
import itertools
import json
import secrets
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from orchestra_flwr.privacy.secure_sums import SumFailedError, cohort, primitives
from orchestra_flwr.privacy.secure_sums.cohort import colluding, degree, failure_probability, quorum
from orchestra_flwr.privacy.secure_sums.sum_client import STAGES, SumClient

QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=[True, False], ids=["complete", "drawn"])
def any_graph(request, monkeypatch, tools):
    """All are neighbours, or each draws half of the others, as in large cohorts."""
    if not request.param:
        tools.draw(monkeypatch, lambda count: count // 2)


@QUICK
@given(data=st.data(), count=st.integers(3, 9))
def test_the_sum_is_that_of_the_integers_whoever_drops_out(tools, data, count):
    """As many as may; in every stage, in any mixture."""
    most = count - quorum(count)
    lost = data.draw(st.lists(st.sampled_from(range(count)), max_size=most, unique=True))
    stages = {i: data.draw(st.sampled_from(STAGES)) for i in lost}
    gone = {s: [f"c{i:03}" for i in lost if stages[i] == s] for s in STAGES}
    one = tools.Sum(count, gone, registered=False)
    # Who sent no keys is none of those that the sum began with.
    began = count - len(gone["keys"])
    confirming = count - len(lost) + len(gone["unmask"])
    if confirming < 3 or count - len(lost) < quorum(began):
        with pytest.raises(SumFailedError):
            one.total()
        return
    total = one.total()
    summed = [
        name
        for name in one.names
        if not any(name in gone[stage] for stage in ("keys", "shares", "boxes", "input"))
    ]
    assert all(map(np.array_equal, total, one.expected(summed)))


@pytest.mark.usefixtures("any_graph")
@pytest.mark.parametrize("stage", STAGES)
def test_a_few_of_many_drop_out(tools, stage):
    one = tools.Sum(24, {stage: ["c003", "c017"]})
    total = one.total()
    before = stage in ("keys", "shares", "boxes", "input")
    left = [name for name in one.names if not (before and name in ("c003", "c017"))]
    assert all(map(np.array_equal, total, one.expected(left)))


@pytest.mark.parametrize(("stage", "what"), [
    ("keys", "2 clients sent their keys, 3 to 1000 are allowed"),
    ("shares", "3 of 6 clients gave out shares, 4 are needed"),
    ("boxes", "3 of 6 clients hold and gave out shares, 4 are needed"),
    ("input", "3 of 6 clients sent their vectors, 4 are needed"),
    ("confirm", "3 of 6 clients confirmed the list of clients, 4 are needed"),
    ("unmask", "3 clients gave out their share of c000, 4 are needed"),
])  # fmt: skip
def test_below_two_thirds_there_is_no_sum(tools, stage, what):
    gone = ["c001", "c003", "c005"] + ["c004"] * (stage == "keys")
    one = tools.Sum(6, {stage: gone})
    with pytest.raises(SumFailedError) as caught:
        one.total()
    assert str(caught.value) == what
    # What is left is masked still: nothing like the sum of any clients.
    sums = [
        one.expected(some) for k in range(1, 7) for some in itertools.combinations(one.names, k)
    ]
    assert not any(np.array_equal(one.server._total[0], arrays[0]) for arrays in sums)


def test_a_masked_vector_looks_like_any(tools):
    """Of zeros: every byte as often as every other."""
    layout = ((16, 100_000), (32, 20_000))
    vectors = {f"c{i:03}": primitives.zeros(layout) for i in range(3)}
    one = tools.Sum(3, layout=layout, vectors=vectors).until("confirm")
    (first, *_) = [e for _, e in one.seen if isinstance(e, list) and len(e) == 2]
    for part, dtype in zip(first, ("<u2", "<u4"), strict=True):
        raw = np.array(part, dtype).tobytes()
        counts = np.bincount(np.frombuffer(raw, np.uint8), minlength=256)
        assert chisquare(counts).pvalue > 1e-6
    assert all(not part.any() for part in _finished(one))


def _finished(one):
    one.confirm_stage()
    one.unmask_stage()
    return one.server.total()


def test_messages_tell_nothing_but_the_sum(tools, monkeypatch):
    """With the same secrets and other vectors of the same sum all else stays as it was.

    Two clients' vectors move, one up and one down. In all that the server gets only these two
    masked vectors differ, by what was moved; and each of them looks like any, as is tested above.
    """

    def transcript(moved):
        counter = itertools.count()

        def constant(count):
            return hashlib.shake_128(str(next(counter)).encode()).digest(count)

        def below(bound):
            return int.from_bytes(constant(32)) % bound

        monkeypatch.setattr(secrets, "token_bytes", constant)
        monkeypatch.setattr(secrets, "randbelow", below)
        vectors = {f"c{i:03}": tools.vector(i) for i in range(4)}
        vectors["c000"] = [part + part.dtype.type(moved) for part in vectors["c000"]]
        vectors["c001"] = [part - part.dtype.type(moved) for part in vectors["c001"]]
        one = tools.Sum(4, {"input": ["c003"]}, vectors=vectors, registered=False)
        one.server.occasion = dataclasses.replace(one.server.occasion, attempt="00")
        one.clients = {name: one.client(name, registered=False) for name in one.names}
        return one.total(), one.seen

    (total, seen), (other_total, other) = transcript(0), transcript(5)
    assert all(map(np.array_equal, total, other_total))
    moved = {}
    for (name, before), (other_name, after) in zip(seen, other, strict=True):
        assert name == other_name
        if before != after:
            ring = [2**bits for bits, _ in tools.LAYOUT]
            moved[name] = [
                {(b - a) % r for a, b in zip(*parts, strict=True)}
                for *parts, r in zip(before, after, ring, strict=True)
            ]
    assert moved == {"c000": [{5}, {5}, {5}], "c001": [{2**bits - 5} for bits, _ in tools.LAYOUT]}


def test_of_two_clients_no_mask_is_the_same_and_none_comes_twice(tools):
    runs = [tools.Sum(3, vectors={f"c{i:03}": primitives.zeros(tools.LAYOUT) for i in range(3)})
            for _ in range(2)]  # fmt: skip
    masked = []
    for run in runs:
        run.until("confirm")
        masked += [json.dumps(e) for _, e in run.seen if isinstance(e, list) and len(e) == 3]
    assert len(masked) == 6 == len({*masked})


def test_wrong_shares_are_noticed(tools):
    """By clients that lie; a sum that is wrong without anybody knowing would be worse."""
    one = tools.Sum(3).until("unmask")
    signatures = one.server.signatures
    for name in one.names:
        shares = one.clients[name].unmask(signatures, one.server.views)
        if name != "c001":
            shares["own"]["c001"] = "00" * 17
        one.server.take_unmasking(name, shares)
    with pytest.raises(SumFailedError, match="the shares of c001 do not fit together"):
        one.server.total()


@QUICK
@given(st.binary(min_size=16, max_size=16), st.integers(2, 40), st.randoms())
def test_so_many_shares_and_no_fewer_give_the_secret_back(seed, needed, random):
    """Of any so many holders, in any order."""
    shares = primitives.split(seed, needed, range(1, needed + 8))
    some = random.sample(sorted(shares.items()), needed)
    assert primitives.combined(some) == seed
    assert primitives.combined(some[1:]) != seed
    changed = [*some[1:], (some[0][0], bytes(17))]
    assert primitives.combined(changed) != seed


def test_shares_are_values_of_a_polynomial_by_hand(monkeypatch):
    monkeypatch.setattr(secrets, "randbelow", lambda bound: bound - 3)  # -3 x^2 - 3 x + 7
    shares = primitives.split((7).to_bytes(16), 3, [1, 2, 1000])
    values = {place: int.from_bytes(share) for place, share in shares.items()}
    prime = 2**130 - 5
    assert values == {1: 1, 2: prime - 11, 1000: prime - 3_002_993}


def test_fewer_shares_fit_every_secret(monkeypatch):
    """For two of three shares and any secret there is one polynomial that gives both."""
    prime, places = 13, (1, 2)
    monkeypatch.setattr(primitives, "PRIME", prime)
    seen = {}
    for secret in range(prime):
        for draws in itertools.product(range(prime), repeat=2):
            left = iter(draws)
            monkeypatch.setattr(secrets, "randbelow", lambda bound, left=left: next(left))
            shares = primitives.split(bytes([secret]), 3, places)
            seen.setdefault(tuple(shares.values()), []).append(secret)
    assert len(seen) == prime**2
    assert all(sorted(secrets_) == [*range(prime)] for secrets_ in seen.values())


@pytest.mark.parametrize("places", [(1, 2, 3), (5, 400, 1000), (998, 999, 1000)])
def test_shares_of_the_largest_cohort_fit_together(places):
    seed = bytes(range(16))
    shares = primitives.split(seed, 3, range(1, 1001))
    assert primitives.combined([(place, shares[place]) for place in places]) == seed


def test_a_mask_is_one_key_stream_over_all_parts():
    """That of the library, however many pieces and masks there are; both signs cancel."""
    layout = ((16, primitives.PIECE // 2 + 3), (32, 0), (64, 5))
    vector, size = primitives.zeros(layout), primitives.PIECE + 6 + 40
    primitives.add_masks(vector, [(bytes(range(32)), 1)])
    stream = Cipher(AES(bytes(range(32))), CTR(bytes(16))).encryptor()
    assert b"".join(part.tobytes() for part in vector) == stream.update(bytes(size))
    cancelling = [(bytes(32), 1), (bytes(32), -1)] * primitives.AT_ONCE
    primitives.add_masks(vector, [*cancelling, (bytes(range(32)), -1)])
    assert not any(part.any() for part in vector)


@pytest.mark.parametrize("liar", ["c000", "c002", "c005"])
def test_one_who_gives_out_wrong_shares_does_not_end_a_sum(tools, liar):
    """Of both kinds: one client is gone, and one of the others lies about all."""
    one = tools.Sum(6, gone={"input": ["c001"]}).until("unmask")
    signatures = one.server.signatures
    for name in one.server.survivors:
        shares = one.clients[name].unmask(signatures, one.server.views)
        if name == liar:
            shares = {kind: dict.fromkeys(by_owner, "5a" * 17) for kind, by_owner in shares.items()}
        one.server.take_unmasking(name, shares)
    expected = one.expected(one.server.survivors)
    assert all(map(np.array_equal, one.server.total(), expected))


def test_who_signs_wrongly_drops_out_and_the_others_go_on(tools):
    """Without the server's look all others would refuse the sum."""
    one = tools.Sum(4)
    one.server._verify = one.verify
    one.clients["c002"].sign = lambda statement: bytes(64)
    for name in one.names:
        fields = one.clients[name].advertise()
        if name == "c002":
            with pytest.raises(ValueError, match="not signed by the client's registered key"):
                one.server.take_keys(name, fields)
        else:
            one.server.take_keys(name, fields)
    one.names.remove("c002")
    for stage in STAGES[1:]:
        getattr(one, f"{stage}_stage")()
    assert all(map(np.array_equal, one.server.total(), one.expected(one.names)))


@pytest.mark.parametrize("damage", [
    lambda s: {"own": {}}, lambda s: {**s, "own": {"c009": "00" * 17}},
    lambda s: {**s, "own": {"c001": "00"}}, lambda s: {**s, "keys": {"c001": "00" * 17}},
    lambda s: {**s, "own": {"c001": "zz"}}, lambda s: {**s, "own": 3},
])  # fmt: skip
def test_a_server_takes_no_shares_that_are_none(tools, damage):
    one = tools.Sum(3).until("unmask")
    shares = one.clients["c000"].unmask(one.server.signatures, one.server.views)
    with pytest.raises((ValueError, KeyError, TypeError)):
        one.server.take_unmasking("c000", damage(shares))


@pytest.mark.parametrize("which", ["another's", "twice", "weak", "name"])
def test_keys_that_would_end_the_sum_for_all_drop_out(tools, which):
    one = tools.Sum(4)
    first, second, third = (one.clients[name].advertise() for name in one.names[:3])
    one.server.take_keys("c000", first)
    one.server.take_keys("c002", third)  # after which the first one's keys are still taken
    weak = "01" + "00" * 31
    damaged = {
        "another's": [second[0], first[2], *second[2:]],
        "twice": [*second[:2], second[1], second[3]],
        "weak": [second[0], weak, *second[2:]],
        "name": ["c002", *second[1:]],
    }
    with pytest.raises(ValueError, match="keys that are another|shared key"):
        one.server.take_keys("c001", damaged[which])
    one.server.take_keys("c001", second)


def test_a_client_goes_on_from_its_state(tools):
    """As in simulations, whose clients live for a message."""
    one = tools.Sum(4, {"confirm": ["c002"]}, registered=False)
    for stage in STAGES:
        getattr(one, f"{stage}_stage")()
        one.clients = {name: SumClient.from_state(c.state()) for name, c in one.clients.items()}
    assert all(map(np.array_equal, one.server.total(), one.expected(one.names)))


def test_neighbours_are_as_many_as_the_bound_asks_for():
    assert [degree(n) for n in (3, 6, 32)] == [2, 5, 31]
    for count in (33, 50, 100, 400, 1000):
        drawn = degree(count)
        assert drawn < count - 1
        assert failure_probability(count, drawn) <= 2**-cohort.SECURITY_BITS
        assert failure_probability(count, drawn - 1) > 2**-cohort.SECURITY_BITS
    assert failure_probability(100, 99) == 0


def test_the_bound_is_above_what_happens():
    """Few neighbours, so that it happens: how often do the colluding ones hold enough shares?"""
    rng = np.random.default_rng(0)
    count, drawn = 40, 5
    bad, needed = colluding(count), quorum(drawn + 1)
    shares = rng.hypergeometric(bad, count - 1 - bad, drawn, (4000, count - bad))
    happened = (shares >= needed).any(1).mean()
    assert 0.3 < happened <= failure_probability(count, drawn)


def exact_bound(count, drawn):
    """The two union bounds in fractions: shares that are opened, and groups without a mask."""
    bad, needed = colluding(count), quorum(drawn + 1)
    honest, least = count - bad, quorum(count) - bad

    def opened_by(others, shares):
        if shares <= 0:
            return 1
        counts = range(shares, min(bad, drawn) + 1)
        ways = sum(comb(bad, n) * comb(others - bad, drawn - n) for n in counts)
        return Fraction(ways, comb(others, drawn))

    def undrawn(group):
        return Fraction(comb(count - 1 - group, drawn), comb(count - 1, drawn))

    total = honest * opened_by(count - 1, needed)
    for one in range(1, honest):
        other = max(1, least - one)
        pairs = comb(honest, one) * comb(honest - one, other)
        alone = undrawn(other) * opened_by(count - 1 - other, needed - one)
        total += pairs * alone**one * undrawn(one) ** other
    return float(total)


@pytest.mark.parametrize(("count", "drawn"), [(6, 3), (33, 20), (100, 52), (100, 60)])
def test_the_bound_is_that_of_exact_fractions(count, drawn):
    assert failure_probability(count, drawn) == pytest.approx(exact_bound(count, drawn), 1e-9, 0)


def test_two_quorums_have_an_honest_member_in_common():
    """Or, the same inequality: more than half of the honest clients on a list confirm it."""
    for count in range(3, cohort.MAX_CLIENTS + 1):
        assert 2 * quorum(count) - count > colluding(count)
        assert quorum(count) + colluding(count) <= count + 1  # honest ones alone nearly suffice


@pytest.mark.parametrize("boxes", [{"c009": "00"}, {"c000": "00"}])
def test_shares_for_nobody_in_the_sum_or_for_oneself_are_not_taken(tools, boxes):
    one = tools.Sum(4).until("boxes")
    taken = dict(one.server._boxes)
    with pytest.raises(ValueError, match="shares for clients that are not in the sum"):
        one.server.take_shares("c000", {"boxes": boxes, "commitment": "00"})
    assert one.server._boxes == taken


def test_a_vector_is_added_once_and_only_of_who_is_in_the_sum(tools):
    one = tools.Sum(4, gone={"boxes": ["c003"]}).until("confirm")
    for name in ("c000", "c003", "c009"):
        with pytest.raises(ValueError, match="a vector of a client that is not in the sum"):
            one.server.take_vector(name, tools.vector(7), "00")
    assert all(map(np.array_equal, one.total_from("confirm"), one.expected(one.names[:3])))


@pytest.mark.parametrize("damage", [
    lambda v: v[:2], lambda v: [part[:-1] for part in v], lambda v: [p.astype("<u8") for p in v],
])  # fmt: skip
def test_a_vector_of_another_length_or_type_is_not_added(tools, damage):
    one = tools.Sum(4).until("input")
    with pytest.raises(ValueError, match="a vector of another length or type"):
        one.server.take_vector("c000", damage(tools.vector(0)), "00")
    assert all(map(np.array_equal, one.total_from("input"), one.expected(one.names)))


@pytest.mark.parametrize("left", [0, 4])
def test_who_draws_too_few_neighbours_drops_out(tools, left):
    """Nobody else could open its mask: it would end the round by its silence in the last stage."""
    one = tools.Sum(6, {"shares": ["c000"], "unmask": ["c000"]}, registered=False).until("shares")
    reply = one.clients["c000"].share(one.server.roster())
    fewer = {**reply, "boxes": dict([*reply["boxes"].items()][:left])}
    with pytest.raises(ValueError, match=f"shares for {left} clients, and not for 5"):
        one.server.take_shares("c000", fewer)
    assert all(map(np.array_equal, one.total_from("shares"), one.expected(one.names[1:])))


def test_who_confirms_without_its_key_drops_out_and_the_others_go_on(tools):
    one = tools.Sum(6).until("confirm")
    one.server._verify = one.verify
    with pytest.raises(ValueError, match="a list of clients that is not signed by its registered"):
        one.server.take_signature("c005", bytes(64).hex())
    one.gone = {"confirm": ["c005"]}
    assert all(map(np.array_equal, one.total_from("confirm"), one.expected(one.names)))
