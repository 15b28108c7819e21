from pathlib import Path

import pytest
import yaml

from orchestra_flwr.experiments import results
from orchestra_flwr.experiments.planning.description import (
    experiment_names,
    load_experiment,
    load_scale,
)
from orchestra_flwr.experiments.results.paper import paper_source, paper_value
from orchestra_flwr.experiments.results.statistics import Sample

FOLDER = Path(results.__file__).parent


@pytest.mark.parametrize(
    ("experiment", "values", "measure", "printed"),
    [
        ("table1", ("CIFAR-10", "cross-device", "Orchestra"), "linear", Sample(71.58, 0.53, 3)),
        ("table1", ("CIFAR-100", "cross-silo", "f-BYOL"), "finetune_10", Sample(66.13, 0.63, 3)),
        ("table1", ("CIFAR-10", "cross-silo", "RotPred"), "finetune_1", Sample(45.84, 0.53, 3)),
        ("table6", ("CIFAR-100", "no target"), "linear", Sample(36.8, None, 3)),
        ("mi_table3", ("label skew", "Spectral + UV"), "linear", Sample(87.8, 0.3 * 5**0.5, 5)),
        ("mi_table5", ("joint shift", "CBAFed"), "linear_labelled", Sample(34.8, None, 5)),
        ("featarc_table2", ("two classes", "FedEMA"), "linear", Sample(83.34, None, 1)),
        ("dec_ssl_figure9", ("FeatARC",), "drift_pairs", Sample(19.71, None, 1)),
        ("dec_ssl_figure17", ("beta=1",), "emd", Sample(0.002, None, 1)),
        ("mi_table7", ("covariate shift", "SimSiam"), "linear_labelled", Sample(8.1, None, 5)),
    ],
)
def test_values_as_printed(experiment, values, measure, printed):
    axes = load_experiment(experiment).axes
    assert paper_value(experiment, dict(zip(axes, values, strict=True)), measure) == printed


def test_what_is_not_printed():
    values = {"dataset": "CIFAR-10", "clients": "10", "alpha": "1e-3"}
    assert paper_value("table4", values, "classes") is None
    assert paper_value("figure5", {}, "linear") is None
    assert paper_value("tuning", {}, "correlation").mean == 0.87
    assert paper_value("mi_sweeps", {"variant": "base"}, "linear") is None
    assert paper_value("mi_pairs", {"clients": "alike"}, "linear") is None
    assert "ICML 2022" in paper_source("table1") == paper_source("figure5")
    assert paper_source("my_own") is None and paper_value("my_own", {}, "linear") is None
    sources = {paper_source(f"mi_{name}") for name in ("table3", "sweeps", "pairs")}
    assert len(sources) == 1 and "ICLR 2024" in sources.pop()
    assert paper_value("dec_ssl_figure6", {"system": "Dec-SSL"}, "linear") is None
    assert "Tedrake" in paper_source("dec_ssl_figure6") == paper_source("featarc_figure5")


def test_every_entry_belongs_to_one_row_of_its_experiment():
    """A misspelt value would never be found."""
    settings, seen = load_scale("paper"), 0
    files = {file.stem: yaml.safe_load(file.read_text()) for file in FOLDER.glob("*.yaml")}
    tables = [item for file in files.values() for item in file.items()]
    for name, entries in tables:
        if name in ("source", "seeds", "tuning"):
            continue
        experiment = load_experiment(name)
        keys = [tuple(entry[axis] for axis in experiment.axes) for entry in entries]
        assert len(set(keys)) == len(keys)
        for entry in entries:
            seen += 1
            assert entry.keys() <= {*experiment.axes, *experiment.measures}
            for axis, choices in experiment.axes.items():
                values = settings.axes[choices] if isinstance(choices, str) else choices
                assert entry[axis] in values, (name, entry)
    orchestra, mutual_information = 28 + 16 + 10 + 6 + 5, 3 * (8 + 7 + 11 + 9 + 7)
    dec_ssl = 6 + 5 + 10 + 2 * 5
    assert seen == orchestra + mutual_information + dec_ssl
    others = {name for name in experiment_names() if name.startswith(("dec_ssl", "featarc"))}
    assert others <= files["dec_ssl"].keys()  # or another paper would be cited
