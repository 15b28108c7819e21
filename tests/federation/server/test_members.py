import time

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from orchestra_flwr.federation.client.client_app import app as client_app
from orchestra_flwr.federation.engines.inline import InlineGrid
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.messages.failures import Failure, to_error
from orchestra_flwr.federation.messages.fields import CONFIG
from orchestra_flwr.federation.messages.replies import MAX_IMAGES
from orchestra_flwr.federation.server.members import (
    RETRY_SECONDS,
    ConnectedMembers,
    SimulatedMembers,
)
from orchestra_flwr.flower.process_identity import identify_process
from orchestra_flwr.flower.reply_upload import UnreadableReplyError

identify_process()
GREETING = ConfigRecord({"version": "1"})


class Network:
    """A grid whose nodes and answers a test sets by hand; nothing answers by itself."""

    def __init__(self):
        self.nodes = {}  # node id -> registered name
        self.sent = []  # messages
        self.answers = {}  # node id -> what it sent, or the word for its failure
        self.pauses = 0
        self.given_up = []
        self.pulled = []

    def give_up(self, message_id):
        self.given_up.append(message_id)

    def get_nodes(self):
        return [NodeInfo(node_id=node, public_key=b"%d" % node) for node in self.nodes]

    def keys(self):
        """As a list of registered keys, where any node has one."""
        names = {b"%d" % node: name for node, name in self.nodes.items() if name}
        return names or None

    def send(self, message):
        self.sent.append(message)
        return str(len(self.sent) - 1)

    def begun(self, ids):
        return [id_ for id_ in ids if self.sent[int(id_)].metadata.dst_node_id in self.answers]

    def pull_messages(self, ids):
        self.pulled.extend(ids)
        for number in ids:
            message = self.sent[int(number)]
            answer = self.answers.pop(message.metadata.dst_node_id, None)
            if answer is None:
                continue
            if isinstance(answer, str):
                reply = Message(to_error(Failure.named(answer)), reply_to=message)
            else:
                reply = Message(RecordDict({CONFIG: ConfigRecord(answer)}), reply_to=message)
            reply.metadata.__dict__["_reply_to_message_id"] = number
            yield reply

    def join(self, node, name, registered="", **entries):
        self.nodes[node] = registered
        self.answers[node] = {"client": name, "images": 20, **entries}


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def said():
    return []


@pytest.fixture
def members(network, said):
    def make(least=1, script=()):
        steps = iter(script)

        def pause(seconds):
            network.pauses += 1
            next(steps)()  # ends the test with StopIteration if it waits for longer

        return ConnectedMembers(network, GREETING, least, said.append, pause, keys=network.keys)

    return make


def test_clients_are_greeted_once_and_known_by_their_own_names(network, said, members):
    network.join(71, "a")
    network.join(70, "b")
    known = members(2)
    assert known.connected() == known.connected() == {"a": 71, "b": 70}
    assert [m.metadata.dst_node_id for m in network.sent] == [70, 71]
    assert network.sent[0].content[CONFIG] == GREETING
    assert said == ["client b joined with 20 images", "client a joined with 20 images"]


def test_who_has_the_frozen_weights_says_so_each_time(network, members):
    """One that has lost them, and whose node is greeted anew, is sent them again."""
    network.join(1, "a", frozen=True)
    network.join(2, "b", frozen=False)
    network.join(3, "c", frozen="yes")
    known = members(3)
    known.announce("f" * 64)
    known.connected()
    assert {m.content[CONFIG]["frozen"] for m in network.sent} == {"f" * 64}
    assert known.holders == {"a"} and "frozen" not in GREETING
    known.mark_lost(["a"])
    network.join(1, "a", frozen=False)
    known.connected()
    assert known.holders == set()


