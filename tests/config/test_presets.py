"""Presets: values of several groups together."""

import pytest

from orchestra_flwr.config import ConfigError, load_config

PRESET = "preset=mutual_information"
FOLDER = ("data=image_folder", "data.root=x")
ADAM = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "bias_correction": True}


@pytest.mark.parametrize("data", [FOLDER, ("data=cifar10",), ()])
def test_the_mutual_information_paper(data):
    config = load_config([PRESET, *data])
    assert (config.method.name, config.method.views) == ("simclr", "plain")
    assert config.method.options == {"temperature": 0.1, "loss": "infonce", "classes": None}
    assert config.terms["verification"].weight == 1
    model = config.model
    assert (model.name, model.norm, model.projector) == ("resnet18", "group", "plain")
    assert (model.projector_hidden, model.projector_dim) == (2048, 128)
    assert (config.server_optimizer.name, config.server_optimizer.options) == ("adam", ADAM)
    assert config.optimizer.options == {"momentum": 0, "weight_decay": 0}
    federation, training = config.federation, config.training
    assert (federation.clients, federation.participation) == (100, 0.1)
    assert federation.weighting == "uniform"
    assert (training.local_epochs, training.batch_size, training.lr) == (1, 128, 0.1)


@pytest.mark.parametrize(
    ("override", "options"),
    [
        ("method=spectral", {"norm": "ball", "classes": None}),
        ("method=simsiam", {"classes": None, "predictor_hidden": None}),
        ("server_optimizer=mean", {}),
        ("server_optimizer=yogi", {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 0.001}),
        ("optimizer=adamw", {"betas": [0.9, 0.999], "epsilon": 1e-8, "weight_decay": 0.01}),
        ("model=convnet", {}),
    ],
)
def test_another_choice_has_its_own_options(override, options):
    config = load_config([PRESET, *FOLDER, override])
    key, name = override.split("=")
    assert (getattr(config, key).name, getattr(config, key).options) == (name, options)
    assert config.method.views == "plain" and config.terms["verification"].weight == 1


def test_what_is_written_wins():
    config = load_config(
        [PRESET, "server_optimizer.lr=0.02", "terms.verification.weight=0",
         "method.loss=nt_xent", "method.views=default", "federation.clients=20",
         "optimizer.momentum=0.5"]
    )  # fmt: skip
    assert config.server_optimizer.options == {**ADAM, "lr": 0.02}
    assert (config.active_terms, config.method.views) == ([], "default")
    assert config.method.options["loss"] == "nt_xent"
    assert (config.federation.clients, config.optimizer.options["momentum"]) == (20, 0.5)


def test_without_a_preset_every_choice_has_its_defaults():
    config = load_config(["method=simclr", "server_optimizer=adam"])
    assert config.method.options == {"temperature": 0.1, "loss": "nt_xent", "classes": None}
    settings = config.server_optimizer.plugin.Settings
    assert config.server_optimizer.settings == settings()
    assert config.optimizer.settings == config.optimizer.plugin.Settings()
    assert config.terms["verification"].settings == config.terms["verification"].plugin.Settings()
    assert "preset_options" not in config.model_dump()


def test_what_presets_suggest_is_no_key():
    with pytest.raises(ConfigError, match="^preset_options.sgd.momentum: unknown key"):
        load_config(["preset_options.sgd.momentum=0.5"])


@pytest.mark.parametrize(
    ("whole", "small", "clients"),
    [("dec_ssl", "dec_ssl_small", 5), ("mutual_information", "mutual_information_small", 20)],
)
def test_a_small_preset_is_its_papers_but_for_what_costs_time(whole, small, clients):
    paper, ours = (load_config([f"preset={p}", *FOLDER]) for p in (whole, small))
    for group in ("method", "optimizer", "schedule", "merging", "clustering", "partition", "terms"):
        there, here = paper.model_dump()[group], ours.model_dump()[group]
        if group == "terms":
            assert here["verification"].pop("hidden") <= there["verification"].pop("hidden")
        assert here == there, group
    assert ours.model.norm == paper.model.norm and ours.model.projector == paper.model.projector
    assert (ours.model.name, ours.model.width, ours.data.train_limit) == ("convnet", 16, 3000)
    assert (ours.federation.clients, ours.federation.weighting) == (clients, "uniform")


def test_a_small_preset_can_be_made_smaller():
    given = ["preset=mutual_information_small", *FOLDER, "terms.verification.weight=0", "seed=3"]
    config = load_config([*given, "model.width=8", "federation.clients=4"], all_read=True)
    assert (config.model.width, config.federation.clients, config.active_terms) == (8, 4, [])
