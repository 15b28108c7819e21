import shutil
from collections import Counter

import pytest

from orchestra_flwr.config import ConfigError, conf_dir, load_config
from orchestra_flwr.experiments.planning import description
from orchestra_flwr.experiments.planning.plan import make_plan
from orchestra_flwr.experiments.planning.rows import run_name


def cell(plan, configs, **values):
    (row,) = [r for r in plan.rows if values.items() <= r.values.items() and r.seed == 0]
    return configs[row.run]


def test_settings_of_the_paper():
    plan, configs = make_plan("table6", "paper")
    base = cell(plan, configs, dataset="CIFAR-100", variant="no target")
    assert (base.clustering.global_clusters, base.clustering.local_clusters) == (256, 16)
    assert base.federation.clients == 100 and base.federation.participation == 0.5
    assert base.training.lr == 0.003 and base.training.local_epochs == 10
    assert base.model.name == "resnet18" and base.engine.name == "ray"
    assert base.method.options["target"] is False and base.method.options["rotation"] is True
    assert Counter(row.seed for row in plan.rows) == {0: 6, 1: 6, 2: 6}


def test_the_sweeps_change_one_thing_at_a_time():
    plan, configs = make_plan("mi_sweeps", "small", seeds=[0])
    assert len(plan.rows) == 2 * 7 + 5
    base = cell(plan, configs, method="Federated SimCLR", variant="base").model_dump()
    for row in plan.rows:
        other = configs[row.run].model_dump()
        changed = {key for key, value in other.items() if value != base[key]}
        sections = {"partition", "training", "terms", "method"}
        assert len(changed) == (row.values["variant"] != "base") + (
            row.values["method"] == "Local SimCLR"
        )
        assert changed <= sections


def test_a_preset_stands_in_place_of_the_scales_settings():
    """But for those of the machine."""
    plan, configs = make_plan("dec_ssl_figure17", "small", seeds=[0], extra=["data.root=photos"])
    config = configs[plan.rows[0].run]
    preset = load_config(["preset=dec_ssl_small", "data.root=photos"])
    for section in ("federation", "evaluation", "model", "data", "method"):
        assert getattr(config, section).model_dump() == getattr(preset, section).model_dump()
    assert (config.engine.name, config.device, config.training.threads) == ("inline", "cpu", 1)


def test_rules_follow_their_axis():
    plan, configs = make_plan("figure6", "paper", only=["CIFAR-10", "Orchestra"])
    epochs = {k: cell(plan, configs, clients=k).training.local_epochs for k in ("10", "100", "400")}
    assert epochs == {"10": 1, "100": 10, "400": 40}
    plan, configs = make_plan("figure7", "paper", only=["CIFAR-10", "Orchestra"])
    rate = {r: cell(plan, configs, participation=r).training.lr for r in ("0.1", "0.5", "1.0")}
    assert rate["0.5"] == 0.003
    assert rate["0.1"] == pytest.approx(0.003 * (0.1 / 0.5) ** 0.5, rel=1e-5)
    assert rate["1.0"] == pytest.approx(0.003 * 2**0.5, rel=1e-5)


def test_small_scale_takes_photographs_where_data_root_is_set():
    plan, configs = make_plan("table6", "small", seeds=[0])
    assert {c.data.name for c in configs.values()} == {"digits"}
    photos = ["data.root=photos.zip", "training.lr=0.01"]
    plan, configs = make_plan("table6", "small", seeds=[0], extra=photos)
    assert {(c.data.name, c.training.lr) for c in configs.values()} == {("image_folder", 0.01)}
    assert plan.command.endswith("experiment=table6 scale=small seeds=0 " + " ".join(photos))


