"""Means of what clients report."""

import numpy as np
import pytest

from orchestra_flwr.federation.server.round_report import LeftOut, RoundReport

MOST = float(np.finfo(np.float32).max)


def summarised(*metrics, weights=None):
    report = RoundReport()
    for number, measures in enumerate(metrics):
        weight = weights[number] if weights else 1
        report.results.append(("abcdefgh"[number], weight, {"examples": 1, **measures}))
    report.summarise()
    return report


def losses(*values):
    return [{"loss/x": value} for value in values]


def test_weighted_means():
    report = summarised(*losses(1.0, 4.0), weights=[1, 3])
    assert report.metrics == {"examples": 1, "loss/x": 3.25} and not report.left_out


@pytest.mark.parametrize("absurd", [MOST, -MOST, 1e6])
def test_what_is_far_from_all_others_is_in_no_mean(absurd):
    report = summarised(*losses(2.0, absurd, 4.0))
    assert report.metrics["loss/x"] == 3
    assert report.left_out == [LeftOut("b", "loss/x", absurd)]
    assert str(report.left_out[0]) == f"loss/x={absurd:g} of client b is in no mean"
    report.summarise()  # after a later stage
    assert len(report.left_out) == 1


def test_of_two_the_smaller_one_counts():
    assert summarised(*losses(MOST, 2.0)).metrics["loss/x"] == 2


@pytest.mark.parametrize(
    "values", [(0.01, 0.02, 90.0), (50.0, 80.0, 4000.0), (0.0, 0.0, 100.0), (-3.0, -1.0, 2.0)]
)
def test_what_clients_may_differ_by_stays(values):
    report = summarised(*losses(*values))
    assert not report.left_out and report.metrics["loss/x"] == pytest.approx(np.mean(values))


def test_a_metric_is_there_if_most_report_it():
    report = summarised({"loss/x": 1.0, "loss/y": 1.0}, {"loss/x": 3.0}, {})
    assert report.metrics == {"examples": 1, "loss/x": 2}
    assert summarised({"loss/x": 1.0}, {}).metrics == {"examples": 1}
    assert summarised().metrics == {}
