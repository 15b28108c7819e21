import io
import weakref
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from orchestra_flwr.evaluation import LabelFreeScores
from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, METRICS
from orchestra_flwr.federation.messages.replies import (
    BadReplyError,
    check_reply,
    check_scores,
    score_ranges,
)
from orchestra_flwr.federation.messages.schema import Schema, Schemas
from orchestra_flwr.flower.arrays import to_record
from orchestra_flwr.flower.process_identity import identify_process
from orchestra_flwr.privacy.release import Release
from orchestra_flwr.training import build_learner

identify_process()
SCHEMAS = Schemas(Schema((("w", (2, 2)), ("b", (1,)))), Schema((("c", (3,)),)))
RELEASE = Release({"local_centroids": (4, 3)}, "centroids")
QUESTION = Message(RecordDict(), 7, "train")
GOOD = {"shared": np.ones(5, np.float32), "local_centroids": np.ones((2, 3), np.float32)}


def reply(arrays=None, metrics=None, schema=SCHEMAS.fingerprint, without=()):
    content = {
        ARRAYS: to_record({**GOOD, **(arrays or {})}),
        METRICS: MetricRecord({"examples": 10, "loss/x": 0.5, **(metrics or {})}),
        CONFIG: ConfigRecord({} if schema is None else {"schema": schema}),
    }
    records = {name: record for name, record in content.items() if name not in without}
    return Message(RecordDict(records), reply_to=QUESTION)


def check(message, trained=True):
    return check_reply(message, SCHEMAS, RELEASE, models=["model"], trained=trained)


def test_a_good_reply_is_taken_whole():
    taken = check(reply())
    np.testing.assert_array_equal(taken.shared, GOOD["shared"])
    np.testing.assert_array_equal(taken.contributions["local_centroids"], GOOD["local_centroids"])
    assert (taken.examples, taken.metrics["loss/x"]) == (10, 0.5)


def test_the_first_round_brings_no_shared_state():
    arrays = to_record({"local_centroids": GOOD["local_centroids"]})
    message = reply()
    message.content[ARRAYS] = arrays
    assert check(message, trained=False).shared is None
    with pytest.raises(BadReplyError, match="arrays"):
        check(message, trained=True)
    with pytest.raises(BadReplyError, match="arrays"):
        check(reply(), trained=False)


def bad(value, shape=5):
    return np.full(shape, value, np.float32)


def test_a_client_may_keep_the_accuracy_of_its_own_head(tiny):
    config = tiny("method=simclr", "evaluation.personal_labels=9")
    asked = score_ranges(config, build_learner(config, 1).method)
    assert asked == {"own/personal": (0, 1)}
    without = scores(alignment=None, uniformity=None)
    assert check_scores(without, SCHEMAS, asked, {"own/personal"}) == (10, {})
    measures = {"own/personal": 0.5}
    sent = scores(alignment=None, uniformity=None, **measures)
    assert check_scores(sent, SCHEMAS, asked, {"own/personal"}) == (10, measures)
    with pytest.raises(BadReplyError, match="metrics .* instead of"):
        check_scores(without, SCHEMAS, asked)
    with pytest.raises(BadReplyError, match="own/personal is 2, 0 to 1"):
        check_scores(scores(alignment=None, uniformity=None, **{"own/personal": 2.0}),
                     SCHEMAS, asked, {"own/personal"})  # fmt: skip


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message(Error(1, "out of memory"), reply_to=QUESTION), "out of memory"),
        (Message(Error(99), reply_to=QUESTION), "error code 99"),
        (Message(Error(5), reply_to=QUESTION), "nothing was heard of it"),
        (reply(schema="other"), "schema other instead of"),
        (reply(schema=None), "schema none instead of"),
        (reply(without=[CONFIG]), "schema none instead of"),
        (reply(without=[ARRAYS]), "lacks its arrays"),
        (reply(without=[METRICS]), "lacks its metrics"),
        (reply({"shared": bad(np.nan)}), "shared holds values that are not finite"),
        (reply({"shared": bad(np.inf)}), "shared holds values that are not finite"),
        (reply({"shared": bad(1, 4)}), r"shared of shape \(4,\) instead of \(5,\)"),
        (reply({"shared": bad(1, (5, 1))}), r"shared of shape \(5, 1\)"),
        (reply({"shared": bad(1).astype(np.float64)}), "shared is float64"),
        (reply({"shared": bad(1, 5000)}), "bytes, at most"),
        (reply({"surplus": bad(1)}), "arrays .*surplus"),
        (reply({"local_centroids": bad(np.nan, (2, 3))}), "local_centroids holds values"),
        (reply({"local_centroids": bad(1, (5, 3))}), "local_centroids of shape"),
        (reply({"local_centroids": bad(1, (0, 3))}), "local_centroids of shape"),
        (reply({"local_centroids": bad(1, (2, 4))}), "local_centroids of shape"),
        (reply({"local_centroids": bad(1, 3)}), "local_centroids of shape"),
        (reply(metrics={"examples": 0}), "it reports 0 images"),
        (reply(metrics={"examples": -3}), "it reports -3 images"),
        (reply(metrics={"examples": 2.5}), "it reports 2.5 images"),
        (reply(metrics={"examples": 1e308}), "metric examples is 1e[+]308"),
        (reply(metrics={"examples": 10**8 + 1}), "it reports 1e[+]08 images"),
        (reply(metrics={"smallest_group": -1}), "rows of -1 images"),
        (reply(metrics={"smallest_group": 2.5}), "rows of 2.5 images"),
        (reply(metrics={"smallest_group": 1e30}), "rows of 1e[+]30 images"),
        (reply(metrics={"loss/x": 10**400}), "metric loss/x is 1000"),
        (reply(metrics={"loss/x": -1e308}), "metric loss/x is -1e[+]308"),
        (reply(metrics={"loss/x": float("nan")}), "metric loss/x is nan"),
        (reply(metrics={"loss/x": [1.0]}), "metric loss/x is"),
    ],
)
def test_a_bad_reply_is_dropped_with_its_reason(message, says):
    with pytest.raises(BadReplyError, match=says):
        check(message)


