"""What is composed quickly, from remembered choices of files, is what Hydra composes."""

import re
import shutil

import pytest
from omegaconf import OmegaConf

from orchestra_flwr.config import (
    Config,
    ConfigError,
    EvaluateConfig,
    compose,
    load_config,
    translate,
)
from orchestra_flwr.config.overrides import read_overrides
from orchestra_flwr.config.translate import conf_dir, for_hydra
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.server_config import ServerConfig

GROUPS = {
    group: sorted(file.stem for file in (conf_dir() / group).glob("*.yaml"))
    for group in [*Config.model_fields, "preset"]
    if (conf_dir() / group).is_dir() and group != "terms"
}
VALUES = (
    *("seed=3", "training.lr=1e-3", "training.lr=.5", "training.lr=1", "training.lr=0x10"),
    *("training.lr='0.1'", "training.lr=high", "training.lr=nan", "training.lr=null", "seed=-0"),
    *("training.drop_last=yes", "training.drop_last=True", "training.drop_last='true'"),
    *("device=", "device=cuda:1", "device='cuda:1'", 'name="two words"', "name='it\\'s'"),
    *("name=???", "name=null", "name=None", "name=3", "name='3'", "name=a\\,b", "name=a/b"),
    *("method.ema=0.5", "method.paper.small.ema=.7", "method.nonsense=1", "method.new.deep=[1]"),
    *("++method.temperature=0.2", "++training.lr=2", "model.width=7", "data.augmentation.hue=.2"),
    *(
        "plugins=[]",
        "optimizer.betas=[1,[2]]",
        "logging={progress: off}",
        "privacy={k_min:3}",
        "logging=1",
    ),
    *("terms.proximal.weight=0.1", "terms.proximal={weight:0.5}", "terms.none.weight=2"),
    *("clustering.memory=null", "federation.clients=5", "run_dir=a/b", "federation={rounds:2}"),
)
HYDRA_ALONE = (
    *("+new=1", "+training.new=1", "~seed", "~training.lr", "~method.ema", "name=${seed}"),
    *("training.lr=${.batch_size}", "name='${method.name}-x'"),
)
WRONG = (
    *("nonsense=1", "nonsense.deep=1", "seed.deep=1", "training.nonsense=1", "+seed=1"),
    *("labels.fraction.deep=1", "~nonsense", "evaluation.at=[1,2,[3]]", "privacy={k_min:3,new:4}"),
    *("federation.clients.deep=5",),
)
OTHERS = (
    (Config, ()),
    (Config, ("preset=null", "method=byol", "method.ema=.3", "method=simclr")),
    (Config, ("training.lr=5", "preset=mutual_information", "preset=dec_ssl", "seed=1", "seed=2")),
    (ClientConfig, ("name=me",)),
    (EvaluateConfig, ("data=cifar10", "device=cpu", "data.root=x")),
    (ServerConfig, ("federation.min_clients=4", "data=cifar10", "preset=mutual_information")),
)

OVERLAPPING = (
    ("federation=silo", "merging=fedbn"),
    ("federation=silo", "method=byol", "training=silo"),
    ("preset=mutual_information", "server_optimizer=momentum", "merging=fedbn"),
    ("preset=dec_ssl", "method=orchestra", "schedule=constant", "exchange=cycle"),
    ("preset=released_code", "clustering=private", "method=simclr", "evaluation=default"),
    ("data=cifar10", "clustering=private", "method=byol", "method=dino"),
)


def outcome(section, overrides):
    """The composed configuration, or the error."""
    try:
        composed = compose._compose(section, compose._read(section, overrides))
    except ConfigError as error:
        return str(error)
    return seen(composed)


