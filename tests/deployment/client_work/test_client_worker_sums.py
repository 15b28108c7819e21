"""A real client in secure aggregation: what it demands, sends and refuses."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import RecordDict

from orchestra_flwr.deployment.client_work.client_worker import ClientWorker
from orchestra_flwr.deployment.keys.peers import NO_SIGNATURES, Signatures
from orchestra_flwr.federation.messages.failures import Failure
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, SECURE_STAGE, SECURE_TEXT
from orchestra_flwr.federation.secure_aggregation.basis import basis_of
from orchestra_flwr.federation.secure_aggregation.sum_codec import Start, codec_of
from orchestra_flwr.methods import Role
from orchestra_flwr.privacy.noisy_sums import NoisySum, sums_epsilon
from orchestra_flwr.privacy.secure_sums import Confirmations, SumClient, SumServer, primitives
from orchestra_flwr.privacy.secure_sums.sum_client import STAGES
from tests.deployment.client_work.conftest import model_of

DEMAND = "privacy.secure_aggregation=true"
OTHERS = ("attic", "garage", "shed")


@pytest.fixture
def server(configured):
    return configured("method=simclr", "federation.weighting=uniform", DEMAND,
                      "federation.min_clients=4", "federation.min_images=5")  # fmt: skip


@pytest.fixture
def keys():
    return {name: Ed25519PrivateKey.generate() for name in ("kitchen", *OTHERS)}


@pytest.fixture
def signed(keys):
    """Makes one client's signatures, which know all."""

    def verify(name, statement, signature):
        try:
            keys[name].public_key().verify(signature, statement)
        except (KeyError, InvalidSignature):
            return False
        return True

    return lambda name: Signatures(keys[name].sign, verify, len(keys))


class Talk:
    """A server and three others, who are the protocol alone, around one real client."""

    def __init__(self, worker, server, ask, task, signed, round_=1):
        self.worker, self.config, self.round = worker, server, round_
        self.ask_, self.task = ask, task
        codec = codec_of(server, model_of(server)[1])
        self.layout = codec.layout
        self.server = SumServer("run", round_, self.layout, noise=codec.noise)
        self.others = {
            name: SumClient(name, self.server.occasion, sign=signed(name).sign) for name in OTHERS
        }
        self.sent = []

    def ask(self, stage, text, **entries):
        about = {SECURE_STAGE: stage, SECURE_TEXT: json.dumps(text), **entries}
        content = self.task(self.config, self.round, **about)
        if stage == "input":
            self.server.basis = basis_of(content)
        else:
            content = RecordDict({CONFIG: content[CONFIG]})
        answer = self.ask_(self.worker, "train", content)
        if isinstance(answer, RecordDict):
            self.sent.append(answer)
            return json.loads(answer[CONFIG][SECURE_TEXT])
        return answer["failure"]

    def keys(self):
        occasion = self.server.occasion
        about = {"run": "run", "attempt": occasion.attempt, "layout": self.layout,
                 "noise": occasion.noise}  # fmt: skip
        self.server.take_keys("kitchen", self.ask("keys", about))
        for name, client in self.others.items():
            self.server.take_keys(name, client.advertise())

    def shares(self):
        roster = self.server.roster()
        self.server.take_shares("kitchen", self.ask("shares", {"roster": roster}))
        for name, client in self.others.items():
            self.server.take_shares(name, client.share(roster))

    def boxes(self):
        unopened = self.ask("boxes", self.server.boxes_for("kitchen"))
        self.server.take_holding("kitchen", unopened)
        for name, client in self.others.items():
            self.server.take_holding(name, client.hold(**self.server.boxes_for(name)))

    def input(self):
        alive = self.server.alive
        said = self.ask("input", {"alive": alive})
        arrays = self.sent[-1][ARRAYS]
        vector = [arrays[f"ring{b}"].numpy() for b, _ in self.layout]
        self.server.take_vector("kitchen", vector, said["view"])
        for name, client in self.others.items():
            vector = primitives.zeros(self.layout)
            view = client.mask(alive, vector, self.server.basis)
            self.server.take_vector(name, vector, view)
        return said

    def confirm(self):
        survivors = self.server.survivors
        signature = self.ask("confirm", {"survivors": survivors})
        self.server.take_signature("kitchen", signature)
        for name, client in self.others.items():
            self.server.take_signature(name, client.confirm(survivors, Confirmations()))

    def unmask(self):
        signatures = self.server.signatures
        views = self.server.views
        shares = self.ask("unmask", {"signatures": signatures, "views": views})
        self.server.take_unmasking("kitchen", shares)
        for name, client in self.others.items():
            self.server.take_unmasking(name, client.unmask(signatures, views))

    def until(self, stage):
        for name in STAGES:
            if name == stage:
                return self
            getattr(self, name)()
        return self