def test_no_more_images_count_than_a_client_joined_with():
    def count(message, images):
        return check_reply(
            message, SCHEMAS, RELEASE, models=["model"], trained=True, images=images
        ).examples

    assert [count(reply(), images) for images in (None, 3, 10, 50)] == [10, 3, 10, 10]
    counts = [check_scores(scores(), SCHEMAS, LIMITS, images=images)[0] for images in (None, 3, 50)]
    assert counts == [10, 3, 10]


def test_accuracies_are_not_negative():
    sent = scores(alignment=None, uniformity=None, **{"own/personal": -0.5})
    with pytest.raises(BadReplyError, match="own/personal is -0.5, 0 to 1"):
        check_scores(sent, SCHEMAS, {"own/personal": (0.0, 1.0)})


@pytest.mark.parametrize(("longest", "by_images"), [(2.0, False), (0.2, True)])
def test_rows_are_no_longer_than_the_release_allows(longest, by_images):
    """2 each: of all clients, or of one with ten images."""
    release = replace(RELEASE, max_norm=longest, norm_per_image=by_images)

    def rows(*lengths):
        array = np.float32([[length, 0, 0] for length in lengths])
        message = reply({"local_centroids": array})
        return check_reply(message, SCHEMAS, release, models=["model"], trained=True)

    rows(2, 0, 2.1)
    for lengths in ((1, 2.3), (-1e30, 0)):
        with pytest.raises(BadReplyError, match="local_centroids holds a row of length .*most 2"):
            rows(*lengths)


def test_variances_are_not_negative():
    schema = Schemas(Schema((("running_mean", (2,)), ("running_var", (3,)))), SCHEMAS.server)

    def check(state):
        message = reply({"shared": np.float32(state)}, schema=schema.fingerprint)
        return check_reply(message, schema, RELEASE, models=["model"], trained=True)

    check([-1, -1, 0, 0, 1])
    with pytest.raises(BadReplyError, match="shared holds variances below 0"):
        check([0, 0, 1, -1e-9, 1])


@pytest.mark.parametrize(
    "message",
    [
        reply(schema="\x1b[2J\n" + 5000 * "x"),
        reply({5000 * "x": bad(1)}),
        reply(metrics={5000 * "x": float("nan")}),
    ],
)
def test_a_reason_holds_no_more_of_a_reply_than_a_line_can_take(message):
    """It goes to the operator's terminal and into metrics.jsonl."""
    with pytest.raises(BadReplyError) as dropped:
        check(message)
    assert len(str(dropped.value)) <= 1000 and str(dropped.value).isprintable()


INT8 = Schemas(Schema((("w", (2, 2)), ("b", (1,)))), Schema((("c", (3,)),)), "int8")
RECEIVED = np.array([10, 20, 30, 40, 50], np.float32)
UPDATE = {
    "update.int8": np.array([127, -127, 0, 1], np.int8),
    "update.float16": np.array([0.5], np.float16),
    "update.scales": np.array([0.25, 2], np.float32),
}


