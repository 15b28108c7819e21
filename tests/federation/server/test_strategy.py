"""A federated round worked by hand, with a method so small that pencil and paper suffice."""

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from scipy.stats import kstest
from torch import nn

from orchestra_flwr.config import MethodConfig, Section
from orchestra_flwr.federation.engines.inline import identify_process
from orchestra_flwr.federation.messages.arrays import (
    ARRAYS,
    CONFIG,
    METRICS,
    from_record,
    payload_bytes,
    to_record,
)
from orchestra_flwr.federation.messages.schema import pack_state
from orchestra_flwr.federation.server.round import draw_cohort
from orchestra_flwr.federation.server.round_report import FederationError
from orchestra_flwr.federation.server.strategy import OrchestraStrategy
from orchestra_flwr.methods import Method, Role
from orchestra_flwr.privacy.updates import standard_normals

identify_process()


class Toy(Method):
    """Two shared numbers; the server's state is the sum of all rows that clients contribute."""

    Settings = Section
    roles = {"weights": Role.SHARED, "total": Role.SERVER}
    may_contribute_nothing = True

    def __init__(self, config, size=2):
        super().__init__(config.model_copy(update={"method": MethodConfig(name="toy")}), 1)
        self.weights = nn.Parameter(torch.zeros(size))
        self.register_buffer("total", torch.zeros(3))

    def recipes(self):
        return ()

    def loss(self, batch):
        return {}

    def backbones(self):
        return {}

    def contribution_limits(self):
        return {"rows": (2, 3)}

    def update_server_state(self, contributions, generator):
        self.total.copy_(contributions["rows"].sum(0))


@pytest.fixture
def strategy(tiny):
    def make(*overrides, on_client=lambda client, ok: None, size=2, key=None):
        config = tiny("federation.clients=3", "federation.participation=1", *overrides)
        strategy = OrchestraStrategy(config, Toy(config, size), on_client, key)
        strategy.nodes = {"a": 70, "b": 71, "c": 72}
        return strategy

    return make


def answer(question, strategy, weights, rows, examples=1, smallest=5, schema=None):
    return Message(
        RecordDict(
            {
                ARRAYS: to_record(
                    {"shared": np.array(weights, np.float32), "rows": np.array(rows, np.float32)}
                ),
                METRICS: MetricRecord(
                    {"examples": examples, "loss/a": examples / 10, "smallest_group": smallest}
                ),
                CONFIG: ConfigRecord({"schema": schema or strategy.schemas.fingerprint}),
            }
        ),
        reply_to=question,
    )


def ask(strategy, round_=1):
    arrays = pack_state(strategy.method, strategy.schemas)
    return list(strategy.configure_train(round_, arrays, ConfigRecord(), None))


def three_answers(strategy, questions):
    return [
        answer(questions[0], strategy, [1, 2], [[1, 0, 0], [0, 1, 0]], examples=1, smallest=4),
        answer(questions[1], strategy, [3, 0], [[0, 0, 5]], examples=2, smallest=9),
        answer(questions[2], strategy, [5, 8], [[1, 1, 1]], examples=5, smallest=7),
    ]


def test_a_round_by_hand(strategy):
    strategy = strategy()
    arrays, metrics = strategy.aggregate_train(1, three_answers(strategy, ask(strategy)))
    # (1 + 2 * 3 + 5 * 5) / 8 and (2 + 0 + 5 * 8) / 8
    np.testing.assert_array_equal(from_record(arrays)["shared"], [4.0, 5.25])
    np.testing.assert_array_equal(from_record(arrays)["server"], [2, 2, 6])
    assert metrics["loss/a"] == pytest.approx((1 * 0.1 + 2 * 0.2 + 5 * 0.5) / 8)
    assert strategy.report.examples == 8
    assert strategy.report.smallest_group == 4


def test_uniform_weighting_is_algorithm_2(strategy):
    strategy = strategy("federation.weighting=uniform")
    arrays, _ = strategy.aggregate_train(1, three_answers(strategy, ask(strategy)))
    np.testing.assert_allclose(from_record(arrays)["shared"], [3, 10 / 3], rtol=1e-6)


