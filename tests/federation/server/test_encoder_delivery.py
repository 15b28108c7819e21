"""Clients get the encoder, in a network whose answers the test sets by hand."""

import json

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from orchestra_flwr import load_encoder
from orchestra_flwr.config import config_to_yaml
from orchestra_flwr.federation.messages.failures import Failure, to_error
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, ENCODER
from orchestra_flwr.federation.server import encoder_delivery
from orchestra_flwr.federation.server.encoder_delivery import EncoderDelivery
from orchestra_flwr.fingerprints import file_sha256
from orchestra_flwr.flower.process_identity import identify_process
from orchestra_flwr.models import Encoder, EncoderSpec, build_backbone, save_encoder
from orchestra_flwr.reporting import RunFolder

identify_process()


class Network:
    """Members and grid in one; `words` are what each client says, one message after the other."""

    def __init__(self, **words):
        self.words = {name: list(said) for name, said in words.items()}
        self.nodes = {name: number for number, name in enumerate(words, 1)}
        self.met, self.late = set(words), set()
        self.sent, self.lost, self.looks, self.away_until = [], set(), 0, {}
        self.new_until, self.verify = 0, lambda *signed: True
        self.revoked, self.timeouts = set(), []

    def keys(self):
        registered = {*self.words, *"abcd"} - self.revoked
        return {name.encode(): name for name in registered}

    @property
    def some_are_new(self):
        return self.looks < self.new_until

    def all_present(self):
        self.looks += 1
        return {n: i for n, i in self.nodes.items() if self.away_until.get(n, 0) <= self.looks}

    def mark_lost(self, names):
        self.lost |= names

    def send_and_receive(self, messages, *, timeout):
        names = {number: name for name, number in self.nodes.items()}
        self.timeouts.append(timeout)
        for message in messages:
            name = names[message.metadata.dst_node_id]
            self.sent.append((name, message))
            said = self.words[name].pop(0)
            if isinstance(said, Error):
                yield Message(said, reply_to=message)
            else:
                record = ConfigRecord({ENCODER: said})
                yield Message(RecordDict({CONFIG: record}), reply_to=message)


@pytest.fixture
def folder(tmp_path, tiny):
    config = tiny()
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    encoder = Encoder(EncoderSpec.of(config), build_backbone(config.model, config.data.channels))
    save_encoder(tmp_path / "encoder.safetensors", encoder, method="orchestra", rounds=3)
    return RunFolder(tmp_path)


@pytest.fixture
def deliver(folder, monkeypatch, tiny):
    monkeypatch.setattr(encoder_delivery, "POLL_SECONDS", 0)

    def make(network, wait=60.0, every=None, least=0, rounds=3, **more):
        shown = []
        config = tiny()
        federation = config.federation.model_copy(update={"min_clients": least, "rounds": rounds})
        config = config.model_copy(update={"federation": federation})
        delivery = EncoderDelivery(
            network, network, folder, config, shown.append, every=every, wait=wait, **more
        )
        return delivery, shown

    return make


def test_who_wants_the_encoder_gets_it_with_its_card_and_its_bytes_are_counted(deliver, folder):
    network = Network(a=["wanted", "stored"], b=["stored"], c=["too_large"])
    delivery, shown = deliver(network)
    sent = delivery.at_the_end()
    assert [name for name, _ in network.sent] == ["a", "b", "c", "a"]
    assert all(ARRAYS not in message.content for _, message in network.sent[:3])
    content = network.sent[3][1].content
    weights = content[ARRAYS][ENCODER].numpy()
    assert weights.tobytes() == folder.encoder.read_bytes()
    assert json.loads(content[CONFIG][ENCODER])["about"]["rounds"] == 3
    assert "load_encoder" in content[CONFIG]["card"]
    assert content[CONFIG]["size"] == weights.nbytes
    assert sent["clients"] == ["a", "b"] and sent["without"] == ["c"]
    assert weights.nbytes < sent["bytes_down"] < weights.nbytes + 200
    assert shown == [
        "the encoder is with a, b",
        "client c does not take the encoder: larger than it allows",
    ]