def updating(changes=None, without=()):
    message = reply(schema=INT8.fingerprint)
    arrays = {**UPDATE, "local_centroids": GOOD["local_centroids"], **(changes or {})}
    message.content[ARRAYS] = to_record({n: a for n, a in arrays.items() if n not in without})
    return check_reply(
        message, INT8, RELEASE, models=["model"], trained=True, received={"model": RECEIVED}.get
    )


def test_an_update_is_added_to_the_state_that_was_sent():
    np.testing.assert_array_equal(updating().shared, [10 + 31.75, 20 - 31.75, 30, 40.25, 51])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"update.scales": bad(np.inf, 2)}, "update.scales holds values that are not finite"),
        ({"update.scales": bad(np.nan, 2)}, "update.scales holds values that are not finite"),
        ({"update.scales": bad(3e38, 2)}, "update holds values that are not finite"),
        ({"update.float16": np.float16([np.inf])}, "update.float16 holds values that are not"),
        ({"update.int8": np.ones(3, np.int8)}, r"update.int8 of shape \(3,\) instead of \(4,\)"),
        ({"update.int8": np.ones((4, 1), np.int8)}, r"update.int8 of shape \(4, 1\)"),
        ({"update.int8": np.ones(9000, np.int8)}, "bytes, at most 4100 expected"),
        ({"update.int8": np.ones(4, np.uint8)}, "update.int8 is uint8 instead of int8"),
        ({"update.scales": bad(1, 3)}, r"update.scales of shape \(3,\) instead of \(2,\)"),
        ({"update.scales": np.ones(2)}, "update.scales is float64 instead of float32"),
        ({"shared": bad(1)}, "arrays .*shared"),
    ],
)
def test_a_bad_update_is_dropped_with_its_reason(changes, says):
    with pytest.raises(BadReplyError, match=says):
        updating(changes)


@pytest.mark.parametrize("name", UPDATE)
def test_a_part_of_an_update_is_none(name):
    with pytest.raises(BadReplyError, match="arrays .* instead of .*" + name):
        updating(without=[name])


NO_ROWS = {"local_centroids": np.ones((0, 3), np.float32)}


def test_no_rows_are_a_reply_where_the_method_says_so():
    release = replace(RELEASE, may_be_empty=True, min_images=8)
    taken = check_reply(reply(NO_ROWS), SCHEMAS, release, models=["model"], trained=True)
    assert taken.contributions["local_centroids"].shape == (0, 3)
    np.testing.assert_array_equal(taken.shared, GOOD["shared"])


@pytest.mark.parametrize(("reported", "taken"), [(8, True), (7, False), (0, False), (-1, False)])
def test_rows_that_the_client_itself_calls_too_small_are_not_taken(reported, taken):
    message = reply(metrics={"smallest_group": reported})
    release = replace(RELEASE, min_images=8)
    if taken:
        check_reply(message, SCHEMAS, release, models=["model"], trained=True)
        return
    with pytest.raises(BadReplyError, match=f"rows of {reported} images, privacy.k_min=8"):
        check_reply(message, SCHEMAS, release, models=["model"], trained=True)


def zipped():
    file = io.BytesIO()
    np.savez(file, np.zeros(1, np.float32))
    return file.getvalue()


def numpy_file(header):
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04garbage",
        b"PK\x03\x04" + bytes(50),
        zipped(),
        numpy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,), }"),
        numpy_file("{'descr': ("),
        numpy_file("-" * 3000 + "1"),
        numpy_file("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"),
    ],
    ids=["nothing", "pickle", "zip", "npz", "huge", "bracket", "nested", "objects"],
)
def test_garbage_bytes_are_a_bad_reply(data):
    message = reply()
    record = message.content[ARRAYS]
    assert isinstance(record, ArrayRecord)
    record["shared"] = Array("float32", (3,), "numpy.ndarray", data)
    with pytest.raises(BadReplyError, match="shared cannot be decoded") as error:
        check(message)
    assert "\n" not in str(error.value)


LIMITS = {"alignment": (-1.0, 1.0), "uniformity": (-5.0, 5.0)}


def scores(schema=SCHEMAS.fingerprint, **metrics):
    reported = {"alignment": 0.5, "uniformity": -2.0, "examples": 10, **metrics}
    reported = {name: value for name, value in reported.items() if value is not None}
    content = {METRICS: MetricRecord(reported), CONFIG: ConfigRecord({"schema": schema})}
    return Message(RecordDict(content), reply_to=QUESTION)


