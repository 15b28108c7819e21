import json

import pytest

from orchestra_flwr.config import ConfigError, parse
from orchestra_flwr.experiments.planning import description
from orchestra_flwr.experiments.planning.description import (
    SCALES,
    Experiment,
    covers,
    experiment_names,
    load_experiment,
    load_scale,
)

VALID = {
    "title": "t",
    "reference": "r",
    "about": "a",
    "axes": {"lr": {"0.1": ["training.lr=0.1"]}},
    "measures": ["knn"],
    "show": {"kind": "table", "rows": ["lr"]},
}


def test_every_table_and_figure_of_the_paper_is_there_in_reading_order():
    assert experiment_names() == [
        *("table1", "table2", "table4", "table6", "table7"),
        *("dec_ssl_figure2", "dec_ssl_figure4", "dec_ssl_figure6", "dec_ssl_figure6c"),
        *("dec_ssl_figure6d", "dec_ssl_figure7", "dec_ssl_figure8", "dec_ssl_figure8ef"),
        *("dec_ssl_figure9", "dec_ssl_figure11", "dec_ssl_figure12", "dec_ssl_figure14"),
        *("dec_ssl_figure15", "dec_ssl_figure17", "dec_ssl_table2", "dec_ssl_table4"),
        *("featarc_figure5", "featarc_figure16", "featarc_table2"),
        *("figure5", "figure6", "figure7", "figure8", "figure9", "figure10", "figure12"),
        *("mi_pairs", "mi_sweeps", "mi_table3", "mi_table4", "mi_table5", "mi_table6", "mi_table7"),
        *("poisoning", "privacy", "tuning"),
    ]


@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_is_valid(name):
    experiment = load_experiment(name)
    assert experiment.title and experiment.about and experiment.seeds
    if experiment.show.kind in ("lines", "rounds", "embedding", "tuning"):
        assert experiment.show.series
    assert (experiment.show.kind == "lines") == (experiment.show.x is not None)


def test_scales_name_the_same_axes():
    paper, *others = (load_scale(name) for name in SCALES)
    assert paper.comparable
    for other in others:
        assert paper.axes.keys() == other.axes.keys()
        for name in ("settings", "self_supervised", "unsupervised", "methods"):
            assert paper.axes[name].keys() == other.axes[name].keys()
        assert not other.comparable


def test_medium_scale_is_small_scale_where_nothing_else_is_said():
    experiment = load_experiment("figure8")
    assert experiment.at("medium") == experiment.small != experiment.paper
    assert load_experiment("table6").at("medium").overrides == ("method.ema=0.99",)


def test_unknown_names_are_refused_with_a_list_of_all():
    with pytest.raises(ConfigError, match=r"experiment=table3: must be one of table1, table2,"):
        load_experiment("table3")
    with pytest.raises(ConfigError, match=r"scale=huge: must be one of paper, medium, small"):
        load_scale("huge")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"measures": ["acuracy"]}, "x.measures.0=acuracy"),
        ({"measures": []}, "x.measures"),
        ({"seeds": []}, "x.seeds"),
        ({"titel": "t"}, "x.titel: unknown key (did you mean x.title?)"),
        ({"show": {"kind": "pie"}}, "x.show.kind=pie"),
        ({"scaling": {"axis": "lr", "rule": "cubic"}}, "x.scaling.rule=cubic"),
    ],
)
def test_wrong_files_are_refused_in_one_line(change, says):
    with pytest.raises(ConfigError) as error:
        parse(Experiment, {**VALID, **change}, "x")
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"show": {"kind": "table", "rows": ["ema"]}}, "x.show: ema is no axis"),
        ({"leave_out": [{"ema": ["1"]}]}, "x.leave_out: ema"),
        ({"small": {"axes": {"ema": {}}}}, "x.small.axes: ema"),
    ],
)
def test_an_unknown_axis_is_refused(change, says, tmp_path, monkeypatch):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "x.yaml").write_text(json.dumps({**VALID, **change}))
    monkeypatch.setattr(description, "conf_dir", lambda: tmp_path)
    with pytest.raises(ConfigError, match=says):
        load_experiment("x")


def test_cells_cover_rows_whose_values_are_all_among_theirs():
    cells = {"a": ("1", "2"), "b": ("x",)}
    assert covers(cells, {"a": "2", "b": "x", "c": "?"})
    assert not covers(cells, {"a": "3", "b": "x"})
    assert not covers(cells, {"a": "1"})
    assert covers({}, {"a": "1"})
