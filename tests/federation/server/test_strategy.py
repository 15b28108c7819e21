"""A federated round worked by hand, with a method so small that pencil and paper suffice."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from scipy.stats import kstest
from torch import nn

from orchestra_flwr.config import MethodConfig, Section
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.federation.exchanges import Stage, Task
from orchestra_flwr.federation.exchanges.star import Star
from orchestra_flwr.federation.messages import codec
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
from orchestra_flwr.federation.messages.schema import Schemas
from orchestra_flwr.federation.server.cohorts import cohort_seed, draw_cohort
from orchestra_flwr.federation.server.named_models import Models
from orchestra_flwr.federation.server.round import Federation, Round
from orchestra_flwr.federation.server.round_messages import check_round
from orchestra_flwr.federation.server.round_report import RoundReport
from orchestra_flwr.federation.server.strategy import OrchestraStrategy
from orchestra_flwr.flower.arrays import from_record, payload_bytes, to_record
from orchestra_flwr.flower.process_identity import identify_process
from orchestra_flwr.methods import Contributes, Method, Role, Step
from orchestra_flwr.methods.roles import role_of
from orchestra_flwr.privacy.release import Contribution, Release
from orchestra_flwr.privacy.updates import standard_normals
from orchestra_flwr.training import Learner

identify_process()


class Toy(Contributes, Method):
    """Two shared numbers; the server's state is the sum of all rows that clients contribute."""

    def __init__(self, config, size=2):
        super().__init__(config.model_copy(update={"method": MethodConfig(name="simclr")}), 1)
        self.weights = nn.Parameter(torch.zeros(size))
        self.register_buffer("total", torch.zeros(3))

    def role(self, name):
        return role_of(name, {"weights": Role.SHARED, "total": Role.SERVER})

    def recipes(self):
        return ()

    def loss(self, batch):
        return Step({})

    def backbones(self):
        return {"online": SimpleNamespace(dim=9)}  # of which nothing but the width is asked

    @classmethod
    def release(cls, config):
        return RELEASE

    def end_round(self, images, seed):
        return Contribution({"rows": torch.zeros(1, 3)}, smallest_group=len(images))

    def update_server_state(self, contributions, generator):
        self.total.copy_(contributions["rows"].sum(0))
        return {"sum": float(self.total.sum())}


RELEASE = Release({"rows": (2, 3)}, "rows", may_be_empty=True, first_round=0)


class Server:
    """A server of clients a, b and c, of which each round's cohort is asked in one stage."""

    def __init__(self, config, size, on_client, key):
        self.config = config
        self.nodes = {"a": 70, "b": 71, "c": 72}
        self.method = Toy(config, size)
        learner = Learner(self.method)
        self.schemas = Schemas.of(learner, config)
        self.models = Models(config, learner, self.schemas, ["model"])
        self.exchange = Star(Section())
        self.federation = Federation(config, self.models, self.exchange, RELEASE, on_client, key)
        self.report = RoundReport()
        self.strategy = None

    def start(self, number, **known):
        seed = cohort_seed(self.config, self.federation.key)
        size = self.config.federation.cohort_size(len(self.nodes))
        cohort = draw_cohort(self.nodes, size, seed, number)
        round_ = Round(number, self.nodes, cohort, **known)
        (stage,) = self.exchange.stages(number, cohort)
        self.report = RoundReport()
        self.strategy = OrchestraStrategy(self.federation, round_, stage, self.report)

    def ask(self, number=1, **known):
        """The messages of a new round."""
        self.start(number, **known)
        return list(self.strategy.configure_train(number, ArrayRecord(), ConfigRecord(), None))

    def take(self, replies):
        """What the replies come to: the shared state, the server's, and metrics."""
        round_ = self.strategy.round
        arrays, metrics = self.strategy.aggregate_train(round_.number, replies)
        assert arrays is None
        check_round(self.federation, round_, self.report)
        return self.shared(), self.method.total.numpy(), metrics

    def shared(self):
        return self.models.shared("model")


@pytest.fixture
def server(tiny):
    def make(*overrides, on_client=lambda client, ok: None, size=2, key=None):
        config = tiny("federation.clients=3", "federation.participation=1", *overrides)
        return Server(config, size, on_client, key)

    return make


