"""Every choice: unknown names and options are refused in one line that lists what exists."""

import pytest
from omegaconf import OmegaConf

from orchestra_flwr.config import Config, ConfigError, conf_dir, load_config
from orchestra_flwr.config.choices import TermConfig

CHOICES = {
    key: field.annotation
    for key, field in Config.model_fields.items()
    if hasattr(field.annotation, "room")
}
RECIPES = (
    *("camelyon17", "domainnet", "fed_isic2019", "femnist", "flair"),
    *("inaturalist_user", "landmarks_user", "office_home", "pacs"),
)
# What is the same code for all of a kind is asked of the first alone where minutes matter.
ONE_OF_EACH = [
    pytest.param(key, name, marks=pytest.mark.slow if number else [])
    for key, choice in CHOICES.items()
    for number, name in enumerate(choice.room.found())
]
PLUGINS = [(key, name) for key, choice in CHOICES.items() for name in choice.room.found()]


def refused(*overrides):
    with pytest.raises(ConfigError) as error:
        load_config(overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("key", ["data", "model", "method"])
def test_a_choice_that_is_deleted_must_be_given(key):
    assert refused(f"~{key}") == f"{key}: must be given"


def test_all_rooms_are_here():
    assert set(CHOICES) == {
        *("method", "model", "adaptation", "data", "partition", "shift", "exchange"),
        *("server_optimizer", "clock"),
        *("merging", "optimizer", "schedule", "engine", "clustering", "aggregation", "attack"),
    }


@pytest.mark.parametrize("key", CHOICES)
@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_an_unknown_name_is_refused_with_those_that_exist(key, sign):
    variants = {"model": ["convnet_16"], "data": RECIPES}  # files of conf/ over another choice
    names = ", ".join([*CHOICES[key].room.found(), *variants.get(key, [])])
    assert refused(f"{sign}{key}=nonsense") == f"{key}=nonsense: must be one of {names}"


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        *(
            ("method=SimCLR", "simclr"),
            ("model=resnet_18", "resnet18"),
            ("data=cifar-10", "cifar10"),
        ),
        *(("aggregation=medain", "median"), ("server_optimizer=fedadam", "adam")),
        *(
            ("data=camelyon", "camelyon17"),
            ("preset=decssl", "dec_ssl"),
            ("training=divice", "device"),
        ),
    ],
)
def test_a_misspelt_name_is_suggested(override, meant):
    assert refused(override).endswith(f" (did you mean {meant}?)")


@pytest.mark.parametrize("value", ["3", "null", "[a]", "my-own", "'a b'", "os.path", "../digits"])
def test_what_is_no_name_is_refused_with_those_that_exist(value):
    names = ", ".join([*CHOICES["data"].room.found(), *RECIPES])
    error = refused(f"data={value}").partition(" (did you")[0]
    assert error == f"data={value}: must be one of {names}"


@pytest.mark.parametrize(("key", "name"), ONE_OF_EACH)
def test_an_unknown_option_is_refused_with_those_that_exist(key, name):
    settings = CHOICES[key].room.find(name).Settings
    error = refused(f"{key}={name}", f"{key}.nonsense=1")
    assert error.startswith(f"{key}.nonsense: unknown option of {key}={name}, which has ")
    options = error.partition("which has ")[2].split(", ")
    assert set(settings.model_fields) <= set(options)
    assert settings.model_fields or "nonsense" not in options


@pytest.mark.parametrize(("key", "name"), PLUGINS)
def test_help_shows_every_option_of_every_plugin(key, name):
    """`conf/<group>/<name>.yaml` has them all, so that --help and --cfg show them."""
    values = OmegaConf.load(conf_dir() / key / f"{name}.yaml")
    values = values.data if key == "data" else values
    assert values.name == name
    known = {*CHOICES[key].room.find(name).Settings.model_fields, *CHOICES[key].model_fields}
    assert known >= set(values) >= set(CHOICES[key].room.find(name).Settings.model_fields)


@pytest.mark.parametrize("sign", ["", "+", "++"])
@pytest.mark.parametrize(
    ("choice", "option", "says"),
    [
        ("data=digits", "data.root=x", "data=cifar10, data=cifar100, data=image_folder, data="),
        (
            "partition=iid",
            "partition.alpha=3",
            "which has share, cut (partition=dirichlet, partition=",
        ),
        (
            "engine=inline",
            "engine.workers=2",
            "which has side_by_side (engine=auto, engine=ray have it)",
        ),
        ("optimizer=adamw", "optimizer.momentum=1", "(optimizer=sgd has it)"),
        ("merging=fedu", "merging.first_mu=.5", "which has threshold (merging=fedema has it)"),
        ("method=rotpred", "method.outputs=9", "(method=dino, method=specloss have it)"),
    ],
)
def test_an_option_of_another_choice_names_who_has_it(sign, choice, option, says):
    key = option.partition("=")[0]
    error = refused(choice, sign + option)
    assert error.startswith(f"{key}: unknown option of {choice}, ") and says in error