def test_a_second_client_of_a_name_is_said_to_take_the_first_ones_place(network, said, members):
    """As of a copied state folder, without keys: the first one would be left out unnoticed."""
    network.join(1, "a")
    known = members()
    assert known.connected() == {"a": 1}
    network.join(2, "a")
    assert known.connected() == {"a": 2}
    network.join(3, "b")
    known.connected()
    assert said == [
        "client a joined with 20 images",
        "client a joined with 20 images, in place of another client a: if both run, give one "
        "another name",
        "client b joined with 20 images",
    ]


def test_no_number_of_images_is_shown_where_clients_do_not_say_theirs(network, said):
    network.join(70, "a")
    noted = []
    note = lambda *what: noted.append(what)  # noqa: E731
    known = ConnectedMembers(network, GREETING, 1, said.append, counts_images=False, note=note)
    known.connected()
    assert said == ["client a joined with an unknown number of images"]
    assert noted == [("joined", "a", "an unknown number of images")]


def test_an_answer_that_cannot_be_read_hinders_nobody_else(network, said, members):
    network.join(1, "", registered="mallory")
    network.join(2, "b", registered="b")
    pull = network.pull_messages

    def pulled(ids):
        for number in ids:
            if network.sent[int(number)].metadata.dst_node_id == 1:
                raise UnreadableReplyError("it cannot be read (IndexError)")
        return pull(ids)

    network.pull_messages = pulled
    assert members().connected() == {"b": 2}
    assert said[0] == (
        "client mallory cannot take part: it cannot be read (IndexError); it is asked again"
    )


def test_waits_until_enough_are_there_and_says_so_once(network, said, members):
    nothing = lambda: None  # noqa: E731
    known = members(1, [nothing, nothing, lambda: network.join(5, "a")])
    assert known.connected() == {"a": 5}
    assert said == ["waiting for clients: 0 of 1 are here", "client a joined with 20 images"]


def test_a_late_joiner_and_one_that_leaves(network, said, members):
    network.join(1, "a")
    known = members()
    known.connected()
    network.join(2, "b")
    assert known.connected() == {"a": 1, "b": 2}
    del network.nodes[1]
    assert known.connected() == {"b": 2}
    assert said[-1] == "client a has left"


def test_a_client_that_comes_back_as_another_node_is_the_same_client(network, members):
    network.join(1, "a")
    known = members()
    known.connected()
    network.join(2, "a")  # the old node is not yet known to be dead
    assert known.connected() == {"a": 2}
    del network.nodes[1]
    assert known.connected() == {"a": 2}


def test_refusals_are_shown_with_their_meaning_and_no_text_of_the_client(network, said, members):
    network.join(1, "a", refusal="too_few_images")
    network.join(2, "b")
    network.join(3, "c", refusal="the dog is in /home/ann/photos")
    network.join(4, "d", images="many")
    network.nodes[5], network.answers[5] = "", "out_of_memory"
    network.join(6, "e\033[2J")
    network.join(7, 65 * "x")
    network.join(8, "f", images=0)
    network.join(9, "g", images=MAX_IMAGES + 1)
    known = members()
    assert known.connected() == {"b": 2}
    details = "details are on the client's terminal; it is asked again"
    assert (
        f"client a is refused: too_few_images (it has fewer images than federation.min_images); "
        f"{details}" in said
    )
    assert f"client c is refused: failed (an error that it did not expect); {details}" in said
    assert "client d is refused: it does not say how many images it has; it is asked again" in said
    for name, images in (("f", 0), ("g", MAX_IMAGES + 1)):
        line = f"client {name} is refused: it says that it has {images} images; it is asked again"
        assert line in said
    for node in (6, 7):
        assert f"client at node {node} is refused: it gives no name; it is asked again" in said
    assert (
        f"client at node 5 cannot take part: out_of_memory (its memory was not enough); {details}"
        in said
    )
    known.connected()
    assert len(network.sent) == 9  # who was refused is not asked again at once