def answer(question, server, weights, rows, examples=1, smallest=5, schema=None):
    return Message(
        RecordDict(
            {
                ARRAYS: to_record(
                    {"shared": np.array(weights, np.float32), "rows": np.array(rows, np.float32)}
                ),
                METRICS: MetricRecord(
                    {"examples": examples, "loss/a": examples / 10, "smallest_group": smallest}
                ),
                CONFIG: ConfigRecord({"schema": schema or server.schemas.fingerprint}),
            }
        ),
        reply_to=question,
    )


def three_answers(server, questions):
    return [
        answer(questions[0], server, [1, 2], [[1, 0, 0], [0, 1, 0]], examples=1, smallest=4),
        answer(questions[1], server, [3, 0], [[0, 0, 5]], examples=2, smallest=9),
        answer(questions[2], server, [5, 8], [[1, 1, 1]], examples=5, smallest=7),
    ]


def test_a_round_by_hand(server):
    server = server()
    shared, total, metrics = server.take(three_answers(server, server.ask()))
    # (1 + 2 * 3 + 5 * 5) / 8 and (2 + 0 + 5 * 8) / 8
    np.testing.assert_array_equal(shared, [4.0, 5.25])
    np.testing.assert_array_equal(total, [2, 2, 6])
    assert metrics["loss/a"] == pytest.approx((1 * 0.1 + 2 * 0.2 + 5 * 0.5) / 8)
    assert server.report.examples == 8
    assert server.report.smallest_group == 4


def test_uniform_weighting_is_algorithm_2(server):
    server = server("federation.weighting=uniform")
    shared, _, _ = server.take(three_answers(server, server.ask()))
    np.testing.assert_allclose(shared, [3, 10 / 3], rtol=1e-6)


def test_weights_by_full_batches_are_the_published_ones(server):
    """Batches of 2: images 1, 2 and 5 are 0, 1 and 2 of them, but nobody counts for nothing."""
    server = server("federation.weighting=batches", "training.batch_size=2")
    shared, _, _ = server.take(three_answers(server, server.ask()))
    np.testing.assert_array_equal(shared, [(1 + 3 + 2 * 5) / 4, (2 + 0 + 2 * 8) / 4])


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("samples", [(1 + 2 * 3 + 3 * 5) / 6, (2 + 0 + 3 * 8) / 6]),  # 3 of 5
        ("batches", [(1 + 3 + 5) / 3, (2 + 8) / 3]),  # one of 2
        ("uniform", [(1 + 3 + 5) / 3, (2 + 8) / 3]),
    ],
)
def test_more_images_than_count_weigh_no_more(server, weighting, expected):
    server = server(f"federation.weighting={weighting}", "training.batch_size=2")
    shared, *_ = server.take(three_answers(server, server.ask(max_counted_images=3)))
    np.testing.assert_allclose(shared, expected, rtol=1e-6)
    assert server.report.examples == 8  # all are trained on


def test_more_images_than_a_client_joined_with_are_named_and_do_not_count(server):
    server = server()
    replies = three_answers(server, server.ask(images={"a": 1, "b": 2, "c": 3}))
    shared, *_ = server.take(replies)
    np.testing.assert_allclose(shared, [(1 + 2 * 3 + 3 * 5) / 6, (2 + 0 + 3 * 8) / 6], rtol=1e-6)
    assert server.report.examples == 6
    assert server.report.notes == ["client c reports 5 images and joined with 3, which count"]


def test_an_update_far_from_the_others_is_dropped_and_named(server):
    """Of a, b and c the first moves by 1000 times the median of the others."""
    seen = []
    server = server(on_client=lambda *s: seen.append(s))
    with torch.no_grad():
        server.method.weights.fill_(1)
    questions = server.ask()
    answers = [
        answer(questions[0], server, [3001, 1], [[9, 9, 9]]),
        answer(questions[1], server, [2, 1], [[1, 0, 0]], examples=3),
        answer(questions[2], server, [1, 6], [[0, 2, 0]]),
    ]
    shared, total, metrics = server.take(answers)
    np.testing.assert_array_equal(shared, [1.75, 2.25])
    np.testing.assert_array_equal(total, [1, 2, 0])
    assert [(d.client, d.reason, d.silent) for d in server.report.dropped] == [
        ("a", "it changed the model's weights by 3e+03 (L2 norm), at most 60 is plausible "
         "(federation.max_update=20)", False),
    ]  # fmt: skip
    assert sorted(seen) == [("a", False), ("b", True), ("c", True)]
    assert server.report.answered == 2 and metrics["loss/a"] == (3 * 0.3 + 0.1) / 4