@pytest.fixture
def talk(worker, server, ask, task, signed, said, tmp_path):
    def make(*overrides, registered=True, round_=1):
        one = worker(DEMAND, *overrides)
        signatures = signed("kitchen") if registered else NO_SIGNATURES
        one = ClientWorker(one._config, "kitchen", tmp_path, said.append, signatures)
        return Talk(one, server, ask, task, signed, round_)

    return make


def test_its_update_is_in_the_sum_and_nowhere_else(talk, said):
    one = talk()
    one.until("confirm")
    names = json.loads(one.sent[-1][CONFIG][SECURE_TEXT])["metrics"]
    one.confirm()
    one.unmask()
    total = one.server.total()
    learner, schemas = model_of(one.config)
    before = schemas.shared.pack(learner.state(Role.SHARED))
    mean, sums = codec_of(one.config, schemas).decode(total, Start(before, 4), 4, names)
    moved = np.abs(mean - before).max()
    assert 0 < moved < 10 and sums.images == 20 and sums.weight == 4  # all count alike
    masked = one.sent[3][ARRAYS]["ring32"].numpy()
    assert abs(masked.astype(np.float64).mean() / 2**32 - 0.5) < 0.05
    for reply in one.sent:
        assert not reply.metric_records and dict(reply[CONFIG]).keys() == {"schema", SECURE_TEXT}
    assert said[-3:] == [
        "round 1: training", "round 1: sent its update masked, for a sum of 4 clients",
        "round 1: the sum was opened",
    ]  # fmt: skip


def test_a_greeting_does_not_say_how_many_images_it_has(talk, server, ask, greeting, said):
    answer = ask(talk().worker, "greet", greeting(server))[CONFIG]
    assert answer["images"] == 5 and "refusal" not in answer
    assert said[-1] == (
        "the server sees sums of 3 and more clients' updates, whatever it does, while at most 0 of "
        "those clients are on its side (peers.pem: 4 clients)"
    )


def test_without_peers_the_promise_is_smaller(talk, server, ask, greeting, said):
    ask(talk("privacy.min_cohort=7", registered=False).worker, "greet", greeting(server))
    assert said[-1] == (
        "the server sees sums of 7 and more clients' updates, if it follows the protocol: without "
        "peers.pem it could invent the others"
    )


def test_who_demands_sums_takes_part_in_nothing_else(worker, configured, ask, greeting, task, said):
    plain = configured("method=simclr")
    one = worker(DEMAND)
    assert ask(one, "greet", greeting(plain))[CONFIG]["refusal"] == "privacy_refused"
    assert "a sum" in Failure.named("privacy_refused").line  # not releases alone
    assert ask(one, "train", task(plain)) == {"failure": "privacy_refused"}
    assert said[-1].startswith(
        "failed: the server would see this client's own update, and privacy."
    )


def test_a_plain_round_of_a_run_with_sums_is_refused(worker, server, ask, task, said):
    for one in (worker(), worker(DEMAND)):
        assert ask(one, "train", task(server)) == {"failure": "failed"}
        assert "this run's updates are sent masked" in said[-1]


def test_a_sum_in_a_plain_run_is_refused(worker, configured, ask, task, said):
    content = task(configured("method=simclr"), secure_stage="keys", secure_text="{}")
    assert ask(worker(), "train", content) == {"failure": "privacy_refused"}
    assert said[-1].startswith("failed: the server asks for a sum in a run with privacy.secure_agg")