def test_weights_by_full_batches_are_the_published_ones(strategy):
    """Batches of 2: images 1, 2 and 5 are 0, 1 and 2 of them, but nobody counts for nothing."""
    strategy = strategy("federation.weighting=batches", "training.batch_size=2")
    arrays, _ = strategy.aggregate_train(1, three_answers(strategy, ask(strategy)))
    np.testing.assert_array_equal(
        from_record(arrays)["shared"], [(1 + 3 + 2 * 5) / 4, (2 + 0 + 2 * 8) / 4]
    )


def test_messages_carry_both_states_the_round_and_the_configuration(strategy):
    strategy = strategy()
    questions = ask(strategy, 4)
    assert [q.metadata.dst_node_id for q in questions] == [70, 71, 72]
    content = questions[0].content
    assert set(content[ARRAYS]) == {"shared", "server"}
    assert (content[CONFIG]["round"], content[CONFIG]["train"]) == (4, True)
    assert content[CONFIG]["config"] == strategy.config.to_json()
    assert [q.content[CONFIG]["client"] for q in questions] == list(strategy.nodes)
    assert ask(strategy, 0)[0].content[CONFIG]["train"] is False


def test_a_client_may_take_its_message_apart(strategy):
    first, second, _ = ask(strategy())
    arrays = first.content.pop(ARRAYS)
    assert second.content[ARRAYS] is arrays


def test_bytes_are_those_of_the_real_messages(strategy):
    strategy = strategy()
    questions = ask(strategy)
    answers = three_answers(strategy, questions)
    strategy.aggregate_train(1, answers)
    assert strategy.report.bytes_down == 3 * payload_bytes(questions[0].content)
    assert strategy.report.bytes_up == sum(payload_bytes(a.content) for a in answers)
    assert strategy.report.bytes_up >= 3 * 2 * 4 + 4 * 3 * 4


def test_bad_replies_are_dropped_named_and_counted_out_of_the_mean(strategy):
    seen = []
    strategy = strategy("federation.min_success=0.3", on_client=lambda *s: seen.append(s))
    questions = ask(strategy)
    answers = three_answers(strategy, questions)
    answers[0] = answer(questions[0], strategy, [np.nan, 0], [[0, 0, 1]])
    answers[2] = Message(Error(1, "killed"), reply_to=questions[2])
    arrays, _ = strategy.aggregate_train(1, answers)
    np.testing.assert_array_equal(from_record(arrays)["shared"], [3, 0])
    np.testing.assert_array_equal(from_record(arrays)["server"], [0, 0, 5])
    assert [(d.client, d.reason, d.silent) for d in strategy.report.dropped] == [
        ("a", "shared holds values that are not finite", False),
        ("c", "killed", True),
    ]
    assert seen == [("a", False), ("b", True), ("c", False)]


def test_too_few_good_replies_stop_the_run_with_the_first_error(strategy):
    strategy = strategy("federation.min_success=0.5")
    questions = ask(strategy)
    answers = three_answers(strategy, questions)
    answers[0] = Message(Error(1, "no disk"), reply_to=questions[0])
    answers[1] = answer(questions[1], strategy, [0, 0], [[0, 0, 0]], schema="x")
    before = strategy.method.weights.clone()
    with pytest.raises(FederationError, match=r"1 of 3 .* asks for 2; client a: no disk"):
        strategy.aggregate_train(1, answers)
    assert torch.equal(strategy.method.weights, before)


def test_clients_without_rows_are_averaged_all_the_same(strategy):
    strategy = strategy()
    questions = ask(strategy)
    answers = three_answers(strategy, questions)
    answers[2] = answer(questions[2], strategy, [5, 8], np.zeros((0, 3)), examples=5, smallest=0)
    arrays, _ = strategy.aggregate_train(1, answers)
    np.testing.assert_array_equal(from_record(arrays)["shared"], [4.0, 5.25])
    np.testing.assert_array_equal(from_record(arrays)["server"], [1, 1, 5])
    assert strategy.report.smallest_groups == {"a": 4, "b": 9, "c": 0}
    assert strategy.report.smallest_group == 4 and not strategy.report.server_state_kept