def by_hydra(section, overrides):
    """The same with nothing remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "_quickly", lambda *_: None)
        return outcome(section, overrides)


def is_quick(section, overrides):
    lines = for_hydra(section, compose._read(section, overrides))
    return compose._quickly(section, lines) is not None


def seen(node):
    """All that there is to a composed configuration: order, types, interpolations, flags."""
    if OmegaConf.is_dict(node) and not node._is_none():
        values = [(key, seen(node._get_node(key))) for key in node]
    elif OmegaConf.is_list(node):
        values = [seen(node._get_node(i)) for i in range(len(node))]
    else:
        values = repr(node._value())
    return type(node), values, OmegaConf.is_readonly(node), OmegaConf.is_struct(node)


ALL = range(max(map(len, GROUPS.values())))
SOME = 3  # of them in `make test`, each with a choice of every group and a fourth of the values


@pytest.mark.parametrize(
    "i", [*ALL[:SOME], *(pytest.param(i, marks=pytest.mark.slow) for i in ALL[SOME:])]
)
def test_every_choice_and_value_is_composed_as_by_hydra(i):
    """All choices of all groups, and values in several orders, some of them given again."""
    choices = [f"{group}={files[i % len(files)]}" for group, files in GROUPS.items()]
    given = [*VALUES[i::7], *choices, *VALUES[i::9]]
    assert is_quick(Config, given)
    assert outcome(Config, given) == by_hydra(Config, given)


@pytest.mark.parametrize(("section", "overrides"), OTHERS)
def test_every_kind_of_configuration_is_composed_as_by_hydra(section, overrides):
    assert is_quick(section, overrides)
    assert outcome(section, overrides) == by_hydra(section, overrides)


@pytest.mark.parametrize("section", [Config, pytest.param(ServerConfig, marks=pytest.mark.slow)])
@pytest.mark.parametrize("overrides", OVERLAPPING)
def test_a_choice_beside_one_that_changes_others_is_composed_as_by_hydra(section, overrides):
    assert outcome(section, overrides) == by_hydra(section, overrides)
    assert outcome(section, overrides[::-1]) == by_hydra(section, overrides[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("choice", [f"{g}={file}" for g, files in GROUPS.items() for file in files])
def test_every_choice_alone_is_composed_as_by_hydra(choice):
    assert outcome(Config, [choice]) == by_hydra(Config, [choice])


def test_hydra_composes_once_for_all_choices_that_change_no_others(monkeypatch):
    compose._pickled.cache_clear()
    composed = []
    by_hydra = compose._by_hydra
    monkeypatch.setattr(
        compose, "_by_hydra", lambda *words: composed.append(words) or by_hydra(*words)
    )
    for method in ("byol", "simclr"):
        config = load_config(["data=digits", f"method={method}", "merging=fedbn", "partition=iid"])
        assert (config.method.name, config.merging.name) == (method, "fedbn")
        assert config.partition.name == "iid"
    assert len(composed) == 1


@pytest.mark.parametrize("override", [*HYDRA_ALONE, *WRONG])
def test_hydra_itself_does_the_rest_and_words_all_errors(override):
    assert not is_quick(Config, [override])


@pytest.mark.slow  # each by itself; the fast tests give several together
@pytest.mark.parametrize("override", [*VALUES, *HYDRA_ALONE, *WRONG])
def test_every_value_and_error_is_that_of_hydra(override):
    assert outcome(Config, [override]) == by_hydra(Config, [override])
    assert outcome(ServerConfig, [override]) == by_hydra(ServerConfig, [override])


def test_what_was_composed_before_stays_as_it_was():
    composed = compose._compose(Config, [])
    before = seen(composed)
    composed.training.lr = 7
    composed.plugins.append("mine")
    del composed["method"]
    assert outcome(Config, []) == before


def test_a_changed_file_is_read_again(tmp_path, monkeypatch):
    folder = tmp_path / "conf"
    shutil.copytree(conf_dir(), folder)
    for module in (compose, translate):
        monkeypatch.setattr(module, "conf_dir", lambda: folder)
    for seed in ("0", "17"):
        text = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(re.sub("seed: [0-9]+", f"seed: {seed}", text))
        assert compose._compose(Config, []).seed == int(seed)
    for package, content in (("_global_", "merging: {late: 3}\n"), ("merging", "late: 3\n")):
        for header in (f"# @package {package}", f"#@package  {package}"):
            (folder / "shift" / "mine.yaml").write_text(f"{header}\n{content}")
            given = ["shift=mine", "merging=fedbn"]
            assert outcome(Config, given) == by_hydra(Config, given)
    (folder / "training" / "mine.yaml").write_text("lr: 3\n")
    assert compose._compose(Config, read_overrides(["training=mine"])).training.lr == 3
