"""Reports of made-up runs whose results are known."""

import json
import re
import shlex
from html.parser import HTMLParser

import numpy as np
import pytest

from orchestra_flwr.config import ConfigError
from orchestra_flwr.experiments.__main__ import main
from orchestra_flwr.experiments.planning.plan import make_plan
from orchestra_flwr.experiments.report import presentations
from orchestra_flwr.experiments.report.presentations import rounds_to_accuracy
from orchestra_flwr.experiments.report.tables import NOTHING, WORSE, lines_table, results_table
from orchestra_flwr.experiments.report.writer import write_report
from orchestra_flwr.experiments.results.comparison import read_results
from orchestra_flwr.experiments.results.paper import paper_value
from orchestra_flwr.experiments.results.runs import STARTED, read_run

BASE = {0: 0.70, 1: 0.72}  # mean 71, deviation sqrt(2), difference to 71.58: -.58


def ablations(values, seed):
    if values["variant"] == "no target":
        return None
    if values["variant"] == "no rotation":
        return {"summary": {"linear": 0.5, "not_private": "features"}} if seed == 0 else None
    return {"summary": {"linear": BASE[seed]}}


def cells(markdown):
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_means_deviations_and_differences_by_hand(make_experiment, tmp_path):
    make_experiment("table6", "paper", ablations)
    write_report(tmp_path)
    rows = cells((tmp_path / "report.md").read_text())
    assert ["variant", "linear probe, %", "paper", "difference", "seeds"] in rows
    assert ["base", "**71.00 ± 1.41**", "71.58", "-0.58", "2"] in rows
    assert ["no rotation (**NOT PRIVATE**)", "50.00", "56.62", "-6.62", "1"] in rows
    assert ["no target", NOTHING, "68.63", NOTHING, "0"] in rows
    assert ["base", "**71.00 ± 1.41**", "40.37", "+30.63", "2"] in rows


def test_a_run_that_harmed_is_marked_and_never_bold(make_experiment, make_run, tmp_path):
    """The best of two is no result where the untrained encoder was better."""

    def harmed(values, seed):
        if seed or values["variant"] == "no target":
            return None
        trained = {"base": 0.91, "no rotation": 0.5}[values["variant"]]
        return {"summary": {"linear": trained, "untrained": {"linear": 0.95}}}

    make_experiment("table6", "paper", harmed)
    make_run("alone", {"knn": 0.4, "linear": 0.5, "untrained": {"knn": 0.3, "linear": 0.6}})
    write_report(tmp_path)
    report = (tmp_path / "report.md").read_text()
    rows = cells(report)
    assert ["base", f"91.00 (-4.0) {WORSE}", "71.58", "+19.42", "1"] in rows
    assert ["before training", "95.00", "\u2013", "\u2013", "\u2013"] in rows
    assert any(row[0] == "alone" and row[6:8] == ["40.0 %", f"50.0 % {WORSE}"] for row in rows)
    assert f"{WORSE}: worse than the same encoder before training." in report


def test_a_curve_that_harmed_is_never_bold(make_experiment, tmp_path):
    def results(values, seed):
        scores = {"linear": 0.5 if values["method"] == "Orchestra" else 0.4}
        untrained = {"linear": 0.6 if values["alpha"] == "0.1" else 0.1}
        return {"summary": {**scores, "untrained": untrained}}

    plan = make_experiment("figure5", "small", results, seeds=(0,))
    results_ = read_results(plan, tmp_path)
    (section,) = results_.sections(plan.experiment.show.row_axes).values()
    table = lines_table(section, plan)
    column = table.columns.index("0.1")
    assert all(row[column].endswith(WORSE) for row in table.rows)
    assert column not in {place for _, place in table.strong} and table.strong


def test_what_is_missing_failed_or_unfinished_is_listed_with_its_reason(
    make_experiment, make_run, tmp_path
):
    plan = make_experiment("table6", "small", ablations)
    runs = {(row.values["variant"], row.seed): row.run for row in plan.rows}
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / f"{runs['no target', 0]}.log"
    log.write_text("error: the disk is full\n")
    make_run(runs["no target", 1], None, metrics=[{}, {}, {}])
    reasons = read_results(plan, tmp_path).incomplete
    assert reasons == {
        runs["no rotation", 1]: "not run",
        runs["no target", 0]: "failed: the disk is full",
        runs["no target", 1]: "unfinished, 2 of 100 rounds",
    }
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "3 of 6 runs are not complete" in text and "failed: the disk is full" in text


