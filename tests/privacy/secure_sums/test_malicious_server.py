"""What a server that breaks the protocol gets of a client: nothing more."""

import dataclasses
import json

import numpy as np
import pytest

from orchestra_flwr.privacy.secure_sums import (
    Confirmations,
    Occasion,
    SumRefusedError,
    SumServer,
    primitives,
)
from orchestra_flwr.privacy.secure_sums.sum_client import STAGES
from orchestra_flwr.privacy.secure_sums.transcript import Advertisement

NAMES = [f"c{i:03}" for i in range(6)]


@pytest.fixture
def one(tools):
    return tools.Sum(6)


def refused(call, *arguments, match):
    with pytest.raises(SumRefusedError, match=match):
        call(*arguments)


def is_over(client):
    """Whatever is asked for next is refused as well."""
    refused(client.unmask, {}, {}, match="it is over")
    return True


def test_two_lists_of_survivors_are_never_both_unmasked(one):
    """The server names a client alive to some and dead to others."""
    one.until("confirm")
    with_last, without = NAMES, NAMES[:5]
    signatures = {
        name: one.clients[name].confirm(with_last if i % 2 else without, Confirmations())
        for i, name in enumerate(NAMES[:5])
    } | {NAMES[5]: one.clients[NAMES[5]].confirm(with_last, Confirmations())}
    for name in NAMES:
        refused(
            one.clients[name].unmask, signatures, {}, match="signed the same list of clients, 4"
        )


def test_nobody_is_alive_and_dead_in_what_a_client_gives_out(one):
    one.gone = {"input": ["c004"]}
    one.until("unmask")
    shares = one.clients["c000"].unmask(one.server.signatures, one.server.views)
    assert shares["own"].keys() == {*NAMES} - {"c004"} and shares["keys"].keys() == {"c004"}


@pytest.mark.parametrize("survivors", [[*NAMES, "c000"], [*NAMES, "c009"], ["c000"] * 6])
def test_a_list_with_somebody_twice_or_unknown_is_refused(one, survivors):
    one.until("confirm")
    client = one.clients["c000"]
    refused(client.confirm, survivors, Confirmations(), match="not in the sum, or twice")
    assert is_over(client)


def test_a_client_that_is_left_out_of_a_list_stops(one):
    one.until("input")
    client = one.clients["c000"]
    refused(client.mask, NAMES[1:], one.vectors["c000"], "of all", match="its own shares are left")
    assert is_over(client)


def test_nothing_is_unmasked_twice(one):
    one.until("unmask")
    client = one.clients["c000"]
    client.unmask(one.server.signatures, {})
    refused(
        client.unmask, one.server.signatures, {}, match="asked for stage unmask, and it is over"
    )


def test_forged_and_repeated_signatures_do_not_count(one):
    one.until("unmask")
    genuine = one.server.signatures
    forged = dict.fromkeys(NAMES, genuine["c001"])
    refused(one.clients["c000"].unmask, forged, {}, match="1 of 6 clients signed the same")
    strangers = {f"x{i}": genuine["c001"] for i in range(6)}
    refused(one.clients["c001"].unmask, strangers, {}, match="0 of 6 clients signed the same")
    refused(one.clients["c002"].unmask, dict.fromkeys(NAMES, "no"), {}, match="0 of 6")


@pytest.mark.parametrize(("least", "count", "what"), [
    (3, 2, "a sum of 2 clients, 3 to 1000"), (0, 2, "a sum of 2 clients, 3 to 1000"),
    (7, 6, "a sum of 6 clients, 7 to 1000"),
])  # fmt: skip
def test_small_cohorts_are_refused(tools, least, count, what):
    one = tools.Sum(count)
    one.clients["c000"] = one.client("c000", least=least)
    one.keys_stage()
    roster = [advertisement.fields() for advertisement in one.server._roster.values()]
    refused(one.clients["c000"].share, roster, match=what)