def nobody_sends_rows(strategy, round_):
    return [
        answer(question, strategy, [1, 1], np.zeros((0, 3)), smallest=9)  # of rows it did not send
        for question in ask(strategy, round_)
    ]


def test_without_any_rows_the_servers_state_stays(strategy):
    strategy = strategy()
    strategy.method.total.copy_(torch.tensor([7.0, 8.0, 9.0]))
    arrays, _ = strategy.aggregate_train(1, nobody_sends_rows(strategy, 1))
    np.testing.assert_array_equal(from_record(arrays)["shared"], [1, 1])
    np.testing.assert_array_equal(from_record(arrays)["server"], [7, 8, 9])
    assert strategy.report.server_state_kept
    assert strategy.report.smallest_groups == {"a": 0, "b": 0, "c": 0}
    assert strategy.report.smallest_group is None


def test_without_any_rows_there_is_no_first_state(strategy):
    strategy = strategy("privacy.k_min=20")
    replies = nobody_sends_rows(strategy, 0)
    for reply in replies:
        del reply.content[ARRAYS]["shared"]
    with pytest.raises(FederationError, match=r"privacy.k_min=20 .*federation.min_images=1"):
        strategy.aggregate_train(0, replies)


CLIPPED = ("federation.weighting=uniform", "privacy.clip=2")
NOISY = (*CLIPPED, "privacy.noise_multiplier=3")
KEY = bytes(range(32))


def test_a_clipped_round_by_hand(strategy):
    strategy = strategy(*CLIPPED)
    with torch.no_grad():
        strategy.method.weights.fill_(10)
    questions = ask(strategy)
    answers = [
        answer(questions[0], strategy, [11, 10], [[0, 0, 0]]),
        answer(questions[1], strategy, [10 + 3000, 10 + 4000], [[0, 0, 0]]),  # 2500 times the clip
        answer(questions[2], strategy, [10, 8], [[0, 0, 0]]),
    ]
    arrays, _ = strategy.aggregate_train(1, answers)
    # (1, 0), (1.2, 1.6) and (0, -2)
    np.testing.assert_allclose(
        from_record(arrays)["shared"], [10 + 2.2 / 3, 10 - 0.4 / 3], rtol=1e-6
    )


def test_a_dropped_client_does_not_change_the_divisor(strategy):
    strategy = strategy(*CLIPPED)
    questions = ask(strategy)
    answers = three_answers(strategy, questions)
    answers[0] = answer(questions[0], strategy, [1, 1], [[0, 0, 0]])
    answers[1] = Message(Error(1, "killed"), reply_to=questions[1])
    answers[2] = answer(questions[2], strategy, [0.5, -1], [[0, 0, 0]])
    arrays, _ = strategy.aggregate_train(1, answers)
    np.testing.assert_allclose(from_record(arrays)["shared"], [0.5, 0], atol=1e-7)


SIZE = 300


def ask_in_int8(strategy, *overrides, **arguments):
    """A strategy of a 300 x 1 matrix that travels in int8, its state, and its questions."""
    strategy = strategy("federation.wire=int8", *overrides, size=(SIZE, 1), **arguments)
    state = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    strategy.schemas.shared.unpack(state, strategy.method.state(Role.SHARED))
    return strategy, state, ask(strategy)


def updates(strategy, questions, changes, examples=(1, 2, 5)):
    """Replies with these changes, and the changes as they can be decoded."""
    codec, generator = strategy.schemas.codec, torch.Generator().manual_seed(0)
    rows, replies, told = np.zeros((1, 3), np.float32), [], []
    for question, change, count in zip(questions, changes, examples, strict=True):
        arrays = codec.encode("update", np.asarray(change, np.float32), generator)
        reply = answer(question, strategy, [], rows, count)
        reply.content[ARRAYS] = to_record({**arrays, "rows": rows})
        replies.append(reply)
        told.append(codec.decode("update", arrays).astype(np.float64))
    return replies, told


