"""Version 0.1: its keys on command lines, and the configurations that its runs saved."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from orchestra_flwr.config import (
    Config,
    ConfigError,
    EvaluateConfig,
    load,
    load_config,
    migrated,
    parse,
    renamed,
)

DIGITS = Path(__file__).with_name("version_0_1.yaml")  # as version 0.1 wrote it, all defaults
# What version 0.1 wrote in other runs, beside that, and today's overrides of the same run.
SAVED = {
    "digits": ({}, []),
    "ray": (
        {"ray.workers": 2, "ray.gpus_per_client": 0.25, "training.momentum": 0.8},
        ["engine.workers=2", "engine.gpus_per_client=0.25", "optimizer.momentum=0.8"],
    ),
    "inline": (
        {"engine": "inline", "training.weight_decay": 0.0},
        ["engine=inline", "optimizer.weight_decay=0.0"],
    ),
    "fedu": (
        {"federation.merge": "fedu", "federation.fedu_threshold": 0.5},
        ["merging=fedu", "merging.threshold=0.5"],
    ),
    "fedema": (
        {"federation.merge": "fedema", "federation.fedema_lambda": 2.0},
        ["merging=fedema", "merging.scale=2.0"],
    ),
    "by_class": (
        {"partition.name": "by_class", "federation.clients": 10},
        ["partition=by_class", "federation.clients=10"],
    ),
    "specloss": (
        {"method": {"name": "specloss", "paper": {"device": {"lr": 0.003}, "silo": {"lr": 0.03}}}},
        ["method=specloss", "method.outputs=24"],
    ),
    "image_folder": (
        {"data.name": "image_folder", "data.root": "photos", "data.augmentation.flip": True,
         "data.image_size": 32, "clustering.global_clusters": 32},
        ["data=image_folder", "data.root=photos"],
    ),
}  # fmt: skip


def saved(case):
    values = OmegaConf.load(DIGITS)
    for key, value in SAVED[case][0].items():
        OmegaConf.update(values, key, value, merge=False)
    return values


# Defaults of then that have changed since.
OF_THEN = ["data=digits", "training.setting=device"]


def content(config):
    """What a configuration means: options that are not given have their defaults."""
    values = config.model_dump(exclude={"name", "run_dir", "resume", "terms"})
    for choice in config.choices():
        if choice.key != "terms":
            common = {k: getattr(choice, k) for k in type(choice).model_fields if k != "paper"}
            values[choice.key] = {**common, **choice.settings.model_dump()}
    return {**values, "terms": config.active_terms}


@pytest.mark.parametrize("case", SAVED)
def test_a_saved_run_of_version_0_1_means_what_it_did(case):
    values = OmegaConf.to_container(saved(case))
    before = OmegaConf.to_container(saved(case))
    config = parse(Config, migrated(values))
    assert values == before  # nothing is changed in place
    assert content(config) == content(load_config([*OF_THEN, *SAVED[case][1]]))
    # Saved again it is today's, which needs no change.
    assert migrated(config.model_dump(mode="json")) == config.model_dump(mode="json")


@pytest.mark.parametrize("case", SAVED)
def test_a_run_of_version_0_1_is_resumed(case, tmp_path):
    OmegaConf.save(saved(case), tmp_path / "config.yaml")
    config = load_config([f"resume={tmp_path}"])
    assert content(config) == content(load_config([*OF_THEN, *SAVED[case][1]]))
    assert config.resume == config.run_dir == str(tmp_path)
    again = load_config([f"resume={tmp_path}", "seed=0", *OF_THEN, *SAVED[case][1]])
    assert content(again) == content(config)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("federation.merge=fedu", "merging=fedu"),
        ("training.momentum=0.9", "optimizer.momentum=0.9"),
        ("+training.weight_decay=1.0e-4", "optimizer.weight_decay=1.0e-4"),
        ("ray.workers=3", "engine.workers=3"),
    ],
)
def test_resuming_takes_both_spellings(old, new, tmp_path):
    values = saved("fedu")
    values.federation.fedu_threshold = 0.4
    OmegaConf.save(values, tmp_path / "config.yaml")
    assert load_config([f"resume={tmp_path}", old]) == load_config([f"resume={tmp_path}", new])


def test_a_resumed_run_of_version_0_1_keeps_its_configuration(tmp_path):
    OmegaConf.save(saved("fedu"), tmp_path / "config.yaml")
    for override, says in (
        ("federation.merge=fedema", "merging=fedema: .* which has merging=fedu"),
        ("federation.fedu_threshold=.9", "merging.threshold=0.9: .* merging.threshold=0.5"),
        ("training.momentum=.5", "optimizer.momentum=0.5: .* which has optimizer.momentum=0.9"),
        ("server_optimizer=adam", "server_optimizer=adam: .* which has server_optimizer=mean"),
        ("terms.proximal.weight=1", "terms.proximal.weight=1: a resumed run keeps"),
    ):
        with pytest.raises(ConfigError, match=f"^{says}"):
            load_config([f"resume={tmp_path}", override])
    moved = load_config([f"resume={tmp_path}", "engine=inline"])
    assert moved.engine.name == "inline" and moved.engine.options == {"side_by_side": 1}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["federation.merge=fedu"], ["merging=fedu"]),
        (
            ["federation.fedu_threshold=.5", "federation.merge=fedu"],
            ["merging=fedu", "merging.threshold=.5"],
        ),
        (
            ["federation.merge=fedema", "+federation.fedema_lambda=2", "++federation.fedema_mu=1"],
            ["merging=fedema", "merging.scale=2", "merging.first_mu=1"],
        ),
        (["training.momentum=0", "~training.weight_decay"],
         ["optimizer.momentum=0", "~optimizer.weight_decay"]),
        (["ray.workers=2", "ray.gpus_per_client=.5"],
         ["engine.workers=2", "engine.gpus_per_client=.5"]),
        (["ray.address=a:1"], ["engine.address=a:1"]),
    ],
)  # fmt: skip
def test_keys_of_version_0_1_on_a_command_line(old, new):
    assert load_config(old) == load_config(new)


def test_a_wrong_value_under_an_old_key_names_todays():
    for override, says in (
        ("federation.merge=fedx", "merging=fedx: must be one of fedbn, fedema, fedu, replace"),
        ("federation.fedema_mu=0.5", "merging.first_mu: unknown option of merging=replace"),
        ("training.momentum=x", "optimizer.momentum=x: input should be a valid number"),
    ):
        with pytest.raises(ConfigError, match=f"^{says}"):
            load_config([override])


def test_only_whole_keys_are_renamed():
    others = ["training.momentums=1", "federation.merge_all=1", "seed=ray.workers", "data=ray"]
    assert renamed(others) == others


def test_a_run_of_version_0_1_is_evaluated_on_its_own_images(tmp_path):
    OmegaConf.save(saved("image_folder"), tmp_path / "config.yaml")
    data = load(EvaluateConfig, [f"run={tmp_path}", "data.test_limit=7"]).images()
    assert (data.name, data.settings.root, data.test_limit) == ("image_folder", "photos", 7)
    OmegaConf.save(saved("digits"), tmp_path / "config.yaml")
    assert load(EvaluateConfig, [f"run={tmp_path}"]).images().name == "digits"