def test_one_that_comes_back_gets_it_and_one_that_stays_away_is_named(deliver, folder):
    network = Network(a=["stored"], b=["wanted", "stored"])
    network.away_until["b"] = 3
    delivery, _ = deliver(network)
    assert delivery.at_the_end()["clients"] == ["a", "b"]
    network = Network(a=["stored"], b=[])
    network.away_until["b"] = 10**9
    delivery, shown = deliver(network, wait=0.01)
    sent = delivery.at_the_end()
    assert (sent["clients"], sent["without"]) == (["a"], ["b"])
    assert f"because they were away: b; resume={folder.path} sends it once more" in shown[-1]


def test_a_client_whose_key_was_revoked_is_not_waited_for(deliver, folder):
    """For as long as share.wait says, though it cannot come, and then called away."""
    away = {"sha256": file_sha256(folder.encoder), "without": ["b"], "away": ["b"]}
    folder.write_summary({"encoder_sent": away})
    network = Network(a=["wanted", "stored"], b=[])
    network.away_until = {"b": 10**9}
    network.revoked = {"b"}
    delivery, shown = deliver(network, wait=3600)
    sent = delivery.at_the_end()
    assert (sent["clients"], sent["without"], sent["away"]) == (["a"], [], [])
    assert shown == ["the encoder is with a"]


def test_one_that_has_just_come_when_all_others_have_it_is_waited_for(deliver):
    network = Network(a=["stored"], b=["wanted", "stored"])
    network.met = {"a"}
    network.away_until["b"] = network.new_until = 3
    assert deliver(network)[0].at_the_end()["clients"] == ["a", "b"]


def test_after_a_run_was_resumed_that_was_over_clients_are_waited_for(deliver):
    """The server that was killed had met them, this one has not."""
    network = Network(a=["stored"])
    network.met.clear()
    network.away_until["a"] = 3
    delivery, _ = deliver(network, least=1)
    assert delivery.at_the_end()["clients"] == ["a"]


def test_without_rounds_nobody_need_come(deliver):
    network = Network(a=["stored"])
    network.met.clear()
    network.away_until["a"] = 3
    sent = deliver(network, least=1, rounds=0)[0].at_the_end()
    assert network.looks == 1 and sent["clients"] == sent["without"] == []


def test_who_is_met_after_a_restart_changes_nothing_for_the_others(deliver, folder):
    network = Network(a=["stored"], b=[], c=["too_large"], d=[])
    network.away_until |= {"b": 10**9, "d": 10**9}
    sent = deliver(network, wait=0)[0].at_the_end()
    assert (sent["clients"], sent["without"], sent["away"]) == (["a"], ["b", "c", "d"], ["b", "d"])
    folder.write_summary({"encoder_sent": sent})
    again = deliver(Network(b=["wanted", "stored"]), wait=0)[0].at_the_end()
    assert (again["clients"], again["without"]) == (["a", "b"], ["c", "d"])
    assert again["away"] == ["d"]
    folder.write_summary({"encoder_sent": {**sent, "sha256": "another encoder"}})
    assert deliver(Network(b=["stored"]), wait=0)[0].at_the_end()["clients"] == ["b"]


def test_who_was_away_is_waited_for_when_the_run_is_resumed_at_its_end(deliver, folder):
    """Others are met first, and would have been all."""
    sent = {"sha256": file_sha256(folder.encoder), "clients": ["a"], "without": ["b"]}
    folder.write_summary({"encoder_sent": {**sent, "away": ["b"]}})
    network = Network(a=["stored"], b=["wanted", "stored"])
    network.met.clear()
    network.away_until["b"] = 3
    again = deliver(network, least=1)[0].at_the_end()
    assert (again["clients"], again["without"], again["away"]) == (["a", "b"], [], [])


def test_how_far_it_is_can_be_followed(deliver, folder):
    network, noted = Network(a=["stored"], b=["wanted", "stored"], c=["too_large"]), []
    network.away_until["b"] = 3
    deliver(network, note=lambda *values: noted.append(values))[0].at_the_end()
    digest = file_sha256(folder.encoder)
    assert noted[0] == (digest, [], ["a", "b", "c"], False)  # before the first has answered
    assert noted[1] == (digest, ["a"], ["b", "c"], False)
    assert noted[-1] == (digest, ["a", "b"], ["c"], True)


