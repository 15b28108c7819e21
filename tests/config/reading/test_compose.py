"""What is composed is what Hydra composes, of files that it merges once."""

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestra_flwr.config import Config, ConfigError, EvaluateConfig, load_config
from orchestra_flwr.config.reading import compose
from orchestra_flwr.config.reading.hydra_overrides import conf_dir, for_hydra
from orchestra_flwr.deployment.client_config import ClientConfig
from orchestra_flwr.deployment.server_config import ServerConfig

VALUES = (  # several at once, since Hydra takes long
    ("seed=3", "training.lr=1e-3", "device=", "name='it\\'s'", "method.new.deep=[1]",
     "optimizer.betas=[1,[2]]", "logging={progress: off}", "terms.proximal={weight:0.5}",
     "plugins=[]", "+training.new=1"),
    ("++seed=4", "training.lr='0.1'", "device='cuda:1'", "name=???", "privacy={k_min:3}",
     "terms.none.weight=2", "federation={rounds:2}"),
    ("training.lr=null", "name=a\\,b", "logging=1", "~seed", "~method.ema", "~terms.proximal"),
    ("training.lr=${.batch_size}", "name=${seed}"),
    ("~seed=0", "~training.lr", "name='${method.name}-x'"),
)  # fmt: skip
WRONG = (
    *("nonsense=1", "seed.deep=1", "training.nonsense=1", "labels.fraction.deep=1", "~nonsense"),
    *("~seed=7", "evaluation.at=[1,2,[3]]", "privacy={k_min:3,new:4}", "plugins.a=1"),
)
CHOICES = (
    (Config, ()),
    (Config, ("preset=null", "method=byol", "method.ema=.3", "method=simclr")),
    (Config, ("training.lr=5", "preset=mutual_information", "preset=dec_ssl", "seed=1", "seed=2")),
    (Config, ("federation=silo", "merging=fedbn", "method=byol", "training=silo")),
    (Config, ("merging=fedbn", "federation=silo", "data=cifar10", "clustering=private")),
    (ClientConfig, ("name=me",)),
    (EvaluateConfig, ("data=cifar10", "device=cpu", "data.root=x")),
    (ServerConfig, ("federation.min_clients=4", "data=cifar10", "preset=mutual_information")),
)


def seen(composed):
    """All that there is to a composed configuration: order, types, interpolations."""
    return repr(OmegaConf.to_container(composed)), list(composed)


def by_hydra(section, overrides):
    """The same lines, the values as well composed by Hydra itself; None for an error."""
    lines = [line.input_line for line in for_hydra(section, compose._read(section, overrides))]
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        try:
            composed = hydra_compose(section.file, lines)
        except (HydraException, OmegaConfBaseException, ValueError):
            return None
    return seen(composed)


def ours(section, overrides):
    try:
        return seen(compose._compose(section, compose._read(section, overrides)))
    except ConfigError:
        return None


@pytest.mark.parametrize(("section", "overrides"), CHOICES)
def test_choices_of_files_are_composed_as_by_hydra(section, overrides):
    assert ours(section, overrides) == by_hydra(section, overrides) is not None


@pytest.mark.parametrize("overrides", VALUES)
def test_values_are_set_as_by_hydra(overrides):
    assert ours(Config, overrides) == by_hydra(Config, overrides) is not None


@pytest.mark.parametrize("override", WRONG)
def test_what_hydra_refuses_is_refused(override):
    assert ours(Config, [override]) == by_hydra(Config, [override]) is None


def test_hydra_merges_the_files_of_one_choice_once():
    compose._merged_files.cache_clear()
    for seed in range(5):
        for method in ("byol", "simclr"):
            config = load_config([f"method={method}", f"seed={seed}", "training.lr=0.5"])
            assert (config.method.name, config.seed) == (method, seed)
    assert compose._merged_files.cache_info().misses == 2


def test_what_was_composed_before_stays_as_it_was():
    composed = compose._compose(Config, [])
    before = seen(composed)
    composed.training.lr = 7
    composed.plugins.append("mine")
    del composed["method"]
    assert seen(compose._compose(Config, [])) == before


def test_files_of_a_users_package_are_read_again(user_package):
    code = "from orchestra_flwr.training.optimizers.sgd import SGD\nclass Mine(SGD): pass\n"
    conf = user_package({"optimizers/mine.py": code}) / "conf" / "optimizer"
    conf.mkdir(parents=True)
    for momentum in (0.5, 0.25):
        (conf / "mine.yaml").write_text(f"name: mine\nmomentum: {momentum}\n")
        config = load_config(["plugins=[my_package]", "optimizer=mine"])
        assert config.optimizer.settings.momentum == momentum
