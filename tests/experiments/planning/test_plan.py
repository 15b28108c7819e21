import json
import re
import shutil
from collections import Counter
from itertools import product

import pytest

from orchestra_flwr.config import ConfigError, conf_dir, load_config
from orchestra_flwr.experiments.planning import description
from orchestra_flwr.experiments.planning.description import SCALES, experiment_names
from orchestra_flwr.experiments.planning.plan import make_plan, read_plans

OFTEN = {("table6", "paper"), ("figure5", "small")}


# A row takes .15 s: most are composed where minutes do not matter.
@pytest.mark.parametrize(
    ("name", "scale"),
    [
        pytest.param(name, scale, marks=[] if (name, scale) in OFTEN else [pytest.mark.slow])
        for name, scale in product(experiment_names(), SCALES)
    ],
)
def test_every_row_composes(name, scale):
    if (name, scale) == ("dec_ssl_figure4", "paper"):
        pytest.importorskip("timm", reason="needs the extra timm")
    plan, configs = make_plan(name, scale, seeds=[0])
    assert plan.rows and {row.run for row in plan.rows} == configs.keys()
    assert len(configs) == len(plan.rows)  # no two rows are the same run
    scored = "unsupervised" in plan.experiment.measures
    for config in configs.values():
        assert config.evaluation.unsupervised == scored  # or nothing would be there to choose by
    for row in (plan.rows[0], plan.rows[-1]):  # each takes a second
        again = load_config([*row.overrides, "seed=0"])
        assert again == configs[row.run]


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Writes the guide's example into a file of its own, with further lines; returns its name."""
    guide = (conf_dir().parent / "docs" / "experiments.md").read_text()
    (text,) = re.findall(r"^```\n(title: .*?)^```$", guide, re.MULTILINE | re.DOTALL)
    shutil.copytree(conf_dir() / "scale", tmp_path / "scale")
    (tmp_path / "experiment").mkdir()
    monkeypatch.setattr(description, "conf_dir", lambda: tmp_path)

    def write(name, *further):
        lines = "".join(f"{line}\n" for line in further)
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text + lines)
        return name

    return write


def test_the_example_of_the_guide_composes(example):
    """Its four rows, with both seeds."""
    plan, configs = make_plan(example("batch_sizes"), "small")
    assert len(plan.rows) == len(configs) == 8
    assert {config.training.batch_size for config in configs.values()} == {16, 64}


@pytest.mark.parametrize(
    ("scale", "clients", "participation", "epochs"),
    [
        ("paper", "100", "0.5", "10"),
        pytest.param("medium", "50", "0.5", None, marks=pytest.mark.slow),
        ("small", "20", "0.5", "2"),
    ],
)
def test_the_base_is_one_run_for_all_experiments(scale, clients, participation, epochs):
    """With the rate and EMA of Orchestra in the tables of methods."""
    images = "CIFAR-10" if scale == "paper" else f"{scale} images"
    shared = Counter()
    for name, *only in (
        *(("table2", "base"), ("table6", "base"), ("table7", "K-anonymity"), ("privacy", "none")),
        *(("figure5", "Orchestra", "0.1"), ("figure9", "Orchestra"), ("figure10", "0.1")),
        *(("figure6", "Orchestra", clients), ("figure7", "Orchestra", participation)),
        *([("figure8", "Orchestra", epochs)] if epochs else []),
        ("figure12", "Orchestra"),
    ):
        plan, _ = make_plan(name, scale, seeds=[0], only=[images, *only])
        (row,) = plan.rows
        shared[row.run] += 1
    assert len(shared) == 1, shared


def test_settings_of_the_mutual_information_paper():
    plan, configs = make_plan("mi_table5", "paper", seeds=[0], only=["joint shift", "CBAFed + UV"])
    (row,) = plan.rows
    config = configs[row.run]
    assert (config.federation.clients, config.federation.participation) == (100, 0.1)
    assert config.federation.weighting == "uniform" and config.server_optimizer.name == "adam"
    assert (config.training.local_epochs, config.training.batch_size) == (1, 128)
    assert config.training.lr == 0.1 and config.optimizer.options["momentum"] == 0
    assert (config.partition.name, config.partition.settings.alpha) == ("prior_dirichlet", 0.1)
    assert (config.shift.name, config.shift.settings.range) == ("rotation", 360)
    assert config.labels.fraction == 0.1 and config.method.name == "cbafed"
    assert config.method.views == "plain" and config.model.norm == "group"
    assert {term.name for term in config.active_terms} == {"verification"}
    plan, configs = make_plan("mi_table3", "paper", seeds=[0], only=["covariate shift", "Spectral"])
    (row,) = plan.rows
    config = configs[row.run]
    assert config.labels.fraction is None and not config.active_terms
    assert (config.partition.name, config.data.name) == ("iid", "cifar10")