def test_updates_by_hand(strategy):
    """They are added to the server's own state, not to the rounded one that was sent."""
    strategy, state, questions = ask_in_int8(strategy)
    sent = strategy.schemas.codec.decode("shared", from_record(questions[0].content[ARRAYS]))
    np.testing.assert_array_equal(sent, strategy.schemas.as_received(state))
    assert np.abs(sent - state).max() > 1e-3
    replies, told = updates(
        strategy, questions, np.random.default_rng(1).normal(size=(3, SIZE)) / 100
    )
    strategy.aggregate_train(1, replies)
    expected = state + np.average(told, axis=0, weights=(1, 2, 5))
    result = strategy.schemas.shared.pack(strategy.method.state(Role.SHARED))
    np.testing.assert_allclose(result, expected, atol=1e-6)
    assert strategy.report.bytes_up == sum(payload_bytes(r.content) for r in replies)


def test_changes_far_below_a_step_of_what_is_sent_add_up(strategy):
    strategy, state, questions = ask_in_int8(strategy)
    small = np.full(SIZE, 1e-4)  # a step is about .02
    for round_ in range(1, 21):
        strategy.aggregate_train(round_, updates(strategy, questions, [small] * 3)[0])
        questions = ask(strategy, round_ + 1)
    moved = strategy.schemas.shared.pack(strategy.method.state(Role.SHARED)) - state
    np.testing.assert_allclose(moved, 20 * small, rtol=1e-2)


@pytest.mark.parametrize("rogue", [3.0, 1e4, 1e30])
def test_no_update_in_int8_moves_a_clipped_sum_by_more_than_the_clip(strategy, rogue):
    """What the epsilon of a noisy run counts on, whatever codes and scales a client sends."""

    def result(third):
        made, _, questions = ask_in_int8(strategy, *CLIPPED)
        honest = np.random.default_rng(2).normal(size=(2, SIZE)) / 100
        made.aggregate_train(1, updates(made, questions, [*honest, third])[0])
        return made.schemas.shared.pack(made.method.state(Role.SHARED)).astype(np.float64)

    direction = np.random.default_rng(3).normal(size=SIZE)
    moved = result(rogue * direction) - result(np.zeros(SIZE))
    assert np.linalg.norm(moved) == pytest.approx(2 / 3, rel=1e-4)


def test_noise_is_as_large_in_int8(strategy):
    made, state, questions = ask_in_int8(strategy, *NOISY, key=KEY)
    made.aggregate_train(1, updates(made, questions, np.zeros((3, SIZE)))[0])
    moved = made.schemas.shared.pack(made.method.state(Role.SHARED)) - state
    np.testing.assert_allclose(moved, 3 * 2 * standard_normals(KEY, 1, SIZE) / 3, atol=1e-5)


def noisy_round(strategy, round_=1):
    zeros = np.zeros(strategy.schemas.shared.size)
    answers = [answer(q, strategy, zeros, [[0, 0, 0]]) for q in ask(strategy, round_)]
    arrays, _ = strategy.aggregate_train(round_, answers)
    return from_record(arrays)["shared"]


def test_noise_of_multiplier_times_clip_is_in_the_sum(strategy):
    """Nobody changes anything: what is left is N(0, (3 x 2 / 3 clients)^2)."""
    state = noisy_round(strategy(*NOISY, size=200_000, key=KEY))
    assert abs(state.mean()) < 5 * 2 / np.sqrt(200_000)
    assert abs(state.var() / 4 - 1) < 5 * np.sqrt(2 / 200_000)
    assert kstest(state / 2, "norm").pvalue > 1e-3


def test_noise_follows_from_the_key_and_the_round(strategy):
    def state(round_=1, key=KEY, *overrides):
        return noisy_round(strategy(*NOISY, *overrides, key=key), round_)

    np.testing.assert_array_equal(state(), state())
    assert (state() != state(2)).all() and (state() != state(1, KEY[::-1])).all()
    np.testing.assert_array_equal(state(), state(1, KEY, "seed=5"))


def test_there_is_no_noise_without_a_key(strategy):
    with pytest.raises(ValueError, match="key"):
        strategy(*NOISY)


