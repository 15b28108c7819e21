import gc
import itertools
import weakref

import numpy as np
import pytest

from orchestra_flwr.federation.exchanges import Task
from orchestra_flwr.federation.messages.replies import Reply
from orchestra_flwr.federation.messages.schema import Schema
from orchestra_flwr.federation.server.plausibility import (
    LAST,
    STATISTICS,
    WEIGHTS,
    Plausibility,
    with_last,
)
from orchestra_flwr.federation.server.round_report import Moved
from orchestra_flwr.federation.vector_blocks import BLOCK

WIDE = Schema((("w", (3,)),))
NORM = Schema((("w", (2,)), ("running_mean", (1,)), ("running_var", (2,)), ("b", (1,))))


def reply(state):
    return Reply(np.asarray(state, np.float32), {}, 1, {}, "model")


class Stage:
    """Replies of clients a, b, c ... to a model, judged as a server does."""

    def __init__(self, sent, schema=WIDE, times=10.0, usual=None):
        self.sent = np.asarray(sent, np.float32)
        self.plausibility = Plausibility(schema, times, usual or {}, lambda model: self.sent)

    def judge(self, *states):
        """Clients that are taken at once, those that are taken later, and reasons by client."""
        names = "abcdefghijkl"
        at_once = [
            name
            for name, state in zip(names, states, strict=False)
            if self.plausibility.is_plausible(Task(name, ("model",)), reply(state))
        ]
        late, refused = [], {}
        for task, update, reason in self.plausibility.late():
            np.testing.assert_array_equal(update.shared, states[names.index(task.client)])
            if reason is None:
                late.append(task.client)
            else:
                refused[task.client] = str(reason)
        return "".join(at_once), "".join(late), refused


def moved_by(*norms, sent=(3, 0, 4)):
    """States at these distances from what was sent, in different directions."""
    return [np.float32(sent) + np.float32(np.roll([n, 0, 0], i)) for i, n in enumerate(norms)]


def test_up_to_the_models_own_size_all_is_plausible_at_once():
    assert Stage([3, 0, 4]).judge(*moved_by(0, 1e-3, 4.9, 5)) == ("abcd", "", {})


def test_ten_times_the_others_by_hand():
    """The model has size 5; the others of d are 1, 2 and 3, with the median 2."""
    assert Stage([3, 0, 4]).judge(*moved_by(1, 2, 3, 20)) == ("abc", "d", {})
    *_, refused = Stage([3, 0, 4]).judge(*moved_by(1, 2, 3, 20.1))
    assert refused == {
        "d": "it changed the model's weights by 20.1 (L2 norm), at most 20 is plausible "
        "(federation.max_update=10)"
    }


def test_the_one_that_is_judged_has_no_say():
    """Of two, the median of both would be half of whatever one of them sends."""
    assert Stage([3, 0, 4]).judge(*moved_by(1, 10))[:2] == ("a", "b")
    *_, refused = Stage([3, 0, 4]).judge(*moved_by(1, 10.1))
    assert refused.keys() == {"b"}


@pytest.mark.parametrize("usual", [[2], [0, 2, 9], [2, 2, 2, 0, 1e9]])
def test_what_was_usual_in_the_last_stages_counts_even_alone(usual):
    stage = Stage([3, 0, 4], usual={WEIGHTS: usual})
    assert stage.judge(*moved_by(20))[0] == "a"
    *_, refused = Stage([3, 0, 4], usual={WEIGHTS: usual}).judge(*moved_by(21))
    assert refused.keys() == {"a"}


def test_a_whole_cohort_that_moves_more_than_before_is_plausible():
    stage = Stage([0.3, 0, 0.4], usual={WEIGHTS: [0.01]})
    assert stage.judge(*moved_by(2, 3, 4, sent=(0.3, 0, 0.4))) == ("", "abc", {})


def test_who_is_alone_in_the_first_round_is_held_against_the_model():
    assert Stage([3, 0, 4]).judge(*moved_by(50)) == ("", "a", {})
    assert Stage([3, 0, 4]).judge(*moved_by(50.1))[2].keys() == {"a"}


def test_a_model_of_zeros_counts_as_one_of_ones():
    zeros = (0, 0, 0)
    assert Stage(zeros).judge(*moved_by(1.7, sent=zeros))[0] == "a"
    assert Stage(zeros).judge(*moved_by(17.3, sent=zeros))[1] == "a"
    assert Stage(zeros).judge(*moved_by(17.4, sent=zeros))[2].keys() == {"a"}