@pytest.mark.parametrize("one, others", [("mi_table3", ["4"]), ("mi_table5", ["6", "7"])])
@pytest.mark.slow
def test_tables_of_other_images_have_the_same_runs_at_the_small_scale(one, others):
    """It has one set of photographs, and a method the same rate in all tables."""

    def runs(name):
        shown = ["data.root=photos"]
        plan, _ = make_plan(name, "small", seeds=[0], only=["label skew"], extra=shown)
        return {row.values["method"]: row.run for row in plan.rows}

    ours = runs(one)
    for other in others:
        theirs = runs(f"mi_table{other}")
        assert list(theirs)[:4] == ["Local SimCLR", "Federated SimCLR", "Spectral", "Spectral + UV"]
        shared = theirs.keys() & ours.keys()
        assert len(shared) >= 4
        assert {name: theirs[name] for name in shared} == {name: ours[name] for name in shared}


def test_settings_of_the_dec_ssl_paper():
    only = ["Dec-SSL", "one class", "BatchNorm"]
    plan, configs = make_plan("dec_ssl_figure6", "paper", seeds=[0], only=only)
    config = configs[plan.rows[0].run]
    assert (config.federation.clients, config.federation.rounds) == (10, 100)
    assert (config.training.local_epochs, config.training.batch_size) == (5, 256)
    assert (config.model.name, config.optimizer.name, config.training.lr) == (
        *("resnet18", "adam"),
        0.001,
    )
    assert config.schedule.name == "steps" and config.evaluation.recalibrated
    only = ["Dec-SL(Rep) as released", "500"]
    plan, configs = make_plan("dec_ssl_figure6c", "paper", seeds=[0], only=only)
    config = configs[plan.rows[0].run]
    assert config.method.name == "supervised" and config.schedule.settings.gamma == 1
    assert (config.federation.rounds, config.training.local_epochs) == (1, 500)


@pytest.mark.slow
def test_panels_of_dec_ssl_have_the_set_ups_above_them():
    """Figure 8: a and b are BYOL and SimSiam over local epochs; c, as 6 d, is participation."""
    _, configs = make_plan("dec_ssl_figure8", "paper", seeds=[0])
    assert {c.method.name for c in configs.values()} == {"byol", "simsiam"}
    federations = [c.federation for c in configs.values()]
    assert {(federation.clients, federation.participation) for federation in federations} == {
        (5, 1)
    }
    _, configs = make_plan("dec_ssl_figure6d", "paper", seeds=[0], only=["Dec-SSL"])
    assert {c.method.name for c in configs.values()} == {"simclr"}
    settings = {
        (c.federation.clients, c.federation.rounds, c.training.local_epochs)
        for c in configs.values()
    }
    assert settings == {(20, 100, 5), (20, 10, 50)}
    only = ["Dec-SSL", "one class with E=50"]  # Figure 13
    _, configs = make_plan("dec_ssl_figure6", "paper", seeds=[0], only=only)
    (config,) = configs.values()
    assert (config.federation.clients, config.federation.rounds) == (10, 10)
    assert config.training.local_epochs == 50 and config.partition.settings.beta == 0


def test_local_epochs_are_the_same_over_all_numbers_of_rounds():
    _, configs = make_plan(
        "dec_ssl_figure6c", "small", seeds=[0], only=["Dec-SSL"], extra=["data.root=photos"]
    )
    settings = [(c.federation.rounds, c.training.local_epochs) for c in configs.values()]
    assert settings == [(5, 2), (2, 5), (1, 10)]


@pytest.mark.parametrize("root", ["/a=b", "/it's", "/Jürgen's (2020)", "/a,b", "/[2020]"])
def test_paths_are_taken_literally(root):
    _, configs = make_plan("table6", "small", seeds=[0], only=["base"], extra=[f"data.root={root}"])
    (config,) = configs.values()
    assert config.data.options["root"] == root


@pytest.mark.slow
def test_the_two_ends_of_user_verification_differ_in_the_split_and_the_term():
    plan, configs = make_plan("mi_pairs", "small", seeds=[0])
    assert len(plan.rows) == 2 * 4
    for row in plan.rows:
        config = configs[row.run]
        federation = config.federation
        assert (federation.clients, federation.participation) == (10, 1)
        assert config.data.name == "affine_digits"
        split = {"one for each class": "by_class", "alike": "iid"}[row.values["clients"]]
        assert config.partition.name == split
        assert bool(config.active_terms) == ("UV" in row.values["method"])