@pytest.mark.parametrize(("stage", "text", "entries", "why"), [
    ("shares", {"roster": []}, {}, "its own keys were replaced or left out"),
    ("shares", {}, {}, "a malformed message"),
    ("shares", 3, {}, "a malformed message"),
    ("keys", {"run": "x"}, {}, "a malformed message"),
    ("keys", {"run": "x", "attempt": "y", "noise": 0, "layout": [[32, math.inf]]}, {},
     "a malformed message"),
    ("unmask", {"signatures": {}, "views": {}}, {}, "asked for stage unmask, and it is shares"),
    ("everything", {}, {}, "'everything' is no stage of secure aggregation"),
])  # fmt: skip
def test_what_it_does_not_do(talk, said, stage, text, entries, why):
    one = talk().until("shares")
    assert one.ask(stage, text, **entries) == "privacy_refused"
    assert why in said[-1] and said[-1].startswith("failed: ") and "\n" not in said[-1]


def test_after_a_malformed_message_it_answers_nothing_more_of_a_sum(talk, said):
    """It would mask its vector without the masks of those that drew it."""
    one = talk().until("boxes")
    boxes = one.server.boxes_for("kitchen")["boxes"]
    assert one.ask("boxes", {"boxes": boxes, "graph": 3}) == "privacy_refused"
    assert "stage boxes: a malformed message" in said[-1]
    assert one.ask("input", {"alive": ["kitchen", *OTHERS]}) == "privacy_refused"
    assert said[-1] == "failed: asked for stage input of a sum that it is not in"


def test_a_cohort_below_its_own_bound_is_refused(talk, said):
    one = talk("privacy.min_cohort=5").until("shares")
    assert one.ask("shares", {"roster": one.server.roster()}) == "privacy_refused"
    assert said[-1].endswith("a sum of 4 clients, 5 to 1000 are allowed")


def test_invented_clients_are_refused(talk, said):
    """With the list of peers alone; the server makes up three others."""
    one = talk()
    one.others = {n: SumClient(n, one.server.occasion, sign=lambda s: bytes(64)) for n in OTHERS}
    one.until("shares")
    assert one.ask("shares", {"roster": one.server.roster()}) == "privacy_refused"
    assert "the keys of attic are not signed by a key in this client's list" in said[-1]
    assert said[-1].endswith("bring this client a new peers.pem and start it again")


def test_its_secrets_do_not_outlive_its_process(talk, said):
    one = talk().until("input")
    again = talk()
    again.server = one.server
    assert again.ask("input", {"alive": one.server.alive}) == "privacy_refused"
    assert "of a sum that it is not in" in said[-1]


def test_what_it_confirmed_outlives_its_process(talk, said):
    """Killed and started again: the same round with another cohort stays refused."""
    talk().until("unmask")
    again = talk()
    gone = OTHERS[0]
    again.keys()
    again.shares()
    again.boxes()
    again.input()
    survivors = [name for name in again.server.survivors if name != gone]
    assert again.ask("confirm", {"survivors": survivors}) == "privacy_refused"
    assert "was confirmed with other clients" in said[-1]


def test_another_model_is_not_trained_for_a_sum(talk, said):
    """Its length is part of what all signed."""
    one = talk().until("input")
    one.worker._sums._answers.current.occasion = SimpleNamespace(layout=((32, 5),), round=1)
    asked = {"alive": one.server.alive}
    assert one.ask("input", asked) == "privacy_refused"
    assert "a vector of another length" in said[-1]


def test_round_zero_or_another_round_is_not_trained_for_a_sum(talk, said):
    one = talk().until("input")
    one.round = 2
    assert one.ask("input", {"alive": one.server.alive}) == "privacy_refused"
    assert "round 2 is not that of the sum" in said[-1]


NOISE = ("method=simclr", "federation.weighting=uniform", DEMAND, "federation.min_clients=4",
         "federation.min_images=5", "model.norm=group", "privacy.clip=1",
         "privacy.noise_multiplier=4")  # fmt: skip