def test_who_has_answered_is_known_by_the_message_and_one_that_is_judged_last_as_well(server):
    came = []
    server = server()
    server.federation = replace(server.federation, on_arrival=lambda *reply: came.append(reply))
    questions = server.ask()
    server.strategy.came(questions[1], False)
    assert came == [("b", False)]
    with torch.no_grad():
        server.method.weights.fill_(1)
    states = ([3001, 1], [2, 1], [1, 6])  # the first moves far: whether too far shows at the end
    server.take([answer(q, server, s, [[0, 0, 0]]) for q, s in zip(questions, states, strict=True)])
    assert came[1] == ("a", True)


def test_a_client_that_lost_its_state_is_named_in_the_round(server):
    server = server()
    replies = three_answers(server, server.ask())
    for reply, state in zip(replies, (0, 3, "nonsense"), strict=True):
        reply.content[CONFIG]["state_of"] = state
    server.take(replies)
    assert server.report.notes == [
        "client a lost its latest state and began afresh",
        "client b lost its latest state and went on from that of round 3",
    ]


def test_a_clipped_update_is_not_held_against_others(server):
    """Else one client would have a say in whether another one's noise hides it."""
    server = server(*CLIPPED)
    questions = server.ask()
    answers = [answer(q, server, [1e20, 0], [[0, 0, 0]]) for q in questions[:1]]
    answers += [answer(q, server, [0, 0], [[0, 0, 0]]) for q in questions[1:]]
    shared, *_ = server.take(answers)
    np.testing.assert_allclose(shared, [2 / 3, 0], rtol=1e-6)
    assert not server.report.dropped and not any(server.report.moved)


def test_messages_carry_both_states_the_round_and_the_configuration(server):
    server = server()
    questions = server.ask(4)
    assert [q.metadata.dst_node_id for q in questions] == [70, 71, 72]
    content = questions[0].content
    assert set(content[ARRAYS]) == {"shared", "server"}
    assert (content[CONFIG]["round"], content[CONFIG]["train"]) == (4, True)
    assert content[CONFIG]["config"] == server.config.to_json()
    assert [q.content[CONFIG]["client"] for q in questions] == list(server.nodes)
    assert server.ask(0)[0].content[CONFIG]["train"] is False


def test_a_client_may_take_its_message_apart(server):
    first, second, _ = server().ask()
    arrays = first.content.pop(ARRAYS)
    assert second.content[ARRAYS] is arrays


def test_a_reply_at_the_last_second_may_still_wait_while_others_are_fetched(server):
    server = server()
    question = server.ask()[0]
    assert question.metadata.ttl > 2 * server.config.federation.round_timeout


def test_bytes_are_those_of_the_real_messages(server):
    server = server()
    questions = server.ask()
    answers = three_answers(server, questions)
    server.take(answers)
    assert server.report.bytes_down == 3 * payload_bytes(questions[0].content)
    assert server.report.bytes_up == sum(payload_bytes(a.content) for a in answers)
    assert server.report.bytes_up >= 3 * 2 * 4 + 4 * 3 * 4


def test_bad_replies_are_dropped_named_and_counted_out_of_the_mean(server):
    seen = []
    server = server("federation.min_success=0.3", on_client=lambda *s: seen.append(s))
    questions = server.ask()
    answers = three_answers(server, questions)
    answers[0] = answer(questions[0], server, [np.nan, 0], [[0, 0, 1]])
    answers[2] = Message(Error(1, "killed"), reply_to=questions[2])
    shared, total, _ = server.take(answers)
    np.testing.assert_array_equal(shared, [3, 0])
    np.testing.assert_array_equal(total, [0, 0, 5])
    assert [(d.client, d.reason, d.silent) for d in server.report.dropped] == [
        ("a", "shared holds values that are not finite", False),
        ("c", "killed", True),
    ]
    assert sorted(seen) == [("a", False), ("b", True), ("c", False)]


def test_too_few_good_replies_stop_the_run_with_the_first_error(server):
    server = server("federation.min_success=0.5")
    questions = server.ask()
    answers = three_answers(server, questions)
    answers[0] = Message(Error(1, "no disk"), reply_to=questions[0])
    answers[1] = answer(questions[1], server, [0, 0], [[0, 0, 0]], schema="x")
    with pytest.raises(FederationError, match=r"1 of 3 .* asks for 2; client a: no disk"):
        server.take(answers)