def test_its_own_bound_holds_for_what_is_left_too(tools):
    one = tools.Sum(6, {"input": ["c005"]})
    one.clients["c000"] = one.client("c000", least=6)
    one.until("confirm")
    refused(
        one.clients["c000"].confirm, one.server.survivors, Confirmations(),
        match="vectors of 5 of 6 clients, 6 are needed",
    )  # fmt: skip


def damaged_rosters(one):
    """What a server may do to a list of keys, each with what the client says of it."""
    roster = one.server.roster()
    stranger = one.client("c001").advertise()
    unsigned = [*roster[1][:3], ""]
    exchanged = [roster[1][0], roster[1][2], roster[1][1], roster[1][3]]
    mine = one.client("c000").advertise()
    weak = Advertisement("c001", bytes(32), bytes([1]) + bytes(31))
    signature = one.keys["c001"].sign(weak.statement(one.server.occasion))
    zero = [*weak.fields()[:3], signature.hex()]
    return [
        ([roster[0], ["c001", *stranger[1:3], roster[1][3]], *roster[2:]], "c001 are not signed"),
        ([roster[0], unsigned, *roster[2:]], "c001 are not signed"),
        ([roster[0], exchanged, *roster[2:]], "c001 are not signed"),
        ([mine, *roster[1:]], "its own keys were replaced or left out"),
        (roster[1:], "its own keys were replaced or left out"),
        ([*roster, roster[1]], "a client or a key twice"),
        ([*roster, ["x", *roster[1][1:]]], "a client or a key twice"),
        ([*roster, ["x", "00" * 31 + "09", "00" * 31 + "0a", "00"]], "x are not signed"),
        ([*roster, ["x"]], "a malformed list of keys"),
        ([*roster, ["x", "zz", "", ""]], "a malformed list of keys"),
        ([*roster, 3], "a malformed list of keys"),
        ([roster[0], zero, *roster[2:]], "the keys of c001"),
    ]


@pytest.mark.parametrize("case", range(12))
def test_keys_that_are_replaced_or_unsigned_are_refused(one, case):
    one.until("shares")
    roster, what = damaged_rosters(one)[case]
    client = one.clients["c000"]
    refused(client.share, roster, match=what)
    assert is_over(client)


def test_keys_of_another_round_or_run_are_not_signed(tools):
    one, other = tools.Sum(6), tools.Sum(6, round_=2)
    other.keys = one.keys
    for sum_ in (one, other):
        sum_.clients = {name: sum_.client(name) for name in NAMES}
        sum_.keys_stage()
    mixed = [one.server.roster()[0], *other.server.roster()[1:]]
    refused(one.clients["c000"].share, mixed, match="c001 are not signed by a key in")


def test_stages_come_in_their_order_and_once(tools):
    calls = {
        "advertise": lambda client, one: client.advertise(),
        "share": lambda client, one: client.share([]),
        "hold": lambda client, one: client.hold({}, {}),
        "mask": lambda client, one: client.mask(NAMES, tools.vector(0)),
        "confirm": lambda client, one: client.confirm(NAMES, Confirmations()),
        "unmask": lambda client, one: client.unmask({}, {}),
    }
    for number, stage in enumerate(STAGES):
        for called, call in enumerate(calls.values()):
            if called == number:
                continue
            one = tools.Sum(6).until(stage)
            client = one.clients["c000"]
            with pytest.raises(SumRefusedError, match=f"asked for stage .*, and it is {stage}"):
                call(client, one)
            assert is_over(client)


def test_a_graph_that_isolates_it_is_refused(tools, monkeypatch):
    """Only those are left that it did not draw, or too few to open what it is masked with."""
    tools.draw(monkeypatch, lambda count: 4)
    one = tools.Sum(12).until("input")
    client = one.clients["c000"]
    others = [name for name in one.names if name not in client._drawn[1:]]
    refused(client.mask, others, tools.vector(0), match="only 1 of its neighbours are left")