def test_in_a_queue_nobody_is_told_to_resume_a_run(deliver):
    network = Network(a=[])
    network.away_until["a"] = 10**9
    delivery, lines = deliver(network, wait=0, queued=True)
    delivery.at_the_end()
    assert "resume=" not in lines[-1] and "come back while the queue waits for a run" in lines[-1]
    network.verify = None  # without keys its server does not know who comes back
    delivery.at_the_end()
    assert "resume=" in lines[-1]


def test_what_goes_wrong_at_one_client_is_said_and_harms_no_other(deliver):
    silent = Error(1, "gone")
    network = Network(
        a=["wanted", to_error(Failure.FAILED)], b=["wanted", silent], c=["nonsense"],
        d=["wanted", "stored"],
    )  # fmt: skip
    delivery, shown = deliver(network, wait=0)
    sent = delivery.at_the_end()
    assert (sent["clients"], sent["without"]) == (["d"], ["a", "b", "c"])
    assert network.lost == {"b"}
    assert shown[1].startswith("client a does not have the encoder: failed (an error that it")
    assert "client c does not have the encoder: its answer is unknown here" in shown
    assert "were away: b;" in shown[-1]


def test_of_very_many_clients_a_line_names_some(deliver):
    delivery, shown = deliver(Network(**{f"c{n:02}": ["stored"] for n in range(30)}))
    assert len(delivery.at_the_end()["clients"]) == 30
    assert shown[0].endswith("c18, c19, and 10 more")


@pytest.mark.parametrize(("wait", "most"), [(0, 10), (20, 20), (600, 30)])
def test_one_client_that_hangs_holds_up_the_end_for_no_longer_than_share_wait(deliver, wait, most):
    network = Network(a=["stored"])
    deliver(network, wait=wait)[0].at_the_end()
    assert network.timeouts == [pytest.approx(most, abs=1)]


def test_during_the_run_nobody_that_works_is_asked_and_taken_for_lost(deliver, folder):
    network = Network(a=["stored"], b=[], c=[])
    network.late = {"c"}
    delivery, _ = deliver(network, every=2)
    delivery.during(folder.encoder, {"b"})
    assert [name for name, _ in network.sent] == ["a"] and not network.lost


def test_during_the_run_it_is_sent_to_who_is_here(deliver, folder):
    network = Network(a=["stored"], b=[])
    network.away_until["b"] = 10**9
    delivery, shown = deliver(network, every=2)
    assert [n for n in range(7) if delivery.place(n, 6)] == [2, 4]  # the last one is the end's
    assert delivery.place(2, 6).encoder == folder.path / "shared" / "encoder.safetensors"
    delivery.during(folder.encoder)
    assert shown == ["the encoder is with a"] and network.looks == 1
    assert deliver(network)[0].place(2, 6) is None


@pytest.mark.parametrize(
    "chosen",
    [["adaptation=norms", "model.batch_norm=averaged"], pytest.param([], marks=pytest.mark.slow)],
)
def test_a_run_that_sends_its_encoder_has_the_same_bits(federate, tiny, deliver, chosen):
    """What is sent is the plain network as the run folder has it, also with an adaptation."""
    config = tiny("federation.rounds=2", *chosen)
    network = Network(a=["wanted", "stored"] * 2)

    def delivery(grid, folder):
        return EncoderDelivery(network, network, folder, config, print, every=1, wait=0)

    before = federate(config)
    run = federate(config, delivery=delivery)
    assert all(run.state[name].equal(before.state[name]) for name in before.state)
    assert run.folder.encoder.read_bytes() == before.folder.encoder.read_bytes()
    during, end = (m.content[ARRAYS][ENCODER].numpy() for _, m in network.sent[1::2])
    assert end.tobytes() == run.folder.encoder.read_bytes()
    shared = run.folder.path / "shared"
    assert during.tobytes() == (shared / "encoder.safetensors").read_bytes() != end.tobytes()
    assert load_encoder(shared).dim == load_encoder(run.folder.path).dim
    sent = run.summary.pop("encoder_sent")
    assert sent["clients"] == ["a"] and sent["bytes_down"] > during.nbytes + end.nbytes
    assert run.summary["bytes_down"] == before.summary["bytes_down"]