@pytest.mark.slow
def test_specloss_compares_as_many_outputs_as_orchestra_has_clusters():
    for name in ("table1", "figure9"):
        plan, configs = make_plan(name, "paper", seeds=[0], only=["f-SpecLoss", "Orchestra"])
        for row in plan.rows:
            wide = 256 if row.values["dataset"] == "CIFAR-100" else 32
            config = configs[row.run]
            assert config.clustering.global_clusters == wide
            if row.values["method"] == "f-SpecLoss":
                assert config.method.settings.outputs == wide


def test_plans_are_stored_and_read_back_in_reading_order(tmp_path):
    written = [make_plan(name, "small", only=o)[0] for name, o in (
        ("figure10", ()), ("figure9", ["Orchestra"]), ("table6", ()))]  # fmt: skip
    for plan in written:
        plan.write(tmp_path)
    assert read_plans(tmp_path) == ([written[2], written[1], written[0]], {})
    assert read_plans(tmp_path / "nowhere") == ([], {})


@pytest.mark.parametrize(
    ("further", "scale", "says"),
    [
        ("leave_out: [{method: [RotPrd], batch: ['64']}]", "small",
         "x.leave_out.method=RotPrd: must be among SimCLR; RotPred"),
        ("small: {leave_out: [{batch: ['32']}]}", "small",
         "x.leave_out.batch=32: must be among 16; 64"),
        ("leave_out: [{batch: ['16', '64']}]", "small", "x.leave_out: leaves out all combinations"),
        ("small: {axes: {batch: {}}}", "small", "x.axes.batch: must have at least one value"),
    ],
)  # fmt: skip
def test_what_leaves_no_row_or_leaves_out_nothing_is_said(example, further, scale, says):
    with pytest.raises(ConfigError) as error:
        make_plan(example("x", further), scale)
    assert str(error.value) == says


def test_a_combination_may_be_left_out_at_the_scale_that_has_it(example):
    """The experiment's own entries are those of all scales."""
    further = ["leave_out: [{method: [SimCLR], batch: ['256']}]",
               "paper: {axes: {batch: {'256': [training.batch_size=256]}}}"]  # fmt: skip
    plan, _ = make_plan(example("x", *further), "small", seeds=[0])
    assert len(plan.rows) == 4
    plan, _ = make_plan("x", "paper", seeds=[0])
    assert [row.values["method"] for row in plan.rows] == ["RotPred"]


@pytest.mark.parametrize("name", ["batch-sizes", "2.1_größen", "m²"])
def test_names_may_have_what_names_of_files_have(example, tmp_path, name):
    plan, _ = make_plan(example(name), "small", seeds=[0])
    plan.write(tmp_path)
    assert read_plans(tmp_path) == ([plan], {})
    assert plan.command == f"orchestra-experiment experiment={name} scale=small seeds=0"


@pytest.mark.parametrize("name", ["batch sizes", "-batch", ".batch", "batch'"])
def test_other_names_are_refused_in_one_line(example, name):
    with pytest.raises(ConfigError) as error:
        make_plan(example(name), "small")
    assert str(error.value).startswith(f"experiment={name}: must be of letters, digits, _, -")
    assert "\n" not in str(error.value)


def test_a_plan_whose_name_is_a_path_is_not_read(tmp_path):
    plan, _ = make_plan("table6", "small", seeds=[0], only=["base"])
    plan.write(tmp_path)
    file = tmp_path / "plans" / "table6-small.json"
    file.write_text(file.read_text().replace('"name": "table6"', '"name": "../table6"'))
    plans, wrong = read_plans(tmp_path)
    assert not plans and wrong.keys() == {"plans/table6-small.json"}


def test_a_file_that_is_no_plan_is_named_and_the_others_are_read(tmp_path):
    plan, _ = make_plan("table6", "small")
    plan.write(tmp_path)
    (tmp_path / "plans" / "other.json").write_text("{}")
    (tmp_path / "plans" / "cut.json").write_text('{"name": ')
    plans, wrong = read_plans(tmp_path)
    assert plans == [plan]
    assert wrong["plans/other.json"] == "name: must be given"
    assert set(wrong) == {"plans/other.json", "plans/cut.json"}
    assert not any("\n" in why for why in wrong.values())