@pytest.mark.parametrize("round_", [0, 1])
def test_a_stage_without_any_good_reply_changes_nothing(server, round_):
    server = server()
    before = {n: t.clone() for n, t in server.method.state_dict().items()}
    replies = [Message(Error(1, "killed"), reply_to=q) for q in server.ask(round_)]
    with pytest.raises(FederationError, match="0 of 3 .* asks for 2; clients a, b, c: killed"):
        server.take(replies)
    assert all(torch.equal(t, before[n]) for n, t in server.method.state_dict().items())


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["server_optimizer=momentum", "server_optimizer.lr=2"], "lr or server_optimizer.lr may"),
        (["server_optimizer=adam"], "training.lr or server_optimizer.lr may"),  # its moments
        (
            ["method=simclr", "privacy.clip=1e38", "privacy.noise_multiplier=100",
             "federation.weighting=uniform"],
            "training.lr or privacy.noise_multiplier may",
        ),
    ],
)  # fmt: skip
def test_a_model_that_overflows_ends_the_run_and_is_not_set(server, overrides, keys):
    server = server("evaluation.every=1000", *overrides, key=bytes(32))
    questions = server.ask(4)
    huge = [answer(question, server, [3e38, 0], [[0, 0, 5]]) for question in questions]
    with np.errstate(over="ignore"), pytest.raises(FederationError) as error:
        server.take(huge)
    assert str(error.value).startswith("round 4: the server's model would no longer be finite")
    assert "resume= goes on after round 3" in str(error.value) and keys in str(error.value)
    np.testing.assert_array_equal(server.shared(), [0, 0])


def test_a_large_model_is_finite_although_its_sum_is_not(server):
    server = server()
    large = [answer(question, server, [3e38, 3e38], [[0, 0, 5]]) for question in server.ask(1)]
    np.testing.assert_array_equal(server.take(large)[0], np.float32([3e38, 3e38]))


def test_clients_without_rows_are_averaged_all_the_same(server):
    server = server()
    questions = server.ask()
    answers = three_answers(server, questions)
    answers[2] = answer(questions[2], server, [5, 8], np.zeros((0, 3)), examples=5, smallest=0)
    shared, total, _ = server.take(answers)
    np.testing.assert_array_equal(shared, [4.0, 5.25])
    np.testing.assert_array_equal(total, [1, 1, 5])
    assert server.report.smallest_groups == {"a": 4, "b": 9, "c": 0}
    assert server.report.smallest_group == 4 and not server.report.server_state_kept


def nobody_sends_rows(server, round_):
    return [
        answer(question, server, [1, 1], np.zeros((0, 3)), smallest=9)  # of rows it did not send
        for question in server.ask(round_)
    ]


def test_without_any_rows_the_servers_state_stays(server):
    server = server()
    server.method.total.copy_(torch.tensor([7.0, 8.0, 9.0]))
    shared, total, _ = server.take(nobody_sends_rows(server, 1))
    np.testing.assert_array_equal(shared, [1, 1])
    np.testing.assert_array_equal(total, [7, 8, 9])
    assert server.report.server_state_kept
    assert server.report.smallest_groups == {"a": 0, "b": 0, "c": 0}
    assert server.report.smallest_group is None


def test_without_any_rows_there_is_no_first_state(server):
    server = server("privacy.k_min=20")
    replies = nobody_sends_rows(server, 0)
    for reply in replies:
        del reply.content[ARRAYS]["shared"]
    with pytest.raises(FederationError, match=r"privacy.k_min=20 .*federation.min_images=1"):
        server.take(replies)


CLIPPED = ("federation.weighting=uniform", "privacy.clip=2")
NOISY = ("method=simclr", *CLIPPED, "privacy.noise_multiplier=3")
KEY = bytes(range(32))


def test_a_clipped_round_by_hand(server):
    server = server(*CLIPPED)
    with torch.no_grad():
        server.method.weights.fill_(10)
    questions = server.ask()
    answers = [
        answer(questions[0], server, [11, 10], [[0, 0, 0]]),
        answer(questions[1], server, [10 + 3000, 10 + 4000], [[0, 0, 0]]),  # 2500 times the clip
        answer(questions[2], server, [10, 8], [[0, 0, 0]]),
    ]
    shared, _, _ = server.take(answers)
    # (1, 0), (1.2, 1.6) and (0, -2)
    np.testing.assert_allclose(shared, [10 + 2.2 / 3, 10 - 0.4 / 3], rtol=1e-6)