def test_what_could_not_be_measured_has_the_reason_of_the_last_start(make_experiment, tmp_path):
    """Of a run that was trained and then not fine-tuned; and of one that is trained once more."""
    plan = make_experiment("table6", "small", ablations)
    experiment = plan.experiment.model_copy(update={"measures": ("linear", "finetune_1")})
    plan = plan.model_copy(update={"experiment": experiment})
    runs = {(row.values["variant"], row.seed): row.run for row in plan.rows}
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / f"{runs['base', 0]}.log"
    log.write_text(f"error: before\n{STARTED}\nround 100\nerror: data.root=/x.zip: no such file\n")
    log.with_name(f"{runs['base', 1]}.log").write_text(f"error: before\n{STARTED}\nround 100\n")
    log.with_name(f"{runs['no target', 0]}.log").write_text(f"error: before\n{STARTED}\n")
    reasons = read_results(plan, tmp_path).incomplete
    missing = "not measured: 1 % labels, %"
    assert reasons[runs["base", 0]] == f"{missing}, failed: data.root=/x.zip: no such file"
    assert reasons[runs["base", 1]] == missing and reasons[runs["no target", 0]] == "not run"


def test_a_run_that_went_on_or_cannot_be_read_is_left_out(make_experiment, make_run, tmp_path):
    plan = make_experiment("table6", "small", ablations)
    rows = tuple(row.model_copy(update={"rounds": 100}) for row in plan.rows)
    longer, damaged = (row.run for row in rows if row.values["variant"] == "base")
    shorter = next(row.run for row in rows if row.values["variant"] != "base")
    summary = tmp_path / shorter / "summary.json"  # it was stopped, and ended there
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "rounds": 40}))
    config = tmp_path / longer / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 100", "rounds: 200"))
    config = tmp_path / damaged / "config.yaml"
    config.write_text(config.read_text().replace("name: dirichlet", "name: mine"))
    results = read_results(plan.model_copy(update={"rows": rows}), tmp_path)
    reasons = results.incomplete
    assert reasons[longer] == "has 200 rounds, not 100"
    assert reasons[shorter] == "has 40 rounds, not 100"
    assert reasons[damaged].startswith("cannot be read: partition=mine: must be one of")
    assert [row.runs for row in results.rows if row.values["variant"] == "base"] == [()]
    write_report(tmp_path)


def test_damaged_runs_are_named_in_the_report(make_experiment, make_run, tmp_path):
    """The others stay in it, whether the damaged ones belong to an experiment or to none."""
    plan = make_experiment("table6", "small", ablations)
    empty, cut = (row.run for row in plan.rows if row.values["variant"] == "base")
    (tmp_path / empty / "summary.json").write_text("")
    (tmp_path / cut / "metrics.jsonl").write_text('{"round": 0}\n{"rou\n')
    (make_run("mine", {"knn": 0.5}) / "summary.json").write_text("{")
    reasons = read_results(plan, tmp_path).incomplete
    assert reasons[empty].startswith(
        f"cannot be read: {tmp_path / empty / 'summary.json'}: no JSON"
    )
    assert reasons[cut].endswith("metrics.jsonl, line 2: no record of a round")
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "mine is left out: it is of another version or damaged" in text and "50.00" in text


def test_a_damaged_plan_is_named_in_the_report(make_experiment, tmp_path):
    make_experiment("table6", "small", ablations)
    (tmp_path / "plans" / "other.json").write_text("{}")
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "plans/other.json cannot be read" in text and "71.00" in text