def test_clients_cannot_work_out_who_takes_part(strategy):
    """They know the seed; with noise the cohort follows from the key, and no message holds it."""

    def cohorts(*overrides, key):
        made = strategy(*NOISY, "federation.participation=0.4", *overrides, key=key)
        made.nodes = {str(client): client for client in range(10)}
        return [[q.metadata.dst_node_id for q in ask(made, round_)] for round_ in range(5)]

    assert cohorts(key=KEY) == cohorts("seed=1", key=KEY) != cohorts(key=KEY[::-1])
    (question, *_) = ask(strategy(*NOISY, key=KEY))
    told = str(dict(question.content[CONFIG]))
    assert KEY.hex() not in told and str(int.from_bytes(KEY)) not in told


def evaluation(strategy, round_=1):
    arrays = pack_state(strategy.method, strategy.schemas)
    return list(strategy.configure_evaluate(round_, arrays, ConfigRecord(), None))


def score(question, strategy, alignment, uniformity, examples):
    told = {"alignment": alignment, "uniformity": uniformity, "examples": examples}
    schema = ConfigRecord({"schema": strategy.schemas.fingerprint})
    content = RecordDict({METRICS: MetricRecord(told), CONFIG: schema})
    return Message(content, reply_to=question)


def test_clients_are_not_asked_for_scores_by_default(strategy):
    assert evaluation(strategy()) == []


def test_scores_are_averaged_by_images(strategy):
    strategy = strategy("evaluation.unsupervised=true")
    first, second, third = evaluation(strategy)
    assert first.metadata.message_type == "evaluate" and first.content[CONFIG]["round"] == 1
    told = strategy.aggregate_evaluate(
        1,
        [
            score(first, strategy, 0.5, -2.0, 1),
            Message(Error(1, "killed"), reply_to=second),
            score(third, strategy, 0.9, -4.0, 3),
        ],
    )
    assert told == {
        "alignment": pytest.approx(0.8),
        "uniformity": pytest.approx(-3.5),
        "score": pytest.approx(0.8 + 0.2 * -3.5),
    }
    assert [(d.client, d.silent) for d in strategy.report.unscored] == [("b", True)]
    assert strategy.report.bytes_up == 0  # figures only
    assert strategy.report.bytes_down == 3 * payload_bytes(first.content) > 0


def test_the_rounds_cohort_is_asked_for_scores(strategy):
    part = strategy("evaluation.unsupervised=true", "federation.participation=0.34")
    trained = [q.metadata.dst_node_id for q in ask(part, 2)]
    down = part.report.bytes_down
    assert [q.metadata.dst_node_id for q in evaluation(part, 2)] == trained
    assert part.report.bytes_down == 2 * down
    alone = strategy("evaluation.unsupervised=true", "federation.participation=0.34")
    assert [q.metadata.dst_node_id for q in evaluation(alone, 2)] == trained


def test_without_any_good_score_the_round_goes_on(strategy):
    strategy = strategy("evaluation.unsupervised=true")
    replies = [Message(Error(1, "killed"), reply_to=q) for q in evaluation(strategy)]
    assert strategy.aggregate_evaluate(1, replies) is None
    assert strategy.report.similarities is None and len(strategy.report.unscored) == 3


def test_cohorts_are_drawn_from_seed_and_round():
    clients = [str(client) for client in range(100)]
    first = draw_cohort(clients, 0.5, 0, 1)
    assert first == draw_cohort(list(reversed(clients)), 0.5, 0, 1)
    assert len(first) == len(set(first)) == 50
    assert first == sorted(first, key=int)
    assert first != draw_cohort(clients, 0.5, 0, 2)
    assert first != draw_cohort(clients, 0.5, 1, 1)
    assert len(draw_cohort(["3", "5"], 0.01, 0, 1)) == 1


def test_cohorts_are_fair():
    counts = np.zeros(10)
    for round_ in range(1000):
        counts[[int(c) for c in draw_cohort([*"0123456789"], 0.3, 0, round_)]] += 1
    # Each count is binomial(1000, .3): standard deviation 14.5.
    assert abs(counts - 300).max() < 60