def test_a_misspelt_option_is_suggested():
    assert refused("partition.alhpa=1") == (
        "partition.alhpa: unknown option of partition=dirichlet, which has share, cut, alpha "
        "(did you mean partition.alpha?)"
    )
    assert "(did you mean model.width?)" in refused("model.widht=8")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("optimizer.momentum=x", "optimizer.momentum=x: input should be a valid number"),
        ("engine.workers=0", "engine.workers=0: input should be greater than or equal to 1"),
        (
            "server_optimizer=adagrad server_optimizer.epsilon=1e300",
            "server_optimizer.epsilon=1e+300: input should be less than or equal to 1000000",
        ),
        ("partition.alpha=[1]", "partition.alpha=[1]: input should be a valid number"),
        ("partition.alpha=null", "partition.alpha=null: input should be a valid number"),
        ("merging.threshold=1", "merging.threshold: unknown option of merging=replace"),
    ],
)
def test_a_wrong_value_of_an_option_names_it(override, says):
    assert refused(*override.split()).startswith(says)


def test_lists_and_nulls_are_values_of_options():
    config = load_config(["optimizer=adamw", "optimizer.betas=[0.8,0.95]", "engine.workers=null"])
    assert config.optimizer.settings.betas == (0.8, 0.95)
    assert config.engine.settings.workers is None
    names = load_config(["method=supervised", "method.classes=[cat,dog]"]).method.settings.classes
    assert names == ("cat", "dog")


def test_a_deleted_option_has_the_plugins_default():
    config = load_config(["data=cifar10", "training.lr=.1", "~method.ema", "~partition.alpha"])
    assert "ema" not in config.method.options
    assert config.method.settings == type(config.method.settings)()
    assert config.partition.settings.alpha == 0.1


def test_a_choice_by_its_name_key_is_the_choice():
    """`partition.name=iid`, as `config.yaml` has it, brings no option of another choice along."""
    for override in ("partition.name=iid", "+partition.name=iid", "++partition.name=iid"):
        assert load_config([override]).partition == load_config(["partition=iid"]).partition
    assert load_config(["model.name=resnet18"]).model == load_config(["model=resnet18"]).model


def test_later_choices_win():
    assert load_config(["method=byol", "method=simclr"]) == load_config(["method=simclr"])


def test_a_term_is_given_by_its_weight():
    (term,) = load_config(["terms.proximal.weight=.1"]).active_terms
    assert (term.name, term.weight, term.path) == ("proximal", 0.1, "terms.proximal")
    assert load_config().active_terms == []
    assert load_config(["terms={proximal:{weight:1}}"]).active_terms[0].weight == 1
    assert TermConfig.room.found().keys() <= load_config().terms.keys()


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("terms.nonsense.weight=1", "terms.nonsense: must be one of alignment, proximal"),
        ("+terms.nonsense.weight=1", "terms.nonsense: must be one of alignment, proximal"),
        ("terms.proximal.weight=-1", "terms.proximal.weight=-1: input should be greater than or"),
        (
            "terms.proximal.mu=1",
            "terms.proximal.mu: unknown option of terms.proximal, which has weight",
        ),
        ("terms.proximal=1", "terms.proximal=1: must be options, such as terms.proximal.weight=1"),
        ("terms=proximal", "terms=proximal: must be weights, such as terms.proximal.weight=0.1"),
        ("terms=null", "terms=null: must be weights, such as terms.proximal.weight=0.1"),
    ],
)
def test_a_wrong_term_is_refused(override, says):
    assert refused(override).startswith(says)


def test_a_name_that_leads_nowhere_is_told_before_what_it_leaves_open():
    """The learning rate of data=cifar10 is the method's; the method is what is wrong."""
    assert refused("data=cifar10", "method.name=nope").startswith("method=nope: must be one of ")
    error = refused("data=cifar10", "method=simsiam", "~method.paper")
    assert error == "training.lr: must be given, there is no method.paper.device.lr"


def test_the_papers_values_are_no_options_to_choose():
    assert "paper" not in refused("method=byol", "method.nonsense=1")


def test_of_two_choices_the_last_one_holds(user_package):
    """Also where the first is a plug-in without a file in conf/."""
    user_package(
        {
            "aggregations/first.py": "from orchestra_flwr.federation.aggregations.median import "
            "Median\n\n\nclass First(Median):\n    pass\n"
        }
    )
    chosen = ["plugins=[my_package]", "aggregation=first"]
    assert load_config(chosen).aggregation.name == "first"
    assert load_config([*chosen, "aggregation=mean"]).aggregation.name == "mean"
    assert load_config(["aggregation=mean", *chosen]).aggregation.name == "first"