def test_scores_without_labels_have_ranges_of_the_networks_width(tiny):
    config = tiny("method=simclr", "evaluation.unsupervised=true")
    method = build_learner(config, 1).method
    asked = score_ranges(config, method)
    dim = method.backbone.dim
    assert asked == LabelFreeScores.ranges(dim)
    measures = {"alignment": 0.1, "uniformity": 0.2, "effective_rank": float(dim)}
    assert check_scores(scores(**measures), SCHEMAS, asked)[1] == measures
    for rank in (dim + 1.0, 0.5):
        with pytest.raises(BadReplyError, match=f"effective_rank is .* 1 to {dim} expected"):
            check_scores(scores(**{**measures, "effective_rank": rank}), SCHEMAS, asked)


def test_good_scores_are_taken():
    examples, values = check_scores(scores(), SCHEMAS, LIMITS)
    assert (examples, values) == (10, {"alignment": 0.5, "uniformity": -2.0})


def test_scores_of_own_classes_are_taken_where_they_were_asked_for(tiny):
    config = tiny("method=supervised", "evaluation.clients=true")
    asked = score_ranges(config, build_learner(config, 1).method)
    assert asked == {"own/linear": (0, 1), "own/accuracy": (0, 1)}
    measures = {"own/linear": 0.5, "own/accuracy": 1.0}
    message = scores(alignment=None, uniformity=None, **measures)
    assert check_scores(message, SCHEMAS, asked) == (10, measures)
    with pytest.raises(BadReplyError, match="metrics .* instead of"):
        check_scores(message, SCHEMAS, LIMITS)
    with pytest.raises(BadReplyError, match="own/accuracy is 1.5, 0 to 1 expected"):
        check_scores(scores(alignment=None, uniformity=None, **{**measures, "own/accuracy": 1.5}),
                     SCHEMAS, asked)  # fmt: skip


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message(Error(1, "out of memory"), reply_to=QUESTION), "out of memory"),
        (scores(schema="other"), "schema other instead of"),
        (scores(examples=0), "it reports 0 images"),
        (scores(alignment=1.1), "alignment is 1.1, -1 to 1"),
        (scores(uniformity=-5.1), "uniformity is -5.1, -5 to 5"),
        (scores(uniformity=float("nan")), "metric uniformity is nan"),
        (
            scores(alignment=None),
            r"metrics \['examples', 'uniformity'\] instead of "
            r"\['alignment', 'examples', 'uniformity'\]",
        ),
        (scores(feature_0=0.3), "metrics .*feature_0.* instead of"),
        (reply(), r"arrays \['arrays'\] in answer to an evaluation"),
    ],
)
def test_other_scores_are_refused_and_above_all_arrays(message, says):
    with pytest.raises(BadReplyError, match=says):
        check_scores(message, SCHEMAS, LIMITS)


def test_nothing_of_a_reply_keeps_its_bytes_once_it_was_added():
    """A reply lies in Ray's store, whole, for as long as anything looks at it."""
    message = reply()
    memory = weakref.ref(message.content)
    taken = check(message)
    assert taken.contributions["local_centroids"].base is None
    del message
    assert memory() is None  # without the garbage collector


def of_model(name):
    about = {"schema": SCHEMAS.fingerprint} | ({} if name is None else {"model": name})
    message = reply()
    message.content[CONFIG] = ConfigRecord(about)
    return message


def test_a_reply_says_which_of_several_models_it_trained():
    taken = check_reply(of_model("b"), SCHEMAS, RELEASE, models=["a", "b"], trained=True)
    assert taken.model == "b"
    assert check_reply(of_model(None), SCHEMAS, RELEASE, models=["a"], trained=True).model == "a"


@pytest.mark.parametrize(
    ("name", "models", "says"),
    [
        ("c", ["a", "b"], "it trained the model 'c', and was sent a, b"),
        (None, ["a", "b"], "it trained the model '', and was sent a, b"),
        ("b", ["a"], "it trained the model 'b', and was sent a"),
    ],
)
def test_a_model_that_was_not_sent_is_refused(name, models, says):
    with pytest.raises(BadReplyError, match=says):
        check_reply(of_model(name), SCHEMAS, RELEASE, models=models, trained=True)


def test_an_update_belongs_to_the_model_that_was_trained():
    message = of_model("b")
    message.content[CONFIG]["schema"] = INT8.fingerprint
    message.content[ARRAYS] = to_record({**UPDATE, "local_centroids": GOOD["local_centroids"]})
    received = {"a": RECEIVED, "b": RECEIVED + 1000}.get
    taken = check_reply(message, INT8, RELEASE, models=["a", "b"], trained=True, received=received)
    np.testing.assert_array_equal(taken.shared, [1041.75, 988.25, 1030, 1040.25, 1051])