def test_a_runs_name_says_what_is_computed_and_nothing_else():
    base = run_name(load_config())
    assert base.startswith("orchestra-affine_digits-k10-a0.1-s0-")
    same = ["device=cpu", "name=x", "run_dir=y", "terms.proximal.weight=0"]
    for engine in ("engine=inline", "engine.workers=1"):
        assert run_name(load_config([*same, engine])) == base
    assert run_name(load_config(["~terms.proximal"])) == base
    weighted = run_name(load_config(["terms.proximal.weight=.1"]))
    assert weighted not in (base, run_name(load_config(["terms.proximal.weight=.2"])))
    assert run_name(load_config(["federation.max_update=20"])) == base  # the default
    changed = ("seed=1", "training.lr=0.02", "method.ema=0.9", "evaluation.every=1")
    for other in (*changed, "federation.max_update=null", "federation.max_update=5"):
        assert run_name(load_config([other])) != base
    assert run_name(load_config(["federation.round_timeout=5"])) == base  # nobody is late
    timed = [f"federation.round_timeout={seconds}" for seconds in (3600, 50, 5)]
    by_clock = [run_name(load_config(["clock=virtual", timeout])) for timeout in timed]
    assert by_clock[0] == run_name(load_config(["clock=virtual"])) and len({*by_clock}) == 3
    roots = ["a/one.zip", "b/one.zip", "a/two.zip"]
    one, moved, two = (
        run_name(load_config(["data=image_folder", f"data.root={root}"])) for root in roots
    )
    assert one == moved != two
    assert run_name(load_config(), "split").startswith("split-affine_digits-")


def test_runs_of_version_0_3_0_keep_their_names():
    """A key that is new since then, and changes nothing by default, is in UNLESS_USUAL."""
    simclr = ["data=digits", "method=simclr", "federation.rounds=5"]
    name = "simclr-digits-k10-a0.1-s0-a8b4fb82b2"
    assert run_name(load_config(simclr)) == name
    for other in ("training.min_steps=4", "data.augmentation.view_size=16"):
        assert run_name(load_config([*simclr, other])) != name


def test_an_attack_is_seen_with_and_without_the_check_of_replies():
    plan, configs = make_plan("poisoning", "small", seeds=[0], only=["2 flip"])
    unchecked, checked = (
        cell(plan, configs, rule=rule, attack="2 flip") for rule in ("mean", "mean, checked")
    )
    assert unchecked.federation.max_update is None
    assert checked.federation.max_update == 20


def test_a_rule_follows_its_axis_from_what_an_override_sets():
    plan, configs = make_plan(
        "figure7", "paper", only=["CIFAR-10", "Orchestra"], extra=["training.lr=0.1"]
    )
    rate = {r: cell(plan, configs, participation=r).training.lr for r in ("0.1", "0.5", "1.0")}
    assert rate["0.5"] == 0.1
    assert rate["1.0"] == pytest.approx(0.1 * 2**0.5, rel=1e-5)


@pytest.mark.slow
def test_an_override_cannot_set_what_is_varied():
    with pytest.raises(
        ConfigError, match=r"training.local_epochs=3: makes .* 1 and 2 the same run"
    ):
        make_plan("figure8", "small", extra=["training.local_epochs=3"])
    for only, override, says in (  # one row is left, whose name would be wrong
        (["0.1", "Orchestra"], "partition.alpha=5", "alpha 0.1 and 1e5 the same run"),
        (["0.1", "f-SimCLR"], "method=spectral", "method f-SimCLR and "),
    ):
        with pytest.raises(ConfigError, match=f"{override}: makes {says}"):
            make_plan("figure5", "small", seeds=[0], only=only, extra=[override])
    for override in ("seed=7", "run_dir=x", "resume=x"):
        with pytest.raises(ConfigError, match=f"{override}: each run of an experiment has its own"):
            make_plan("figure8", "small", extra=[override])


def test_an_override_cannot_set_what_an_experiment_of_plug_ins_varies(
    tmp_path, monkeypatch, user_package
):
    """Without the package, which the command names as well, no row composes."""
    mine = "from orchestra_flwr.methods.simclr import SimCLR\n\nclass Mine(SimCLR):\n    pass\n"
    user_package({"methods/mine.py": mine, "methods/other.py": mine})
    shutil.copytree(conf_dir() / "scale", tmp_path / "scale")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "own.yaml").write_text(
        "{title: own, reference: none, about: none, measures: [linear], show: {kind: table},"
        " axes: {method: {mine: [method=mine], other: [method=other]}}}"
    )
    monkeypatch.setattr(description, "conf_dir", lambda: tmp_path)
    plan, _ = make_plan("own", "small", seeds=[0], extra=["plugins=[my_package]"])
    assert len({row.run for row in plan.rows}) == 2
    with pytest.raises(ConfigError, match="method=byol: makes method mine and other the same run"):
        make_plan("own", "small", seeds=[0], extra=["plugins=[my_package]", "method=byol"])