def lines_of(tmp_path):
    file = tmp_path / "noisy_sums.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_client_adds_noise_and_writes_it_down_before_it_is_sent(
    worker, configured, ask, task, signed, said, tmp_path
):
    """Noise from its system: the same round twice sums up to something else."""
    sent = []
    for _ in range(2):
        one = Talk(worker(DEMAND), configured(*NOISE), ask, task, signed)
        one.until("confirm")
        sent.append(one)
    entry = {"run": "run", "round": 1, "noise_multiplier": 4.0}
    assert [{k: line[k] for k in entry} for line in lines_of(tmp_path)] == [entry, entry]
    assert said[-1] == (
        "round 1: sent its update masked, with noise (privacy.noise_multiplier=4), for a sum of 4 "
        "clients"
    )
    sums = []
    for one in sent:
        one.worker._sums._answers.confirmations = Confirmations()  # of a third process
        one.confirm()
        one.unmask()
        sums.append(one.server.total()[0].view(np.int32).astype(float))
    plan = NoisySum(4.0, 4, len(sums[0]))
    assert np.std(sums[0]) > 0.9 * 2**plan.bits
    assert abs(np.corrcoef(*sums)[0, 1]) < 0.1


def test_its_own_bound_holds_whatever_the_server_says(
    worker, configured, ask, greeting, task, said, tmp_path
):
    quiet = [override for override in NOISE if "noise" not in override and "clip" not in override]
    at_server = [override for override in NOISE if override != DEMAND]
    bound = "privacy.updates_epsilon=5"
    for settings in (quiet, at_server, ["method=simclr"]):
        server = configured(*settings)
        assert ask(worker(bound), "greet", greeting(server))[CONFIG]["refusal"] == "privacy_refused"
        assert "privacy.updates_epsilon=5 allows only sums with noise" in said[-1]
        assert ask(worker(bound), "train", task(server))["failure"] in {"privacy_refused", "failed"}
    weak = configured(*NOISE[:-1], "privacy.noise_multiplier=1")
    greeted = ask(worker(bound), "greet", greeting(weak))[CONFIG]
    assert greeted["refusal"] == "privacy_budget_spent" and lines_of(tmp_path) == []
    at_the_server = Failure.named(greeted["refusal"]).line
    assert "privacy.updates_epsilon is spent" in at_the_server
    assert "refusal" not in ask(worker(bound), "greet", greeting(configured(*NOISE)))[CONFIG]
    assert sums_epsilon([4.0], 1e-3) < 5 < sums_epsilon([1.0], 1e-3)


@pytest.mark.parametrize(("run", "round_"), [("\ud800", 1), ("run", -1), ("../run", 1)])
def test_a_server_cannot_make_a_record_with_which_no_client_starts(
    worker, configured, ask, task, signed, said, tmp_path, run, round_
):
    one = Talk(worker(DEMAND), configured(*NOISE), ask, task, signed)
    one.round = round_
    about = {"run": run, "attempt": "a", "layout": one.layout, "noise": 4.0}
    assert one.ask("keys", about) == "privacy_refused" and lines_of(tmp_path) == []
    assert "stage keys: a malformed message" in said[-1]
    worker(DEMAND)


def test_what_is_spent_ends_its_part_and_the_last_sum_is_opened(
    worker, configured, ask, task, signed, said
):
    limit = f"privacy.updates_epsilon={sums_epsilon([4.0], 1e-3) + 0.01}"
    one = worker(DEMAND, limit)
    for round_ in (1, 2):
        talk = Talk(one, configured(*NOISE), ask, task, signed, round_)
        if round_ == 1:
            talk.until("unmask").unmask()
            assert said[-1] == "round 1: the sum was opened"
        else:
            asked = {"alive": talk.until("input").server.alive}
            assert talk.ask("input", asked) == "privacy_budget_spent"


def test_another_noise_than_that_of_the_others_is_refused(
    worker, configured, ask, task, signed, said
):
    """Each relies on the noise of all: one that is told more than the others would be deceived."""
    one = Talk(worker(DEMAND), configured(*NOISE), ask, task, signed)
    one.server = SumServer("run", 1, one.layout, noise=0.01)
    one.others = {n: SumClient(n, one.server.occasion, sign=signed(n).sign) for n in OTHERS}
    asked = {"alive": one.until("input").server.alive}
    assert one.ask("input", asked) == "privacy_refused"
    assert said[-1].endswith("with the others on privacy.noise_multiplier=0.01, and says 4 here")