def test_a_dropped_client_does_not_change_the_divisor(server):
    server = server(*CLIPPED)
    questions = server.ask()
    answers = three_answers(server, questions)
    answers[0] = answer(questions[0], server, [1, 1], [[0, 0, 0]])
    answers[1] = Message(Error(1, "killed"), reply_to=questions[1])
    answers[2] = answer(questions[2], server, [0.5, -1], [[0, 0, 0]])
    shared, _, _ = server.take(answers)
    np.testing.assert_allclose(shared, [0.5, 0], atol=1e-7)


SIZE = 300


@pytest.fixture
def no_small_matrices(monkeypatch):
    """Matrices of any size travel in int4."""
    monkeypatch.setattr(codec, "SMALL", 0)


def ask_in_int8(server, *overrides, wire="int8", **arguments):
    """A strategy of a 300 x 1 matrix that travels in int8, its state, and its questions."""
    server = server(f"federation.wire={wire}", *overrides, size=(SIZE, 1), **arguments)
    state = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    server.schemas.shared.unpack(state, server.models.learner.state(Role.SHARED))
    return server, state, server.ask()


def updates(server, questions, changes, examples=(1, 2, 5)):
    """Replies with these changes, and the changes as they can be decoded."""
    coded, generator = server.schemas.codec, torch.Generator().manual_seed(0)
    rows, replies, decoded = np.zeros((1, 3), np.float32), [], []
    for question, change, count in zip(questions, changes, examples, strict=True):
        arrays = coded.encode("update", np.asarray(change, np.float32), generator)
        reply = answer(question, server, [], rows, count)
        reply.content[ARRAYS] = to_record({**arrays, "rows": rows})
        replies.append(reply)
        decoded.append(coded.decode("update", arrays).astype(np.float64))
    return replies, decoded


@pytest.mark.parametrize("wire", ["int8", "int4"])
@pytest.mark.usefixtures("no_small_matrices")
def test_updates_by_hand(server, wire):
    """They are added to the server's own state, not to the rounded one that was sent."""
    server, state, questions = ask_in_int8(server, wire=wire)
    sent = server.schemas.codec.decode("shared", from_record(questions[0].content[ARRAYS]))
    np.testing.assert_array_equal(sent, server.schemas.as_received(state))
    assert np.abs(sent - state).max() > 1e-3
    replies, decoded = updates(
        server, questions, np.random.default_rng(1).normal(size=(3, SIZE)) / 100
    )
    server.take(replies)
    expected = state + np.average(decoded, axis=0, weights=(1, 2, 5))
    result = server.shared()
    np.testing.assert_allclose(result, expected, atol=1e-6)
    assert server.report.bytes_up == sum(payload_bytes(r.content) for r in replies)


@pytest.mark.parametrize("wire", ["int8", "int4"])
@pytest.mark.usefixtures("no_small_matrices")
def test_changes_far_below_a_step_of_what_is_sent_add_up(server, wire):
    server, state, questions = ask_in_int8(server, wire=wire)
    small = np.full(SIZE, 1e-4)  # a step is about .02
    for round_ in range(1, 21):
        server.take(updates(server, questions, [small] * 3)[0])
        questions = server.ask(round_ + 1)
    moved = server.shared() - state
    # A value that is rounded down in one round is so in all of them: `updates` draws the same.
    np.testing.assert_allclose(moved, 20 * small, rtol={"int8": 1e-2, "int4": 0.2}[wire])


def sent_over(server, rounds):
    """What clients decode in so many rounds in which nobody changes anything."""
    states = []
    for round_ in range(1, rounds + 1):
        questions = server.ask(round_)
        assert server.ask(round_)[0].content == questions[0].content  # asked again, nothing changes
        states.append(server.schemas.codec.decode("shared", _arrays(questions[0])))
        server.take(updates(server, questions, np.zeros((3, SIZE)))[0])
    return np.array(states, np.float64)


def _arrays(question):
    return from_record(question.content[ARRAYS])


