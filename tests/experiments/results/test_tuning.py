from orchestra_flwr.experiments.results.comparison import Result
from orchestra_flwr.experiments.results.statistics import Sample
from orchestra_flwr.experiments.results.tuning import selection


def row(lr, score=None, knn=None, linear=None):
    measures = {"unsupervised": score, "knn": knn, "linear": linear}
    ours = {name: Sample(value, None, 1) for name, value in measures.items() if value is not None}
    return Result({"lr": lr}, (), ours, {})


def test_the_highest_score_is_chosen_whatever_the_labels_say():
    rows = [row("0.1", 0.2, 60.0), row("0.01", 0.5, 55.0), row("0.001", 0.4, 50.0)]
    why = selection(rows, ("lr",))
    assert why.startswith("0.01: its score, 0.500, is the highest of 3 (next: 0.001, 0.400)")
    assert why.endswith("kNN 55.00 %, where labels would have chosen 0.1 with 60.00 %")


def test_a_choice_that_labels_agree_with():
    why = selection([row("0.1", 0.2, 60.0), row("0.01", 0.1, 60.0)], ("lr",))
    assert why.endswith("kNN, 60.00 %, is the highest too")


def test_probe_and_knn_may_disagree():
    why = selection([row("0.1", 0.2, 60.0, 70.0), row("0.01", 0.1, 65.0, 68.0)], ("lr",))
    assert why.endswith(
        "; linear probe, 70.00 %, is the highest too; "
        "kNN 60.00 %, where labels would have chosen 0.01 with 65.00 %"
    )


def test_rows_without_a_score_are_no_candidates():
    assert selection([row("0.1", knn=60.0)], ("lr",)) is None
    assert "highest of 1;" in selection([row("0.1", knn=60.0), row("0.01", 0.1, 50.0)], ("lr",))
