"""Charts, looked into."""

import numpy as np
import pytest

from orchestra_flwr.experiments.report.charts import (
    draw_embeddings,
    draw_progress,
    draw_rounds,
    save,
)
from orchestra_flwr.experiments.results.runs import read_run

ROUND = {"loss": {"total": 1.0}, "scores": {"target": {"knn": 0.5}}, "seconds": 3.0}


@pytest.mark.parametrize(
    ("count", "name"),
    [(1, "short"), (2, "federation.rounds=100, training.lr=0.1"), (30, "training.lr=0.123"),
     (2, "data.root=/a$b_{$"), (12, "a very long name of a run, " * 7)],
)  # fmt: skip
def test_the_legend_is_inside_and_the_panels_have_room(count, name, make_run):
    run = read_run(make_run("run", {}, metrics=[ROUND, ROUND]))
    figure = draw_progress({f"{name} {number}": [run] for number in range(count)})
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == count
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0
    for panel in figure.axes:
        assert panel.get_window_extent().height > 1.5 * figure.dpi  # inches
        assert panel.get_window_extent().y0 > box.y1


def test_letters_that_the_font_lacks_are_no_warning(make_run, tmp_path, recwarn):
    run = read_run(make_run("run", {}, metrics=[ROUND, ROUND]))
    save(draw_progress({"data.root=\u732b": [run]}), tmp_path / "picture")
    assert [str(warning.message) for warning in recwarn] == []


def test_names_that_begin_with_an_underscore_are_in_the_legend(make_run):
    run = read_run(make_run("run", {}, metrics=[ROUND, ROUND]))
    embedding = (np.eye(2), np.arange(2), ("_ant", "bee"))
    for figure in (draw_progress({"_ant": [run], "bee": [run]}), draw_embeddings({"a": embedding})):
        (legend,) = figure.legends
        assert [text.get_text().strip() for text in legend.get_texts()] == ["_ant", "bee"]


def test_a_curve_over_the_rounds_is_the_mean_of_the_seeds_in_a_band(make_run):
    """Only of rounds that all seeds have: its lower end is in round 1, its upper one in 2."""
    seeds = [
        read_run(make_run(f"seed{number}", {}, metrics=[
            {**ROUND, "round": at + 1, "scores": {"target": {"knn": score}}}
            for at, score in enumerate(scores)
        ]))
        for number, scores in enumerate([(0.2, 0.4), (0.4, 0.8, 0.9)])
    ]  # fmt: skip
    (panel,) = draw_rounds({"one": {"ours": seeds}}).axes
    (curve,) = panel.lines
    assert curve.get_xydata().tolist() == pytest.approx(np.array([[1, 30], [2, 60]]))
    (band,) = panel.collections
    box = band.get_datalim(panel.transData)
    assert (box.y0, box.y1) == pytest.approx((30 - 10 * 2**0.5, 60 + 20 * 2**0.5))
