"""Presets that choose whole groups: Dec-SSL's."""

from pathlib import Path

import pytest
import torch

from orchestra_flwr.config import ConfigError, config_to_yaml, load_config
from orchestra_flwr.methods import Role
from orchestra_flwr.training import build_learner
from orchestra_flwr.training.schedules import LocalProgress


def test_dec_ssl_is_the_papers_run():
    config = load_config(["preset=dec_ssl"])
    federation, training = config.federation, config.training
    assert (federation.clients, federation.participation, federation.rounds) == (5, 1, 100)
    assert (federation.weighting, training.local_epochs, training.batch_size) == ("uniform", 5, 256)
    assert (config.data.name, config.data.normalise, config.method.views) == (
        "cifar10", "cifar", "plain",
    )  # fmt: skip
    assert (config.method.name, config.method.settings.temperature) == ("simclr", 0.5)
    assert (config.optimizer.name, training.lr) == ("adam", 1e-3)
    assert config.optimizer.settings.weight_decay == 1e-6
    assert (config.schedule.name, config.schedule.settings.by) == ("steps", "epochs")
    assert training.optimizer_state == "reset" and config.evaluation.probe == "converged"


def test_its_model_has_the_published_size():
    """11,705,813 elements, but for the projector's running statistics, which nothing reads."""
    with torch.device("meta"):
        learner = build_learner(load_config(["preset=dec_ssl"]), 3)
    assert sum(t.numel() for t in learner.state_dict().values()) == 11_705_813 - 2 * 512 - 1
    travelling = sum(tensor.numel() for tensor in learner.state(Role.SHARED).values())
    guide = (Path(__file__).parents[2] / "docs" / "dec-ssl.md").read_text()
    assert f"so {travelling:,} elements travel" in guide


@pytest.mark.parametrize(("overrides", "name", "lr", "optimizer"), [
    (["method=supervised"], "supervised", 1e-3, "adam"),
    (["method=simsiam", "optimizer=sgd"], "simsiam", 0.03, "sgd"),
    (["method=byol", "optimizer=sgd"], "byol", 0.03, "sgd"),
    (["data=image_folder", "data.root=photos"], "simclr", 1e-3, "adam"),
    (["method=mae", "method.views=default", "model=vit_tiny", "optimizer=adamw",
      "data.normalise=half"], "mae", 2e-4, "adamw"),
])  # fmt: skip
def test_other_choices_go_with_it(overrides, name, lr, optimizer):
    """What a command line chooses goes before what the preset does."""
    config = load_config(["preset=dec_ssl", *overrides])
    assert (config.method.name, config.training.lr, config.optimizer.name) == (name, lr, optimizer)
    assert (config.federation.clients, config.schedule.name) == (5, "steps")
    assert config.data.normalise == ("half" if name == "mae" else "cifar")


def test_the_released_code_differs_where_it_says():
    fair, released = (load_config([f"preset={p}"]) for p in ("dec_ssl", "dec_ssl_released"))
    assert released.schedule.settings.by == "rounds"
    assert released.training.drop_last and released.evaluation.probe == "dec_ssl"
    assert (released.partition.share, released.partition.cut) == (0.8, "by_class")
    supervised = load_config(["preset=dec_ssl_released", "method=supervised", "schedule.gamma=1"])
    rate = supervised.schedule.build().factor
    assert {rate(LocalProgress(n, 100, 0, 5)) for n in range(1, 101)} == {1}  # as in that code
    values = released.model_dump()
    values["schedule"]["by"], values["training"]["drop_last"] = "epochs", False
    values["evaluation"]["probe"] = "converged"
    values["partition"] |= {"share": 1, "cut": "random"}
    assert values == fair.model_dump()


def test_simsiam_has_the_papers_heads():
    """A projector of 512, 2048, 2048, 512 and a predictor of 512, 512, 512."""
    given = ["preset=dec_ssl", "method=simsiam", "model.projector=orchestra", "optimizer=sgd",
             "model.projector_hidden=2048"]  # fmt: skip
    with torch.device("meta"):
        method = build_learner(load_config(given), 3).method
    widths = [
        [tuple(layer.weight.shape) for layer in head if isinstance(layer, torch.nn.Linear)]
        for head in (method.projector, method.predictor)
    ]
    assert widths == [[(2048, 512), (2048, 2048), (512, 2048)], [(512, 512), (512, 512)]]


def test_nothing_is_cut_off_a_whole():
    with pytest.raises(ConfigError, match=r"partition\.cut: is not read with partition\.share=1"):
        load_config(["partition.cut=by_class"], all_read=True)


def test_a_learning_rate_that_the_setting_does_not_have_must_be_given():
    with pytest.raises(ConfigError, match=r"training\.lr: must be given"):
        load_config(["preset=dec_ssl", "method=specloss"])
    given = load_config(["preset=dec_ssl", "method=specloss", "training.lr=0.01"])
    assert given.training.lr == 0.01


def test_a_resumed_run_may_repeat_its_preset(tmp_path):
    """Also what it suggests to choices (preset_options), which no saved configuration has."""
    given = ["preset=dec_ssl", f"run_dir={tmp_path}"]
    (tmp_path / "config.yaml").write_text(config_to_yaml(load_config(given)))
    again = load_config([f"resume={tmp_path}", "preset=dec_ssl"])
    assert (again.method.name, again.optimizer.name) == ("simclr", "adam")
    for preset, says in (
        ("dec_ssl_released", "training.drop_last=True: a resumed run keeps"),
        ("released_code", "a resumed run keeps its own configuration"),
    ):
        with pytest.raises(ConfigError, match=says):
            load_config([f"resume={tmp_path}", f"preset={preset}"])


def test_a_run_of_another_choice_is_not_resumed_with_a_preset(tmp_path):
    (tmp_path / "config.yaml").write_text(config_to_yaml(load_config(["data=cifar10"])))
    with pytest.raises(ConfigError, match="a resumed run keeps its own configuration"):
        load_config([f"resume={tmp_path}", "preset=dec_ssl"])