@pytest.mark.usefixtures("no_small_matrices")
def test_in_int4_clients_get_the_model_as_a_mean_over_the_rounds(server):
    """What rounding took from it is added the next time; the server's own state stays."""
    made, state, _ = ask_in_int8(server, wire="int4")
    sent = sent_over(made, 20)
    step = np.abs(state).max() / 6
    assert np.abs(sent[0] - state).max() > 0.4 * step
    assert np.abs(sent - state).max() < 1.3 * step
    np.testing.assert_allclose(sent.mean(0), state, atol=step * 0.6 / 20)
    np.testing.assert_allclose(made.shared(), state, atol=1e-5)
    # In int8 every round sends the same codes, as nothing has changed.
    made, state, _ = ask_in_int8(server)
    assert np.ptp(sent_over(made, 3), axis=0).max() < 1e-6


@pytest.mark.usefixtures("no_small_matrices")
def test_what_was_not_sent_yet_is_in_the_checkpoint(server):
    made, _, _ = ask_in_int8(server, wire="int4")
    sent_over(made, 3)
    saved = {name: tensor.clone() for name, tensor in made.models.tensors().items()}
    assert saved["residuals/model"].abs().max() > 0.05
    resumed, *_ = ask_in_int8(server, wire="int4")
    resumed.models.load_tensors(saved)
    np.testing.assert_array_equal(sent_over(resumed, 3), sent_over(made, 3))
    eight, *_ = ask_in_int8(server)
    with pytest.raises(ValueError, match="the residuals of another federation.wire"):
        eight.models.load_tensors(saved)


@pytest.mark.parametrize("rogue", [3.0, 1e4, 1e30])
def test_no_update_in_int8_moves_a_clipped_sum_by_more_than_the_clip(server, rogue):
    """What the epsilon of a noisy run counts on, whatever codes and scales a client sends."""

    def result(third):
        made, _, questions = ask_in_int8(server, *CLIPPED)
        honest = np.random.default_rng(2).normal(size=(2, SIZE)) / 100
        made.take(updates(made, questions, [*honest, third])[0])
        return made.shared().astype(np.float64)

    direction = np.random.default_rng(3).normal(size=SIZE)
    moved = result(rogue * direction) - result(np.zeros(SIZE))
    assert np.linalg.norm(moved) == pytest.approx(2 / 3, rel=1e-4)


def test_noise_is_as_large_in_int8(server):
    made, state, questions = ask_in_int8(server, *NOISY, key=KEY)
    made.take(updates(made, questions, np.zeros((3, SIZE)))[0])
    moved = made.shared() - state
    np.testing.assert_allclose(moved, 3 * 2 * standard_normals(KEY, 1, SIZE) / 3, atol=1e-5)


def noisy_round(server, round_=1):
    zeros = np.zeros(server.schemas.shared.size)
    answers = [answer(q, server, zeros, [[0, 0, 0]]) for q in server.ask(round_)]
    shared, _, _ = server.take(answers)
    return shared


def test_noise_of_multiplier_times_clip_is_in_the_sum(server):
    """Nobody changes anything: what is left is N(0, (3 x 2 / 3 clients)^2)."""
    state = noisy_round(server(*NOISY, size=200_000, key=KEY))
    assert abs(state.mean()) < 5 * 2 / np.sqrt(200_000)
    assert abs(state.var() / 4 - 1) < 5 * np.sqrt(2 / 200_000)
    assert kstest(state / 2, "norm").pvalue > 1e-3


def test_noise_follows_from_the_key_and_the_round(server):
    def state(round_=1, key=KEY, *overrides):
        return noisy_round(server(*NOISY, *overrides, key=key), round_)

    np.testing.assert_array_equal(state(), state())
    assert (state() != state(2)).all() and (state() != state(1, KEY[::-1])).all()
    np.testing.assert_array_equal(state(), state(1, KEY, "seed=5"))


def test_there_is_no_noise_without_a_key(server):
    with pytest.raises(ValueError, match="key"):
        server(*NOISY)


def test_clients_cannot_work_out_who_takes_part(server):
    """They know the seed; with noise the cohort follows from the key, and no message holds it."""

    def cohorts(*overrides, key):
        made = server(*NOISY, "federation.participation=0.4", *overrides, key=key)
        made.nodes = {str(client): client for client in range(10)}
        return [[q.metadata.dst_node_id for q in made.ask(round_)] for round_ in range(5)]

    assert cohorts(key=KEY) == cohorts("seed=1", key=KEY) != cohorts(key=KEY[::-1])
    (question, *_) = server(*NOISY, key=KEY).ask()
    sent = str(dict(question.content[CONFIG]))
    assert KEY.hex() not in sent and str(int.from_bytes(KEY)) not in sent