@pytest.mark.parametrize("key", ["name", pytest.param("run", marks=pytest.mark.slow)])
def test_a_strangers_plan_leads_nowhere_else(make_experiment, tmp_path, key):
    """Its pictures would be written, and runs be read, outside of the folder."""

    def results(values, seed):
        return {"summary": {"linear": 0.5}, "metrics": curve(0.1, 0.2)}

    folder = tmp_path / "theirs"
    make_experiment("table6", "paper", results, seeds=(0,), folder=folder)
    (file,) = (folder / "plans").glob("*.json")
    plan = json.loads(file.read_text())
    (plan if key == "name" else plan["rows"][0])[key] = "../../outside"
    file.write_text(json.dumps(plan))
    write_report(folder)
    assert "table6-paper.json cannot be read" in (folder / "report.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7])
def test_tables_of_the_mutual_information_paper_stand_beside_ours(
    make_experiment, tmp_path, number
):
    """Every row of each shift has the paper's number; one row has one of ours here."""
    name, measure = f"mi_table{number}", "linear" if number < 5 else "linear_labelled"
    ran = {"shift": "joint shift", "method": "SimSiam"}
    summary = {"summary": {"linear": 0.4, "linear_labelled": 0.4, "knn": 0.4}}
    plan = make_experiment(name, "small", lambda v, seed: summary if v == ran else None, (0,))
    sections = read_results(plan, tmp_path).sections(plan.experiment.show.row_axes)
    assert list(sections) == ["label skew", "covariate shift", "joint shift"]
    for shift, results in sections.items():
        table = results_table(results, plan)
        assert table.columns[2] == "paper" and len(table.rows) == len(results)
        for method, ours, printed, *_ in table.rows:
            values = {"shift": shift, "method": method}
            assert printed == str(paper_value(name, values, measure))
            assert ours.strip("*") == ("40.00" if values == ran else NOTHING)


def test_small_scale_is_shown_beside_the_paper_with_a_warning(make_experiment, tmp_path):
    make_experiment("table6", "small", ablations)
    page = write_report(tmp_path).read_text()
    text = (tmp_path / "report.md").read_text()
    assert "must NOT be compared" in text and "must NOT be compared" in page
    assert ["base", "**71.00 ± 1.41**", "71.58", "2"] in cells(text)
    assert "difference" not in text


def test_the_figures_of_the_dec_ssl_paper_stand_beside_ours(make_experiment, tmp_path):
    make_experiment("featarc_table2", "paper", lambda values, seed: {
        "summary": {"linear": 0.8, "clients_own": {"linear": {"mean": 0.85}}}})  # fmt: skip
    make_experiment("dec_ssl_figure9", "small", lambda values, seed: {
        "summary": {"drift": {"mean": 2.0, "pairs": 3.0}}})  # fmt: skip
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    rows = cells(text)
    beside = ["paper", "difference"]
    both = ["linear probe, %", *beside, "clients' own models, probe, %", *beside]
    assert ["split / system", *both, "seeds"] in rows
    # FeatARC's figure is of clients' own models, those of the others of one model for all.
    ours, none = ["80.00 ± 0.00", "85.00 ± 0.00"], ["\N{EN DASH}"] * 2
    assert ["two classes, FedU", ours[0], "80.52", "-0.52", ours[1], *none, "2"] in rows
    assert ["two classes, FeatARC", ours[0], *none, ours[1], "84.63", "+0.37", "2"] in rows
    drift = ["Dec-SL(Rep)", "2.00 ± 0.00", "178.92", "3.00 ± 0.00", "202.69", "2"]
    assert drift in rows  # smaller is not better: nothing is bold
    assert "Tedrake" in text and "runs are not complete" not in text


def test_the_papers_scale_has_no_warning(make_experiment, tmp_path):
    make_experiment("table6", "paper", ablations)
    assert "NOT be compared" not in write_report(tmp_path).read_text()


def test_overrides_are_what_keeps_the_papers_scale_from_being_compared(tmp_path):
    """Its images, network and rounds are the paper's."""
    extra = ["training.lr=0.5", "device=cpu"]
    plan, _ = make_plan("table4", "paper", only=["10"], extra=extra)
    plan.write(tmp_path)
    text = write_report(tmp_path).read_text()
    assert "The paper's scale with training.lr=0.5: not comparable" in text
    assert "use other images" not in text


class Page(HTMLParser):
    """What a page loads, shows and links to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.sources, self.ids, self.links, self.tags = [], [], set(), [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.add(tag)
        self.sources += [attributes[k] for k in ("src", "srcset", "data") if k in attributes]
        self.links += [attributes["href"]] if "href" in attributes else []
        self.ids |= {attributes["id"]} if "id" in attributes else set()
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else(make_experiment, make_run, tmp_path):
    make_experiment("figure5", "small", lambda v, s: {"summary": {"linear": 0.5}}, seeds=(0,))
    make_run("<b>mine</b>", {"knn": 0.4}, metrics=[{"loss": {"total": 1.0}}])
    text = write_report(tmp_path).read_text()
    page = Page(text)
    assert page.open == [] and not page.tags & {"script", "link", "iframe", "object"}
    assert len(page.sources) == 2
    assert all(source.startswith("data:image/") for source in page.sources)
    assert page.links and {link.removeprefix("#") for link in page.links} <= page.ids
    assert not re.search(r"url\(|@import|https?://", text.split("</style>")[0])
    assert "prefers-color-scheme: dark" in text and "width=device-width" in text
    assert "&lt;b&gt;mine&lt;/b&gt;" in text and "<b>mine" not in text


def test_shared_features_are_red(make_experiment, tmp_path):
    make_experiment("table6", "paper", ablations)
    page = write_report(tmp_path).read_text()
    red = re.findall(r"<td>([^<]*)<strong>NOT PRIVATE</strong>", page)
    assert red == ["no rotation (", "no rotation ("]
    assert "td:first-child strong { color: var(--red); }" in page


def test_lines_have_figures_and_a_table_by_series_and_axis(make_experiment, tmp_path):
    def results(values, seed):
        linear = {"1e5": 0.5, "0.1": 0.6, "1e-3": 0.7}[values["alpha"]]
        return {"summary": {"linear": linear - 0.1 * (values["method"] != "Orchestra")}}

    make_experiment("figure5", "small", results, seeds=(0,))
    write_report(tmp_path)
    for kind in ("png", "svg"):
        assert (tmp_path / "figures" / f"figure5-small.{kind}").stat().st_size > 5000
    rows = cells((tmp_path / "report.md").read_text())
    assert ["linear probe, % by alpha (1 seeds)", "1e5", "0.1", "1e-3"] in rows
    assert ["Orchestra", "**50.00**", "**60.00**", "**70.00**"] in rows
    assert ["f-BYOL", "40.00", "50.00", "60.00"] in rows


def test_the_axis_keeps_its_order_where_a_series_lacks_a_point(
    make_experiment, tmp_path, monkeypatch
):
    def results(values, seed):
        if (values["method"], values["alpha"]) == ("f-SimCLR", "1e5"):
            return None
        return {"summary": {"linear": 0.5}}

    figures = []
    monkeypatch.setattr(presentations, "save", lambda figure, file: figures.append(figure))
    plan = make_experiment("figure5", "small", results, seeds=(0,))
    list(presentations.show_lines(read_results(plan, tmp_path), tmp_path / "f"))
    (panel, *_) = figures[0].axes
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["1e5", "0.1", "1e-3"]
    (first, *_) = panel.get_lines()
    assert list(first.get_xdata()) == [1, 2]


def test_each_measure_has_its_figure_and_the_best_of_each_column_is_bold(make_experiment, tmp_path):
    def results(values, seed):
        best = {"1e5": "Orchestra", "0.1": "RotPred", "1e-3": "f-BYOL"}[values["alpha"]]
        return {"summary": {"linear": 0.4 + 0.2 * (values["method"] == best), "knn": 0.3}}

    plan = make_experiment("figure5", "small", results, seeds=(0,))
    experiment = plan.experiment.model_copy(update={"measures": ("linear", "knn")})
    # The axis that is drawn along stands before that of the series.
    alphas = ["1e5", "0.1", "1e-3"]
    rows = tuple(sorted(plan.rows, key=lambda row: alphas.index(row.values["alpha"])))
    plan = plan.model_copy(update={"experiment": experiment, "rows": rows})
    results_ = read_results(plan, tmp_path)
    pictures = list(presentations.show_lines(results_, tmp_path / "f"))
    assert len(pictures) == len({file.read_bytes() for file in tmp_path.glob("f*.png")}) == 2
    (section,) = results_.sections(experiment.show.row_axes).values()
    table = lines_table(section, plan)
    bold = {table.rows[row][0]: table.columns[column] for row, column in table.strong}
    assert bold == {"Orchestra": "1e5", "RotPred": "0.1", "f-BYOL": "1e-3"}


def curve(*knn):
    return [{"scores": {"target": {"knn": value}} if value else None} for value in knn]


def test_rounds_to_accuracy_by_hand(make_run):
    """Means: .22, -, .31, .36 and .22, .26, .27, .28."""
    fast = [read_run(make_run(f"fast{i}", {}, metrics=curve(0.22, None, knn, 0.36)))
            for i, knn in enumerate((0.29, 0.33))]  # fmt: skip
    slow = [read_run(make_run("slow", {}, metrics=curve(0.22, 0.26, 0.27, 0.28)))]
    table = rounds_to_accuracy({"fast": fast, "slow": slow, "none": []})
    assert table.columns == ("", "25 %", "30 %", "35 %")
    assert table.rows == (("fast", "2", "2", "3"), ("slow", "1", NOTHING, NOTHING))


def test_an_accuracy_that_is_met_exactly_counts(make_run):
    run = read_run(make_run("exact", {}, metrics=curve(0.2, 0.3, 0.35, 0.36)))
    table = rounds_to_accuracy({"exact": [run]})
    assert table.columns[2:] == ("30 %", "35 %") and table.rows[0][2:] == ("1", "2")


def test_tuning_selects_and_shows_the_correlation(make_experiment, tmp_path):
    """Score against kNN: one method's rows up a line, another's down; both up that of the probe."""

    def results(values, seed):
        if values["method"] not in ("f-SimCLR", "f-BYOL"):
            return "leave out"
        knn = {"0.1": 0.3, "0.03": 0.5, "0.01": 0.4, "0.003": 0.2, "0.001": 0.25}[values["lr"]]
        score = knn if values["method"] == "f-SimCLR" else 1 - knn
        return {"summary": {"linear": score, "knn": knn, "unsupervised": {"score": score}}}

    make_experiment("tuning", "small", results, seeds=(0,))
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "f-SimCLR, 0.03, -: its score, 0.500, is the highest of 5" in text
    assert "f-BYOL, 0.003, -: its score, 0.800, is the highest of 5" in text
    assert "linear probe, 80.00 %, is the highest too; kNN 20.00 %, where labels would" in text
    assert "labels would have chosen f-BYOL, 0.03, - with 50.00 %" in text
    rows = cells(text)
    assert ["cross-device, f-SimCLR", "1.00", "1.00", NOTHING] in rows
    assert ["cross-device, f-BYOL", "1.00", "-1.00", NOTHING] in rows
    assert ["mean", "1.00", "0.00", "0.87"] in rows
    assert (tmp_path / "figures" / "tuning-small.svg").is_file()
    assert (tmp_path / "figures" / "tuning-small-linear.svg").is_file()


def test_embeddings_are_drawn_where_they_can_be(make_experiment, tmp_path):
    plan = make_experiment(
        "figure12", "small", lambda values, seed: {"summary": {"knn": 0.5}}, seeds=(0,)
    )
    points = np.random.default_rng(0).normal(size=(40, 2)).tolist()
    embedding = {"points": points, "labels": [0, 1] * 20, "classes": ["cat", "dog"]}
    (tmp_path / plan.rows[0].run / "embedding.json").write_text(json.dumps(embedding))
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert (tmp_path / "figures" / "figure12-small.png").is_file()
    assert "- f-SimSiam: encoder.safetensors is missing" in text
    assert "- f-SimCLR:" not in text


def test_provenance_and_commands_are_shown(make_experiment, tmp_path):
    make_experiment("table6", "paper", ablations)
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    for fact in (
        "orchestra-experiment experiment=table6 scale=paper",
        "orchestra-sim data=cifar10 seed=1",
        "Seeds: 0, 1",
        "cpu Abacus 9",
        "python 3.11",
        "commit abc123",
        "6 min in 6 runs, 60 s each",
    ):
        assert fact in text, fact


def test_commands_can_be_typed_again(tmp_path):
    """Whatever stands in their paths."""
    extra = ["data.root=/it's mine/a b.zip", "data.cache=/a;b"]
    plan, _ = make_plan("table6", "small", seeds=[0], only=["base"], extra=extra)
    plan.write(tmp_path)
    write_report(tmp_path)
    lines = (tmp_path / "report.md").read_text().splitlines()
    for program in ("orchestra-experiment", "orchestra-sim"):
        (line,) = [line for line in lines if line.startswith(program)]
        assert {*extra} < {*shlex.split(line)}


def test_a_plain_folder_of_runs(make_run, tmp_path):
    make_run("one", {"knn": 0.5, "linear": 0.25}, metrics=[{}, {}], overrides=["seed=3"])
    make_run("two", None, metrics=[{}])
    make_run("null", {"knn": 0.5, "seconds": None, "bytes_up": None}, overrides=["seed=4"])
    (make_run("old", {"knn": 0.5}) / "config.yaml").write_text("method: {name: orchestra}\n")
    assert main([str(tmp_path)]) == 0
    text = (tmp_path / "report.md").read_text()
    scores = ["50.0 %", "25.0 %", "60 s", "30 B"]
    assert ["one", "orchestra", "cifar10", "100", "3", "1", *scores] in cells(text)
    scores = ["50.0 %", NOTHING, NOTHING, "20 B"]
    assert ["null", "orchestra", "cifar10", "100", "4", "0", *scores] in cells(text)
    assert "0 of 100, unfinished" in text
    assert "old is left out" in text


def test_runs_in_a_plain_folder_are_told_apart_by_what_differs(make_run, tmp_path):
    """Their records may have been left out, as where they are kept beside figures."""
    for name, seed, rule in (("a", 0, "mean"), ("b", 1, "mean"), ("c", 0, "median")):
        run = [f"seed={seed}", f"aggregation={rule}"]
        make_run(name, {"knn": 0.5, "rounds": 7}, overrides=run)
    assert main([str(tmp_path)]) == 0
    rows = {row[0]: row for row in cells((tmp_path / "report.md").read_text())}
    differs = {name: rows[name][1] for name in "abc"}
    assert differs == dict.fromkeys("ab", "aggregation=mean") | {"c": "aggregation=median"}
    assert [rows[name][6] for name in "abc"] == ["7", "7", "7"]


def test_runs_in_folders_that_are_named_by_a_value_keep_it(make_run, tmp_path):
    for rate in ("0.1", "0.3"):
        make_run(rate, {"knn": 0.5}, overrides=[f"training.lr={rate}"])
    assert main([str(tmp_path)]) == 0
    rows = {row[0]: row for row in cells((tmp_path / "report.md").read_text())}
    assert [rows[name][1] for name in ("0.1", "0.3")] == ["training.lr=0.1", "training.lr=0.3"]


def test_images_with_several_labels_have_their_precision_in_reports(
    make_run, make_experiment, tmp_path
):
    scores = {"scores": {"target": {"map": 0.25}}}
    make_run("several", {"map": 0.25, "backbone": "target"}, metrics=[scores])
    make_experiment("table6", "small", lambda values, seed: {"summary": {"map": 0.5}})
    assert main([str(tmp_path)]) == 0
    text = (tmp_path / "report.md").read_text()
    assert any("mAP" in row for row in cells(text)) and "mAP, %" in text
    assert "kNN, %" not in text and "not measured" not in text and "25.0 %" in text


def test_a_folder_without_runs_is_refused(tmp_path, capsys):
    with pytest.raises(ConfigError, match="holds no runs"):
        write_report(tmp_path)
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main([]) == 2
    assert main(["--help"]) == 0


def test_the_same_runs_give_the_same_report(make_experiment, tmp_path):
    make_experiment("figure5", "small", lambda v, s: {"summary": {"linear": 0.5}}, seeds=(0,))
    first = write_report(tmp_path).read_bytes()
    assert write_report(tmp_path).read_bytes() == first