@pytest.mark.parametrize("damage", [
    lambda one, box: one.server.boxes_for("c001")["boxes"]["c005"],  # another's
    lambda one, box: box[:-2] + f"{int(box[-2:], 16) ^ 1:02x}",
    lambda one, box: "zz",
    lambda one, box: one.sealed_by("c005", bytes(7)),  # the sender itself lies
])  # fmt: skip
def test_a_box_that_does_not_open_is_one_share_less(one, damage):
    """Whoever changed it: sender and receiver are named, and the mask between them stays."""
    one.until("boxes")
    asked = one.server.boxes_for("c000")
    asked["boxes"]["c005"] = damage(one, asked["boxes"]["c005"])
    assert one.clients["c000"].hold(**asked) == ["c005"]
    one.server.take_holding("c000", ["c005"])
    for name in NAMES[1:]:
        one.server.take_holding(name, one.clients[name].hold(**one.server.boxes_for(name)))
    assert one.server.unopened == {"c005": ["c000"]} and one.server.left_out == []
    for stage in STAGES[3:]:
        getattr(one, f"{stage}_stage")()
    assert all(map(np.array_equal, one.server.total(), one.expected(NAMES)))


def test_who_seals_shares_that_nobody_can_open_is_left_out(one):
    one.until("boxes")
    boxes = one.server._boxes["c002"]
    boxes |= {name: bytes(len(box)) for name, box in boxes.items()}
    one.boxes_stage()
    others = [name for name in NAMES if name != "c002"]
    assert one.server.unopened == {"c002": others}
    assert one.server.left_out == ["c002"] and one.server.alive == others
    for stage in STAGES[3:]:
        getattr(one, f"{stage}_stage")()
    assert all(map(np.array_equal, one.server.total(), one.expected(others)))


def test_liars_below_a_third_leave_nobody_out(tools):
    """They say that no share opens; whoever is honest is still in the sum."""
    one = tools.Sum(7).until("boxes")
    one.boxes_stage()
    for liar in ("c000", "c001"):
        one.server.take_holding(liar, [name for name in one.names if name != liar])
    assert one.server.left_out == []
    with pytest.raises(ValueError, match="a sealed share that it did not get"):
        one.server.take_holding("c000", ["c000"])


def test_shares_that_are_withheld_or_nobodys_are_refused(tools, monkeypatch):
    """Without them it would leave out masks, and a group could be told apart."""
    tools.draw(monkeypatch, lambda count: 4)
    one = tools.Sum(9).until("boxes")
    for number, (change, match) in enumerate([
        (lambda asked: asked["boxes"].popitem(), "those of others withheld"),
        (lambda asked: asked["boxes"].update(x="00"), "clients that did not draw it"),
        (lambda asked: asked["boxes"].update(graph="00"), "clients that did not draw it"),
        (lambda asked: asked["graph"].update(c008="no"), "a malformed list of neighbours"),
        (lambda asked: asked["graph"].update(x="0"), "not those that it drew"),
        (lambda asked: asked["graph"].update(c005="1"), "not those that it drew"),
    ]):  # fmt: skip
        name = one.names[number]
        asked = json.loads(json.dumps(one.server.boxes_for(name)))
        change(asked)
        refused(one.clients[name].hold, *asked.values(), match=match)
        assert is_over(one.clients[name])


def test_a_key_with_the_same_secret_does_not_cancel_a_mask(tools):
    """A client that copies another's key, but for a bit that X25519 does not read.

    Its mask with a third client would be the other's with the opposite sign, and the two would
    cancel: the third one's vector would be left without a mask.
    """
    one = tools.Sum(3)
    middle, last = (one.clients[name] for name in ("c001", "c002"))
    keys = {name: Advertisement.of(one.clients[name].advertise()) for name in one.names}
    copy = keys["c002"].mask_key[:-1] + bytes([keys["c002"].mask_key[-1] ^ 0x80])
    roster = [dataclasses.replace(keys["c000"], mask_key=copy), keys["c001"], keys["c002"]]
    agreed = primitives.agreement(middle._secrets.mask_seed)
    assert len({agreed(entry.mask_key, b"") for entry in roster[::2]}) == 1  # one secret with both
    middle._roster = last._roster = {entry.name: entry for entry in roster}
    keys = middle._mask_keys(["c000", "c002"])
    assert keys["c000"] != keys["c002"] == last._mask_keys(["c001"])["c001"]