def test_rows_that_an_earlier_command_asked_for_stay(tmp_path):
    def rows(*seeds, **others):
        make_plan("table6", "small", seeds=seeds, **others)[0].write(tmp_path)
        ((plan,), _) = read_plans(tmp_path)
        return plan, [(row.values["variant"], row.seed) for row in plan.rows]

    plan, _ = rows(0, only=["base"])
    plan, pairs = rows(2, 1, 1)
    assert pairs == [
        *[("base", 0), ("base", 1), ("base", 2), ("no rotation", 1), ("no rotation", 2)],
        *[("no target", 1), ("no target", 2)],
    ]
    assert plan.command.splitlines() == [
        "orchestra-experiment experiment=table6 scale=small seeds=0 only=base",
        "orchestra-experiment experiment=table6 scale=small seeds=2,1,1",
    ]
    _, pairs = rows(0, only=["base"], extra=["training.lr=0.5"])  # is another experiment
    assert pairs == [("base", 0)]


def test_rows_that_were_made_on_another_device_stay(tmp_path):
    """Two commands share the seeds between two GPUs; later the images are moved."""

    def seeds(seed, *extra):
        make_plan("table6", "small", seeds=[seed], only=["base"], extra=extra)[0].write(tmp_path)
        ((plan,), _) = read_plans(tmp_path)
        return [row.seed for row in plan.rows]

    assert seeds(0, "data.root=/a/photos", "device=cuda:0") == [0]
    assert seeds(1, "data.root=/a/photos", "device=cuda:1") == [0, 1]
    assert seeds(2, "data.root=/b/photos") == [0, 1, 2]
    assert seeds(3, "data.root=/b/others") == [3]  # these are other images


def test_rows_of_an_earlier_version_do_not_stay(tmp_path):
    """Its defaults were others, and so are the names of its runs."""
    make_plan("table6", "small", seeds=[0, 1], only=["base"])[0].write(tmp_path)
    file = tmp_path / "plans" / "table6-small.json"
    written = json.loads(file.read_text())
    written["rows"][0]["run"] += "0"
    written["rows"][1]["values"]["variant"] = "no more"
    file.write_text(json.dumps(written))
    plan, _ = make_plan("table6", "small", seeds=[2], only=["base"])
    plan.write(tmp_path)
    (stored,), _ = read_plans(tmp_path)
    assert stored.rows == plan.rows


def test_overrides_in_a_strangers_plan_are_not_composed(tmp_path, user_package):
    """A plan in a folder that is passed on named packages, which were imported."""
    package = user_package({"__init__.py": "raise SystemExit('a stranger runs code')"})
    assert package.is_dir()
    make_plan("table6", "small", seeds=[0], only=["base"])[0].write(tmp_path)
    file = tmp_path / "plans" / "table6-small.json"
    written = json.loads(file.read_text())
    written["rows"][0]["overrides"] += ["plugins=[my_package]", "name=${oc.env:HOME}"]
    file.write_text(json.dumps(written))
    make_plan("table6", "small", seeds=[1], only=["base"])[0].write(tmp_path)
    (stored,), _ = read_plans(tmp_path)
    whole, _ = make_plan("table6", "small", seeds=[0, 1], only=["base"])
    assert stored.rows == whole.rows


def test_what_an_override_changes_is_not_compared_with_the_paper():
    plan, _ = make_plan("table6", "paper", extra=["data.root=photos", "device=cpu"])
    assert plan.settings.comparable
    plan, _ = make_plan("table6", "paper", extra=["federation.rounds=5"])
    assert not plan.settings.comparable


@pytest.mark.parametrize(
    ("name", "option", "readers"),
    [
        ("dec_ssl_figure2", "partition.encoder=outputs/mine", {"features alpha=0.1"}),
        ("dec_ssl_figure11", "shift.folder=styles", {"style"}),
        ("figure9", "method.ema=0.5", {"f-BYOL", "Orchestra"}),
    ],
)
@pytest.mark.slow
def test_an_option_goes_to_the_rows_whose_plugins_have_it(name, option, readers):
    plan, configs = make_plan(name, "small", seeds=[0], extra=["data.root=photos", option])
    having = [row for row in plan.rows if option in row.overrides]
    assert all(readers & {*row.values.values()} for row in having)
    assert {value for row in having for value in row.values.values()} >= readers
    key, _, value = option.partition("=")
    section, _, field = key.partition(".")
    for row in plan.rows:
        option_value = getattr(configs[row.run], section).options.get(field)
        assert (str(option_value) == value) == (row in having)


def test_wrong_overrides_are_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="method.ema: unknown option of method=simclr"):
        make_plan("figure9", "small", only=["f-SimCLR"], extra=["method.ema=0.5"])
    with pytest.raises(ConfigError, match="method.emma: unknown option of method=simclr"):
        make_plan("figure9", "small", extra=["method.emma=0.5"])
    with pytest.raises(ConfigError, match="traning.lr: unknown key"):
        make_plan("table6", "small", extra=["traning.lr=1"])
