"""A server that shows clients different things opens no sum of those that were shown them."""

import json

import numpy as np
import pytest

from orchestra_flwr.privacy.secure_sums import Confirmations
from tests.privacy.secure_sums.test_malicious_server import NAMES, is_over, refused


def test_two_graphs_are_never_both_confirmed(tools, monkeypatch):
    """Both the share and that somebody drew it are kept from a client: it cannot know."""
    tools.draw(monkeypatch, lambda count: 4)
    one = tools.Sum(6).until("boxes")
    asked = {name: json.loads(json.dumps(one.server.boxes_for(name))) for name in NAMES}
    sender = next(iter(asked["c000"]["boxes"]))
    del asked["c000"]["boxes"][sender]
    asked["c000"]["graph"][sender] = "0"
    for name in NAMES:
        one.server.take_holding(name, one.clients[name].hold(**asked[name]))
    one.input_stage()
    one.confirm_stage()
    refused(
        one.clients["c000"].unmask, one.server.signatures, {}, match="1 of 6 clients signed the s"
    )


def test_who_is_sent_another_model_is_in_no_sum(tools):
    """All others may be sent one from which no update comes: what is left would be its own."""
    one = tools.Sum(6).until("input")
    views = {}
    for name in NAMES:
        masked = [part.copy() for part in one.vectors[name]]
        basis = "model" if name == "c003" else "another"
        views[name] = one.clients[name].mask(NAMES, masked, basis)
    opened_without(one, "c003", views)


@pytest.mark.parametrize("living", [NAMES[:4], NAMES[:5]])
def test_who_is_shown_another_list_of_the_living_is_in_no_sum(tools, living):
    """It leaves out masks. If the others say that those on its list are dead, all of its masks
    could be taken off: in a large cohort two thirds of the few that it drew suffice for both.
    """
    one = tools.Sum(6).until("input")
    views = {}
    for name in NAMES:
        masked = [part.copy() for part in one.vectors[name]]
        views[name] = one.clients[name].mask(living if name == "c001" else NAMES, masked, "another")
    opened_without(one, "c001", views)


def opened_without(one, victim, views):
    """The server says that the victim's vector is in the sum: nobody opens one then."""
    signed = {name: one.clients[name].confirm(NAMES, Confirmations()) for name in NAMES
              if name != victim}  # fmt: skip
    for name in signed:
        refused(one.clients[name].unmask, signed, views, match=f"{victim} masked its vector by som")


def test_nobody_is_on_a_list_whose_neighbours_are_kept_from_it(tools, monkeypatch):
    """Large cohorts: those that did not draw it have no mask with it if the server says that it did
    not draw them. Their sum would be opened for a list with it, and once more, in another attempt,
    with its vector: the same list of the same round, and the difference is its vector.
    """
    tools.draw(monkeypatch, lambda count: 2)
    one = tools.Sum(9).until("boxes")
    drawn = {name: {*one.clients[name]._drawn} for name in one.names}
    (victim, *others) = sorted(one.names, key=lambda each: sum(each in d for d in drawn.values()))
    for name in others:
        asked = json.loads(json.dumps(one.server.boxes_for(name)))
        asked["boxes"].pop(victim, None)
        asked["graph"][victim] = "0"
        one.clients[name].hold(**asked)
    apart = [name for name in others if victim not in drawn[name]]
    survivors = [*apart, victim]
    for name in others:
        one.clients[name].mask(one.names, tools.vector(0))
    signed = {name: one.clients[name].confirm(survivors, Confirmations()) for name in apart}
    assert len(signed) >= 6
    for name in apart:
        refused(one.clients[name].unmask, signed, {}, match=f"{victim} masked its vector by so")
        assert is_over(one.clients[name])


def test_a_vector_that_was_masked_by_something_else_is_not_added(tools):
    """Its client drops out by name, and the others go on."""
    one = tools.Sum(6).until("input")
    one.server._verify = one.verify
    masked = [part.copy() for part in one.vectors["c003"]]
    view = one.clients["c003"].mask(NAMES, masked, "another model")
    with pytest.raises(ValueError, match="what it masked its vector by is not signed"):
        one.server.take_vector("c003", masked, view)
    one.gone = {"input": ["c003"]}
    others = [name for name in NAMES if name != "c003"]
    assert all(map(np.array_equal, one.total_from("input"), one.expected(others)))