def test_another_length_of_vector_is_refused(one, tools):
    one.until("input")
    for name, wrong in zip(NAMES, [
        tools.vector(0)[:2],
        [part[:-1] for part in tools.vector(0)],
        [part.astype(np.int64) for part in tools.vector(0)],
        [*tools.vector(0), np.zeros(1, np.uint16)],
    ], strict=False):  # fmt: skip
        refused(one.clients[name].mask, NAMES, wrong, match="a vector of another length")


def test_layouts_that_differ_give_keys_that_nobody_accepts(tools):
    """A server tells two clients different lengths."""
    one = tools.Sum(6)
    longer = SumServer("run", 1, ((16, 38), (32, 5), (64, 3)))
    occasion = longer.occasion.__class__("run", 1, one.server.occasion.attempt, ((16, 38),))
    one.clients["c003"].occasion = occasion
    one.until("shares")
    refused(one.clients["c000"].share, one.server.roster(), match="c003 are not signed")


def test_noises_that_differ_give_keys_that_nobody_accepts(tools):
    """Told that others add more noise than they do, a client would be hidden less than it knows."""
    one = tools.Sum(6)
    loud = one.server.occasion
    one.server.occasion = dataclasses.replace(loud, noise=0.01)
    for name in NAMES[1:]:
        one.clients[name].occasion = one.server.occasion
    one.clients["c000"].occasion = dataclasses.replace(loud, noise=4.0)
    one.keys_stage()
    for name in NAMES:
        refused(one.clients[name].share, one.server.roster(), match="not signed by a key in")


def test_the_same_round_with_another_cohort_is_never_confirmed(tools, tmp_path):
    """After a drop-out, real or not: the difference would be one client's vector."""
    first = tools.Sum(6)
    file = tmp_path / "sums.jsonl"
    first.confirmations["c000"] = Confirmations(file)
    first.total()
    again = tools.Sum(6)
    again.until("confirm").clients["c000"].confirm(NAMES, Confirmations(file))  # the same: fine
    for gone in ({"input": ["c003"]}, {"keys": ["c003"]}):
        once_more = tools.Sum(6, gone).until("confirm")
        refused(
            once_more.clients["c000"].confirm, once_more.server.survivors, Confirmations(file),
            match="the sum of round 1 was confirmed with other clients",
        )  # fmt: skip
    later = tools.Sum(6, {"input": ["c003"]}, round_=2).until("confirm")
    later.clients["c000"].confirm(later.server.survivors, Confirmations(file))
    whole = file.read_text()
    file.write_text(whole + '["run", 3')  # the machine was switched off while it wrote
    Confirmations(file)
    assert file.read_text() == whole
    for damaged in ("[]\n", '["run", Infinity, ""]\n'):
        file.write_text(damaged)
        with pytest.raises(ValueError, match="record of sums is damaged"):
            Confirmations(file)


@pytest.mark.parametrize(("wrong", "what"), [
    ({"run": "r" * 65}, "is no name of a run"), ({"attempt": "a" * 65}, "is no name of a run"),
    ({"run": "\ud800"}, "is no name of a run"), ({"run": "r\n"}, "is no name of a run"),
    ({"attempt": ""}, "is no name of a run"), ({"round": -1}, "a sum of round -1"),
])  # fmt: skip
def test_nothing_that_no_run_has_is_written_to_a_clients_disk(wrong, what):
    """It would fill the disk, or could not be read when the client starts again."""
    right = {"run": "r" * 64, "round": 0, "attempt": "a", "layout": ()}
    Occasion(**right)
    with pytest.raises(ValueError, match=what):
        Occasion(**{**right, **wrong})


def test_all_secrets_are_new_in_each_sum(tools):
    first, second = (tools.Sum(3).clients["c000"]._secrets for _ in range(2))
    assert all(vars(first)[name] != seed for name, seed in vars(second).items() if name != "held")