def evaluation(server, round_=1):
    """The messages that ask for scores at the end of a round."""
    if server.strategy is None or server.strategy.round.number != round_:
        server.start(round_)
    strategy = server.strategy
    return list(strategy.configure_evaluate(round_, ArrayRecord(), ConfigRecord(), None))


def score(question, server, alignment, uniformity, examples):
    scored = {"alignment": alignment, "uniformity": uniformity, "examples": examples}
    scored["effective_rank"] = 10 * alignment
    schema = ConfigRecord({"schema": server.schemas.fingerprint})
    content = RecordDict({METRICS: MetricRecord(scored), CONFIG: schema})
    return Message(content, reply_to=question)


def test_clients_are_not_asked_for_scores_by_default(server):
    assert evaluation(server()) == []


def test_scores_are_averaged_by_images(server):
    server = server("evaluation.unsupervised=true")
    first, second, third = evaluation(server)
    assert first.metadata.message_type == "evaluate" and first.content[CONFIG]["round"] == 1
    scores = server.strategy.aggregate_evaluate(
        1,
        [
            score(first, server, 0.5, -2.0, 1),
            Message(Error(1, "killed"), reply_to=second),
            score(third, server, 0.9, -4.0, 3),
        ],
    )
    assert scores == {
        "alignment": pytest.approx(0.8),
        "uniformity": pytest.approx(-3.5),
        "effective_rank": pytest.approx(8),
        "score": pytest.approx(0.8 + 0.2 * -3.5),
    }
    assert [(d.client, d.silent) for d in server.report.unscored] == [("b", True)]
    assert server.report.bytes_up == 0  # figures only
    assert server.report.bytes_down == 3 * payload_bytes(first.content) > 0


def test_scores_weigh_no_more_than_count(server):
    server = server("evaluation.unsupervised=true")
    server.start(1, max_counted_images=3, images={"a": 1, "b": 2, "c": 10**8})
    first, second, third = evaluation(server)
    scores = server.strategy.aggregate_evaluate(
        1,
        [
            score(first, server, 0.5, -2.0, 1),
            score(second, server, 0.6, -2.0, 10**8),
            score(third, server, 0.9, -4.0, 10**8),
        ],
    )
    assert scores["alignment"] == pytest.approx((0.5 + 2 * 0.6 + 3 * 0.9) / 6)


def test_the_rounds_cohort_is_asked_for_scores(server):
    part = server("evaluation.unsupervised=true", "federation.participation=0.34")
    trained = [q.metadata.dst_node_id for q in part.ask(2)]
    down = part.report.bytes_down
    assert [q.metadata.dst_node_id for q in evaluation(part, 2)] == trained
    assert part.report.bytes_down == 2 * down
    alone = server("evaluation.unsupervised=true", "federation.participation=0.34")
    assert [q.metadata.dst_node_id for q in evaluation(alone, 2)] == trained


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_no_model_is_packed_before_its_first_message_and_each_once(server, monkeypatch, kind):
    """Where each node has a model of its own, messages hold one at a time."""
    server = server("evaluation.unsupervised=true")
    server.start(1)
    models = Models(server.config, Learner(server.method), server.schemas, ["one", "two"])
    packed, original = [], models.arrays
    monkeypatch.setattr(models, "arrays", lambda name: packed.append(name) or original(name))
    federation = replace(server.federation, models=models)
    stage = Stage((Task("a", ("one",)), Task("b", ("two",)), Task("c", ("one",))))
    strategy = OrchestraStrategy(federation, server.strategy.round, stage, RoundReport())
    messages = getattr(strategy, f"configure_{kind}")(1, ArrayRecord(), ConfigRecord(), None)
    first = next(messages)
    assert packed == ["one"]
    second, third = messages
    assert packed == ["one", "two"]
    assert first.content[ARRAYS] is third.content[ARRAYS] is not second.content[ARRAYS]


def test_without_any_good_score_the_round_goes_on(server):
    server = server("evaluation.unsupervised=true")
    replies = [Message(Error(1, "killed"), reply_to=q) for q in evaluation(server)]
    assert server.strategy.aggregate_evaluate(1, replies) is None
    assert server.report.label_free is None and len(server.report.unscored) == 3