def test_a_client_that_refused_is_asked_again_less_and_less_often(
    network, said, members, monkeypatch
):
    """Its disk was not mounted when it was greeted; nobody waits for it meanwhile."""
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    network.join(1, "a", refusal="data_unreadable")
    network.join(2, "b")
    known = members()
    asked = []
    for second in range(0, 1200, 5):
        now = 1000.0 + second
        before = len(network.sent)
        network.join(1, "a", refusal="data_unreadable")
        assert known.connected() == {"b": 2}
        asked += [second] * (len(network.sent) - before)
    assert asked == [0, 0, 15, 45, 105, 225, 465, 765, 1065]
    assert network.pauses == 0
    assert len([line for line in said if "data_unreadable" in line]) == 1
    now += 300
    network.join(1, "a")
    assert known.connected() == {"a": 1, "b": 2}
    assert said[-1] == "client a joined with 20 images"


def test_one_that_refused_is_present_for_what_is_no_training(network, members):
    network.join(1, "a", registered="a", refusal="too_few_images")
    network.join(2, "b", registered="b")
    network.join(3, "c", registered="d")
    here = members()
    assert here.present() == {"b": 2}
    assert here.all_present() == {"b": 2, "a": 1, "d": 3}
    network.nodes.pop(1)
    assert here.all_present() == {"b": 2, "d": 3}