@pytest.mark.parametrize("count", range(3, 8))
def test_fewer_than_half_can_neither_get_in_nor_have_others_refused(count):
    """Whatever mixture of nothing and far too much they send, and wherever they stand."""
    honest, most = [2.0, 8.0, 4.0, 6.0, 7.0, 3.0, 5.0], (count - 1) // 2
    for hostile in itertools.combinations(range(count), most):
        for values in itertools.product([0.0, 1e9, 1e30], repeat=most):
            norms = honest[:count]
            for place, value in zip(hostile, values, strict=True):
                norms[place] = value
            at_once, late, refused = Stage([1, 0, 0]).judge(*moved_by(*norms, sent=(1, 0, 0)))
            absurd = {"abcdefg"[place] for place, norm in enumerate(norms) if norm >= 1e9}
            assert refused.keys() == absurd and len(at_once + late) == count - len(absurd)


def test_statistics_are_held_against_statistics_and_variances_as_deviations():
    """9 and 16 are deviations of 3 and 4, which is 5 together."""
    sent = [1, 1, 0, 9, 16, 1]
    stage = Stage(sent, NORM)
    moved = [1, 1, 0, 36, 64, 1]  # 6 and 8: by 5
    assert stage.judge(moved, sent) == ("ab", "", {})
    assert stage.plausibility.moved() == {
        WEIGHTS: Moved(0, 0), STATISTICS: Moved(2.5, 5)
    }  # fmt: skip
    at_once, _, refused = Stage(sent, NORM).judge([1, 1, 0, 10**6, 16, 1], moved, moved)
    assert at_once == "bc" and "model's statistics by 997 (L2 norm), at most 50" in refused["a"]
    assert Stage(sent, NORM).judge([1, 1, 60, 9, 16, 1], sent, sent)[2].keys() == {"a"}


def test_what_is_refused_is_not_usual_afterwards():
    stage = Stage([3, 0, 4])
    stage.judge(*moved_by(1, 2, 6, 1e30))
    assert stage.plausibility.moved() == {WEIGHTS: Moved(2, 6)}
    assert Stage([3, 0, 4]).plausibility.moved() == {}


def test_the_last_stages_are_remembered():
    stages = [{WEIGHTS: Moved(float(n), 9.0)} for n in range(LAST + 2)]
    assert with_last({WEIGHTS: [8.0], STATISTICS: [1.0]}, stages) == {
        WEIGHTS: [2.0, 3.0, 4.0, 5.0, 6.0], STATISTICS: [1.0]
    }  # fmt: skip


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK + 1, 3 * BLOCK + 5])
def test_norms_of_any_size_agree_with_numpy(size):
    rng = np.random.default_rng(0)
    sent, state = rng.normal(size=(2, size)).astype(np.float32)
    stage = Stage(sent, Schema((("w", (size,)),)))
    stage.judge(state)
    norm = stage.plausibility.moved()[WEIGHTS].median
    assert norm == pytest.approx(np.linalg.norm(state.astype(np.float64) - sent), rel=1e-5)


def test_norms_that_float32_cannot_hold_are_found_all_the_same():
    most = np.finfo(np.float32).max
    stage = Stage([-most, 0, 0])
    stage.judge([most, most, 0])
    assert stage.plausibility.moved()[WEIGHTS].median == pytest.approx(5**0.5 * float(most))


def test_nothing_is_measured_without_a_bound():
    stage = Stage([3, 0, 4], times=None)
    assert stage.judge(*moved_by(1, 1e30)) == ("ab", "", {}) and not stage.plausibility.moved()
    training_less = Reply(None, {}, 1, {}, "model")  # of the first round
    assert Stage([3, 0, 4]).plausibility.is_plausible(Task("a", ("model",)), training_less)


def test_who_waits_takes_no_memory():
    stage, state = Stage([3, 0, 4]), np.float32([100, 0, 0])
    watched = weakref.ref(state)
    assert not stage.plausibility.is_plausible(Task("a", ("model",)), reply(state))
    del state
    gc.collect()
    assert watched() is None
    ((_, late, _),) = stage.plausibility.late()
    np.testing.assert_array_equal(late.shared, [100, 0, 0])