def test_an_unanswered_question_to_one_that_refused_holds_up_nobody(network, members, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    network.join(1, "a", refusal="failed")
    network.join(2, "b")
    known = members()
    known.connected()
    now += 60
    assert known.connected() == {"b": 2}
    assert (len(network.sent), network.pauses) == (3, 0)


def test_a_greeting_that_was_lost_is_sent_again_and_holds_up_nobody(network, members, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    network.join(7, "a")
    network.nodes[8] = ""  # whose greeting never reaches it
    here = members()
    assert here.present() == {"a": 7} and len(network.sent) == 2
    now = 59.0
    assert here.present() == {"a": 7} and len(network.sent) == 2
    now = 61.0
    assert here.connected() == {"a": 7}  # without a pause
    assert [message.metadata.dst_node_id for message in network.sent] == [7, 8, 8]
    assert network.given_up == ["1"]
    now = 170.0
    here.present()
    assert len(network.sent) == 3  # less and less often
    now = 182.0
    here.present()
    assert len(network.sent) == 4 and network.given_up == ["1", "2"]
    network.join(8, "b")
    assert here.present() == {"a": 7, "b": 8}


def test_greetings_of_a_long_silence_do_not_come_before_the_one_that_counts(
    network, members, monkeypatch
):
    """After a day's work there were 130, each of which a client asked for, and did not get."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    network.join(7, "a")
    here = members()
    here.present()
    here.mark_late(["a"])
    expire = []
    for _ in range(2880):
        now += 30
        here.present()
        expire += [now + message.metadata.ttl for message in network.sent[len(expire) :]]
    assert len(expire) > 250 and sum(when > now for when in expire) < 20
    assert network.sent[-1].metadata.ttl > 3600 + 300  # clocks may differ by an hour


def test_two_that_come_and_go_by_turns_hold_up_nobody_for_long(network, members, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)

    def turn():
        nonlocal now
        now += 10  # one of them has always just come
        network.nodes.pop(8 if 8 in network.nodes else 9)
        network.nodes[9 if now % 20 else 8] = ""

    network.join(7, "a")
    network.nodes[8] = ""
    assert members(script=[turn] * 100).connected() == {"a": 7}
    assert 250 < now < 350


def test_who_leaves_before_it_answers_leaves_nothing_at_the_superlink(network, members):
    """One that fails while it reads its images, and is started again, did so for weeks."""
    network.nodes[7] = ""
    here = members()
    here.present()
    del network.nodes[7]
    here.present()
    assert network.given_up == ["0"]
    network.join(7, "a")
    assert here.present() == {"a": 7} and network.given_up == ["0"]


def test_a_crowd_is_greeted_in_turns(network, members, monkeypatch):
    """A round waits for all of it; who does not answer holds up the others for seconds."""
    monkeypatch.setattr("orchestra_flwr.federation.server.members.GREETED_AT_ONCE", 2)
    for node in range(5):
        network.join(node, f"c{node}")
    here = members(script=[lambda: None] * 2)
    assert set(here.present()) == {"c0", "c1"} and len(network.sent) == 2
    assert len(here.connected()) == 5 and network.pauses == 1

    now = time.monotonic()
    network.nodes |= {10: "", 11: ""}
    network.join(12, "late")
    assert "late" not in here.present()
    monkeypatch.setattr("time.monotonic", lambda: now + 16)
    assert "late" in here.present()
    assert len(network.pulled) == 6  # each is a request, and no silent one is asked for


def test_a_registered_key_fixes_the_name(network, said, members):
    network.join(1, "mallory", registered="alice")
    network.join(2, "bob", registered="bob")
    assert members().connected() == {"bob": 2}
    assert said[0] == (
        "client mallory is refused: its key is registered here as alice. Either revoke name=alice "
        "here and register the client's client.pub, or the client ends its client.pub with alice "
        "and is started again; it is asked again"
    )
    assert network.sent[0].content[CONFIG]["registered"] == "alice"  # so that it says so, too


def test_a_key_that_is_registered_anew_counts_from_then_on_and_a_revoked_one_not_at_all(
    network, said, members
):
    """Flower keeps the first name of a key, and takes minutes to see that one does not come."""
    network.join(1, "old", registered="old")
    network.join(2, "other", registered="other")
    here = members(2)
    assert here.connected() == {"old": 1, "other": 2}
    network.join(1, "new", registered="new")  # its node at the SuperLink stays the same
    assert here.present() == {"new": 1, "other": 2}
    network.nodes[2] = ""
    assert here.present() == {"new": 1} and set(here.images) == {"new"}
    assert said[2:] == [
        "client old has left",
        "client new joined with 20 images",
        "client other has left",
    ]


def test_nothing_is_remembered_of_nodes_that_are_gone(network, members):
    """A run of weeks sees more nodes than it has clients: each restart of one may make another."""
    known = members(least=0)
    for node in range(100):
        network.nodes.clear()
        network.join(node, "a")
        if node % 3 == 0:
            network.answers[node] = "failed"
        known.connected()
        (known.mark_lost if node % 2 else known.mark_late)(["a"])
    network.nodes.clear()
    known.connected()
    left = {name: value for name, value in vars(known).items() if isinstance(value, set | dict)}
    assert left.pop("met") == {"a"}  # the names of all that ever joined
    assert len(left) == 10 and not any(left.values()), left


def test_a_client_is_revoked_when_its_key_is_registered_no_more(network, members):
    network.join(1, "a", "a")
    network.join(2, "b", "b")
    known = members(2)
    known.connected()
    del network.nodes[2]
    assert known.revoked("b") and not known.revoked("a")
    network.nodes = {1: ""}  # without keys nobody is
    assert not known.revoked("b")


def test_a_lost_client_returns_when_it_answers_again_and_nobody_waits_for_it(network, members):
    network.join(1, "a")
    network.join(2, "b")
    known = members()
    known.connected()
    known.mark_lost(["a", "nobody"])
    assert known.connected() == {"b": 2}
    assert network.pauses == 0
    assert [m.metadata.dst_node_id for m in network.sent] == [1, 2, 1]
    network.join(1, "a")
    assert known.connected() == {"a": 1, "b": 2}


def test_a_late_client_is_here_and_asked_again_when_it_answers_a_greeting(network, said, members):
    network.join(1, "a")
    network.join(2, "b")
    known = members(2)
    known.connected()
    said.clear()
    known.mark_late(["a", "nobody"])
    assert known.connected() == {"b": 2}  # 2 clients are here: the rounds go on
    assert network.pauses == 0
    network.join(1, "a")  # it has worked off what it was sent before
    assert known.connected() == {"a": 1, "b": 2}
    assert said == []


@pytest.mark.parametrize("answer", ["failed", {"client": "a", "refusal": "disk_full"}])
def test_a_late_client_that_refuses_is_not_here_until_it_joins_again(
    network, said, members, monkeypatch, answer
):
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now)

    def mend():
        nonlocal now
        now += RETRY_SECONDS
        network.join(1, "a")

    network.join(1, "a")
    network.join(2, "b")
    known = members(2, [mend])
    known.connected()
    known.mark_late(["a", "b"])
    network.answers = {1: answer, 2: {"client": "b", "images": 30}}
    known.present()
    assert known.images == {"b": 30} and known.late == set()
    assert known.connected() == {"a": 1, "b": 2}
    assert said[-2:] == ["waiting for clients: 1 of 2 are here", "client a joined with 20 images"]


def test_where_all_are_late_the_first_that_is_free_is_waited_for(network, members):
    network.join(1, "a")
    known = members(1, [lambda: None, lambda: network.join(1, "a")])
    known.connected()
    known.mark_late(["a"])
    assert known.connected() == {"a": 1}
    assert network.pauses == 2


class Registering(InlineGrid):
    """Nodes come one after another, as in Flower's simulations; counts what they are asked."""

    def __init__(self, app, *looks):
        super().__init__(app)
        self.looks, self.asked = list(looks), []

    def get_node_ids(self):
        return range(1, 1 + (self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]))

    def send_and_receive(self, messages, *, timeout=None):
        self.asked.extend(messages)
        return super().send_and_receive(messages, timeout=timeout)


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr("orchestra_flwr.federation.server.members.NODE_WAIT_SECONDS", 0.1)
    monkeypatch.setattr("orchestra_flwr.federation.server.members.NODE_POLL_SECONDS", 0.01)


def test_missing_nodes_are_told(hurried):
    with pytest.raises(FederationError, match="no node has come"):
        SimulatedMembers(Registering(client_app, 0), dict.fromkeys("012", ())).connected()


def test_simulated_clients_share_the_nodes_of_which_one_is_asked_whether_workers_are_there(hurried):
    grid = Registering(client_app, 0, 1, 2, 2)
    members = SimulatedMembers(grid, dict.fromkeys("xyz", ()))
    members.mark_lost(["x"])
    assert grid.asked == []  # what the server does first need not wait for them
    assert members.connected() == {"x": 1, "y": 2, "z": 1}
    assert members.connected() == {"x": 1, "y": 2, "z": 1}
    assert len(grid.asked) == 1


def test_workers_that_cannot_start_are_told():
    broken = ClientApp()

    @broken.query()
    def query(message, context):
        return Message(Error(5, "no memory for workers"), reply_to=message)

    with pytest.raises(FederationError, match="no client can be asked: no memory for workers"):
        SimulatedMembers(InlineGrid(broken), dict.fromkeys("01", ())).connected()


def test_who_comes_goes_and_is_refused_is_noted_once(network):
    """For the server's status and audit log, which read no lines that are for people."""
    notes = []
    known = ConnectedMembers(
        network, GREETING, 1, lambda _: None, keys=network.keys,
        note=lambda *event: notes.append(event),
    )  # fmt: skip
    network.join(1, "a", "a")
    network.join(2, "b", "site-b")  # its key has another name
    known.connected()
    known.connected()
    known.mark_lost(["a"])
    network.join(3, "c", "c")
    del network.nodes[2]
    known.connected()
    del network.nodes[3]
    network.join(1, "a", "a")
    known.connected()
    assert [event for *event, _ in notes] == [
        ["joined", "a"], ["refused", "site-b"], ["silent", "a"], ["left", "site-b"],
        ["joined", "c"], ["left", "c"], ["joined", "a"],
    ]  # fmt: skip
    assert notes[0][2] == "20 images" and "its key is registered here as site-b" in notes[1][2]
